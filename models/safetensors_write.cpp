#include <longstraw/models/convert.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>
#include <longstraw/models/safetensors.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unistd.h>

namespace longstraw::models {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
// The data begins at a multiple of this, so that a reader may map it as an array.
constexpr std::size_t data_alignment = 8;

std::uint64_t element_bytes(const tensor_source& t) {
  return t.type == dtype::other ? 1 : bytes_of(t.type);
}

/// The header text for tensors in that order, and the size of each tensor's data.
std::string header_of(std::span<const tensor_source* const> order,
                      const std::map<std::string, std::string>& metadata,
                      std::vector<std::uint64_t>& sizes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const tensor_source* t : order) {
    LS_ASSERT(!header.contains(t->name), "a tensor is written once");
    header[t->name] = {
        {"dtype", t->type == dtype::other ? t->type_name : std::string(to_string(t->type))},
        {"shape", t->shape},
        {"data_offsets", {at, at + t->bytes()}}};
    sizes.push_back(t->bytes());
    at += t->bytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    fail(errc::bad_input, "a tensor's name is not UTF-8 text; safetensors cannot hold it");
  }
  text.resize((text.size() + data_alignment - 1) / data_alignment * data_alignment, ' ');
  return text;
}

/// Joins small tensors into blocks: one call of the system a block.
class block_writer {
 public:
  block_writer(int fd, const std::filesystem::path& path) : fd_(fd), path_(path) {}

  void add(const tensor_source& t, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes;) {
      if (block_.size() - used_ < element_bytes_max) flush();
      // A block that ends inside a tensor ends at the border of an element.
      const std::uint64_t room = (block_.size() - used_) / element_bytes_max * element_bytes_max;
      const auto part = std::span(block_).subspan(
          used_, static_cast<std::size_t>(std::min<std::uint64_t>(room, bytes - at)));
      t.fill(at, part);
      used_ += part.size();
      at += part.size();
    }
  }

  void flush() {
    write_all(fd_, path_, std::span<const std::byte>(block_).first(used_));
    used_ = 0;
  }

 private:
  static constexpr std::size_t element_bytes_max = 8;
  const int fd_;
  const std::filesystem::path& path_;
  std::vector<std::byte> block_ = std::vector<std::byte>(block_bytes);
  std::size_t used_ = 0;
};

}  // namespace

std::uint64_t tensor_source::bytes() const {
  if (type == dtype::other) return opaque_bytes;
  std::uint64_t n = bytes_of(type);
  for (const index d : shape) n *= static_cast<std::uint64_t>(d);
  return n;
}

tensor_source from_floats(std::string name, std::vector<index> shape, std::span<const float> values,
                          dtype type) {
  LS_ASSERT(type == dtype::f32 || type == dtype::f16 || type == dtype::bf16,
            "floats are written as F32, F16 or BF16");
  tensor_source t;
  t.name = std::move(name);
  t.type = type;
  t.shape = std::move(shape);
  LS_ASSERT(t.bytes() == values.size() * bytes_of(type), "as many values as the shape says");
  t.fill = [values, type](std::uint64_t offset, std::span<std::byte> block) {
    const std::size_t width = bytes_of(type);
    const auto part =
        values.subspan(static_cast<std::size_t>(offset) / width, block.size() / width);
    if (type == dtype::f32) {
      std::memcpy(block.data(), part.data(), block.size());
      return;
    }
    const std::span out(reinterpret_cast<std::uint16_t*>(block.data()), part.size());
    type == dtype::bf16 ? narrow_bf16(out, part) : narrow_f16(out, part);
  };
  return t;
}

void write_safetensors(const std::filesystem::path& path, std::span<const tensor_source> tensors,
                       const std::map<std::string, std::string>& metadata) {
  // Wide elements first: every tensor then begins at a multiple of its element size, which readers
  // that map the file rely on.
  std::vector<const tensor_source*> order;
  for (const tensor_source& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return element_bytes(*a) > element_bytes(*b);
  });
  std::vector<std::uint64_t> sizes;
  const std::string header = header_of(order, metadata, sizes);

  std::filesystem::path partial = path;
  partial += ".partial";
  try {
    const descriptor file = open_for_writing(partial);
    const std::uint64_t header_bytes = header.size();
    write_all(file.get(), partial, std::as_bytes(std::span(&header_bytes, 1)));
    write_all(file.get(), partial, std::string_view(header));
    block_writer data(file.get(), partial);
    for (std::size_t i = 0; i < order.size(); ++i) data.add(*order[i], sizes[i]);
    data.flush();
    sync_file(file.get(), partial);
    if (::rename(partial.c_str(), path.c_str()) != 0)
      fail(errc::io_failed, "{} cannot be renamed to {}: {}", partial.string(), path.string(),
           system_reason(errno));
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
  sync_folder(path.parent_path());
}

}  // namespace longstraw::models
