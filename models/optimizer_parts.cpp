#include <longstraw/models/json_text.hpp>
#include <longstraw/models/optimizer_parts.hpp>

#include <algorithm>

namespace longstraw::models {
namespace {

constexpr const char* first_moment = "first_moment";
constexpr const char* second_moment = "second_moment";
constexpr const char* master = "master";

token_range overlap(token_range a, token_range b) {
  const index begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

token_range range_of(const parameter& p) { return {p.offset, p.offset + p.count}; }

/// What a part of that range holds of a parameter, as a tensor of the file.
struct piece {
  const parameter* of;
  token_range range;  ///< in the layout

  bool whole() const { return range.count() == of->count; }
  std::string name(const char* kind) const {
    return whole() ? fmt::format("{}.{}", kind, of->name)
                   : fmt::format("{}.{}[{}:{}]", kind, of->name, range.begin - of->offset,
                                 range.end - of->offset);
  }
  std::vector<index> shape() const {
    return whole() ? of->shape : std::vector<index>{range.count()};
  }
};

std::vector<piece> pieces_in(const parameter_layout& layout, token_range range) {
  std::vector<piece> pieces;
  for (const parameter& p : layout.all())
    if (const token_range common = overlap(range_of(p), range); common.count() > 0)
      pieces.push_back({&p, common});
  return pieces;
}

std::span<float> within(std::span<float> array, token_range of, token_range wanted) {
  return array.subspan(static_cast<std::size_t>(wanted.begin - of.begin),
                       static_cast<std::size_t>(wanted.count()));
}

void check_tensor(const safetensors_file& file, const piece& p, const char* kind) {
  const std::string name = p.name(kind);
  const tensor_info* info = file.find(name);
  if (!info)
    fail(errc::bad_input, "{}: tensor {} is missing", file.path().string(), in_quotes(name));
  if (info->type != dtype::f32 || info->shape != p.shape())
    fail(errc::bad_input, "{}: tensor {} is {} {}; expected F32 {}", file.path().string(),
         in_quotes(name), info->type_name, shape_text(info->shape), shape_text(p.shape()));
}

/// Reads `wanted`, which lies within the piece.
void read_piece(const safetensors_file& file, const piece& p, const char* kind, token_range wanted,
                std::span<float> out) {
  check_tensor(file, p, kind);
  file.read_bytes(p.name(kind),
                  static_cast<std::uint64_t>(wanted.begin - p.range.begin) * sizeof(float),
                  std::as_writable_bytes(out));
}

}  // namespace

optimizer_shard shard_in(const parameter_store& store, token_range range, bool with_master) {
  const token_range all{0, store.layout().total()};
  optimizer_shard s{range,
                    within(store.first_moments(), all, range),
                    within(store.second_moments(), all, range),
                    {}};
  if (with_master) s.master = within(store.weights(), all, range);
  return s;
}

std::string optimizer_part_name(const rank_share& at) {
  return fmt::format("optimizer-{:05}-of-{:05}.safetensors", at.rank + 1, at.ranks);
}

bool is_optimizer_part(const std::string& file_name) {
  return file_name.starts_with("optimizer-") && file_name.ends_with(".safetensors");
}

void write_optimizer_part(const std::filesystem::path& folder, const parameter_layout& layout,
                          const optimizer_shard& shard, const rank_share& at) {
  LS_ASSERT(shard.range == at.part(layout.total()), "a rank writes the range that falls to it");
  std::vector<tensor_source> tensors;
  for (const piece& p : pieces_in(layout, shard.range)) {
    const auto add = [&](const char* kind, std::span<float> array) {
      tensors.push_back(from_floats(p.name(kind), p.shape(), within(array, shard.range, p.range)));
    };
    add(first_moment, shard.first_moment);
    add(second_moment, shard.second_moment);
    if (!shard.master.empty()) add(master, shard.master);
  }
  write_safetensors(folder / optimizer_part_name(at), tensors);
}

optimizer_parts::optimizer_parts(const std::filesystem::path& folder,
                                 const parameter_layout& layout, index ranks)
    : layout_(layout) {
  for (index r = 0; r < ranks; ++r) files_.emplace_back(folder / optimizer_part_name({r, ranks}));
}

void optimizer_parts::read(const optimizer_shard& shard) const {
  const auto ranks = static_cast<index>(files_.size());
  for (index r = 0; r < ranks; ++r) {
    const token_range held = rank_share{r, ranks}.part(layout_.total());
    if (overlap(held, shard.range).count() == 0) continue;
    const safetensors_file& file = files_[static_cast<std::size_t>(r)];
    for (const piece& p : pieces_in(layout_, held)) {
      const token_range wanted = overlap(p.range, shard.range);
      if (wanted.count() == 0) continue;
      const auto fill = [&](const char* kind, std::span<float> array) {
        read_piece(file, p, kind, wanted, within(array, shard.range, wanted));
      };
      fill(first_moment, shard.first_moment);
      fill(second_moment, shard.second_moment);
      if (!shard.master.empty()) fill(master, shard.master);
    }
  }
}

}  // namespace longstraw::models
