#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>

#include <algorithm>
#include <set>

namespace longstraw::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr std::uint64_t index_bytes_max = std::uint64_t{256} << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// weight_map of the index: tensor name to shard name. A shard name is a plain file name: an index
/// from outside must not make this process open what lies elsewhere.
std::map<std::string, std::string> read_index(const fs::path& file) {
  const auto document = parse_json(read_text(file, index_bytes_max), file.string());
  const json_fields top(document, file.string());
  top.object("weight_map");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : document.at("weight_map").items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!plain)
      fail(errc::bad_input,
           "{}: tensor {} lies in {}; expected the name of a file in the same folder",
           file.string(), in_quotes(tensor), shown(shard));
    shards.emplace(tensor, name);
  }
  if (shards.empty())
    fail(errc::bad_input, "{}: \"weight_map\" is empty; expected tensors and their files",
         file.string());
  return shards;
}

/// Language weights of a qwen3_5 checkpoint lie under "model." or "model.language_model.",
/// depending on which class saved it; the embedding decides.
void settle_prefix(model_config& c, const std::map<std::string, std::size_t>& file_of) {
  if (c.arch != architecture::qwen3_5) return;
  const auto has = [&](const std::string& prefix) {
    return file_of.count(prefix + "embed_tokens.weight") != 0;
  };
  const std::string other = c.tensor_prefix == "model." ? "model.language_model." : "model.";
  if (has(c.tensor_prefix) || !has(other)) return;
  c.tensor_prefix = other;
  c.notices.push_back(fmt::format("language weights are named {}*", other));
}

void check_tensor(const safetensors_file& file, const parameter& p) {
  const tensor_info& info = *file.find(p.name);
  if (info.shape != p.shape)
    fail(errc::bad_input, "{}: tensor \"{}\" has shape {}; config.json expects {}",
         file.path().string(), p.name, shape_text(info.shape), shape_text(p.shape));
  if (info.type != dtype::f32 && info.type != dtype::bf16 && info.type != dtype::f16)
    fail(errc::bad_input, "{}: tensor \"{}\" has dtype {}; expected F32, BF16 or F16",
         file.path().string(), p.name, info.type_name);
}

/// One notice a group of tensors that the model does not use.
void note_left_aside(model_config& c, const std::vector<std::string>& names) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const std::string& name : names) {
    const char* group = "other";
    if (name.starts_with("model.visual.")) group = "model.visual.*";
    if (name.starts_with("mtp.")) group = "mtp.*";
    if (name == "lm_head.weight") group = "lm_head.weight (the head is tied to the embedding)";
    groups[group].push_back(name);
  }
  for (const auto& [group, members] : groups)
    c.notices.push_back(group == "other"
                            ? fmt::format("{} tensors unknown to this architecture are left aside, "
                                          "\"{}\" first",
                                          members.size(), members.front())
                            : fmt::format("{} tensors left aside: {}", members.size(), group));
}

/// Files of a checkpoint folder that are not copied: weights in any format. Ours are written,
/// others would be stale.
bool is_weight_file(const fs::path& path) {
  static const std::set<std::string> endings = {
      ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt"};
  return endings.count(path.extension().string()) != 0 ||
         path.filename().string().find(".index.json") != std::string::npos;
}

void copy_whole(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, failure);
  if (failure)
    fail(errc::io_failed, "{} cannot be copied to {}: {}", from.string(), to.string(),
         failure.message());
}

tensor_source as_on_disk(const safetensors_file& file, const std::string& name) {
  const tensor_info& info = *file.find(name);
  tensor_source t;
  t.name = name;
  t.type = info.type;
  t.type_name = info.type_name;
  t.shape = info.shape;
  t.opaque_bytes = info.end - info.begin;
  t.fill = [&file, name](std::uint64_t offset, std::span<std::byte> block) {
    file.read_bytes(name, offset, block);
  };
  return t;
}

/// Tensors of a file in the order of their bytes.
std::vector<std::string> names_in_order(const safetensors_file& file) {
  std::vector<std::string> names;
  for (const auto& [name, info] : file.tensors()) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return file.find(a)->begin < file.find(b)->begin;
  });
  return names;
}

}  // namespace

void check_replaceable(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || fs::is_empty(folder, ignored)) return;
  if (!is_there(folder / "config.json"))
    fail(errc::bad_input,
         "{} holds files but no config.json, so it is not an older checkpoint and is not replaced",
         folder.string());
}

checkpoint::checkpoint(const fs::path& folder) : folder_(folder), config_(read_config(folder)) {
  std::map<std::string, std::string> shard_of;
  std::vector<std::string> names;
  const fs::path index_file = folder / index_name;
  if (is_there(folder / single_name)) {
    names = {single_name};
  } else if (is_there(index_file)) {
    shard_of = read_index(index_file);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : shard_of) {
      if (!shards.insert(shard).second) continue;
      if (!is_there(folder / shard))
        fail(errc::bad_input, "{} is missing; {} says that it holds tensor {}",
             (folder / shard).string(), index_name, in_quotes(tensor));
    }
    names.assign(shards.begin(), shards.end());
  } else {
    fail(errc::bad_input, "{} holds neither {} nor {}; expected a checkpoint folder",
         folder.string(), single_name, index_name);
  }

  for (const std::string& name : names) {
    files_.emplace_back(folder / name);
    for (const auto& [tensor, info] : files_.back().tensors())
      if (const auto [at, fresh] = file_of_.emplace(tensor, files_.size() - 1); !fresh)
        fail(errc::bad_input, "{}: tensor {} lies in {} and in {}", folder.string(),
             in_quotes(tensor), names[at->second], name);
  }
  for (const auto& [tensor, shard] : shard_of) {
    const auto at = file_of_.find(tensor);
    if (at == file_of_.end() || names[at->second] != shard)
      fail(errc::bad_input, "{}: tensor {} is not in {}, where {} places it", folder.string(),
           in_quotes(tensor), shard, index_name);
  }

  settle_prefix(config_, file_of_);
  layout_ = layout_of(config_);
  for (const parameter& p : layout_.all()) {
    const auto at = file_of_.find(p.name);
    if (at == file_of_.end())
      fail(errc::bad_input, "{}: tensor \"{}\" is missing; config.json expects it with shape {}",
           folder.string(), p.name, shape_text(p.shape));
    check_tensor(files_[at->second], p);
  }
  for (const auto& [tensor, file] : file_of_)
    if (!layout_.find(tensor)) left_aside_.push_back(tensor);
  note_left_aside(config_, left_aside_);
}

bool checkpoint::has_tokenizer() const { return is_there(folder_ / "tokenizer.json"); }

bool checkpoint::holds_float32() const {
  return std::all_of(layout_.all().begin(), layout_.all().end(), [&](const parameter& p) {
    return files_[file_of_.at(p.name)].find(p.name)->type == dtype::f32;
  });
}

void checkpoint::read_weights(const parameter_store& store) const {
  LS_ASSERT(store.layout().total() == layout_.total(), "the store has the checkpoint's layout");
  for (const parameter& p : layout_.all())
    files_[file_of_.at(p.name)].read_floats(p.name, store.weights(store.layout().at(p.name)));
}

void checkpoint::write_files(const fs::path& folder, const parameter_store& store) const {
  LS_ASSERT(store.layout().total() == layout_.total(), "the store has the checkpoint's layout");
  for (const safetensors_file& file : files_) {
    std::vector<tensor_source> tensors;
    for (const std::string& name : names_in_order(file)) {
      const parameter* p = layout_.find(name);
      tensors.push_back(p ? from_floats(name, p->shape, store.weights(store.layout().at(name)),
                                        file.find(name)->type)
                          : as_on_disk(file, name));
    }
    write_safetensors(folder / file.path().filename(), tensors, file.metadata());
  }
  const bool sharded = files_.size() != 1 || files_.front().path().filename() != single_name;
  if (sharded) copy_whole(folder_ / index_name, folder / index_name);

  std::error_code failure;
  fs::directory_iterator entries(folder_, failure);
  if (failure)
    fail(errc::io_failed, "{} cannot be listed: {}", folder_.string(), failure.message());
  for (const auto& entry : entries)
    if (entry.is_regular_file() && !is_weight_file(entry.path()) &&
        !entry.path().filename().string().starts_with("."))
      copy_whole(entry.path(), folder / entry.path().filename());
}

void checkpoint::write(const fs::path& folder, const parameter_store& store) const {
  check_replaceable(folder);
  replace_folder(folder, [&](const fs::path& fresh) { write_files(fresh, store); });
}

}  // namespace longstraw::models
