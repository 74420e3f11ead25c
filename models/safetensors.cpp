#include <longstraw/models/convert.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>
#include <longstraw/models/safetensors.hpp>

#include <algorithm>
#include <bit>
#include <unistd.h>
#include <utility>

namespace longstraw::models {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// The format's own limit.
constexpr std::uint64_t header_bytes_max = 100'000'000;
constexpr std::size_t block_values = std::size_t{1} << 18;

const tensor_info& need(const safetensors_file& file, const std::string& name, std::size_t count) {
  const tensor_info* info = file.find(name);
  if (!info)
    fail(errc::bad_input, "{}: tensor {} is missing", file.path().string(), in_quotes(name));
  if (static_cast<std::size_t>(info->count()) != count)
    fail(errc::bad_input, "{}: tensor {} has shape {}; expected {} values", file.path().string(),
         in_quotes(name), shape_text(info->shape), count);
  return *info;
}

[[noreturn]] void wrong_dtype(const safetensors_file& file, const std::string& name,
                              const tensor_info& info, const char* expected) {
  fail(errc::bad_input, "{}: tensor {} has dtype {}; expected {}", file.path().string(),
       in_quotes(name), info.type_name, expected);
}

/// Reads `out.size()` values of type Disk in blocks and hands each block to `convert`.
template <class Disk, class T, class Convert>
void read_blocks(int fd, const std::filesystem::path& path, std::uint64_t begin, std::span<T> out,
                 Convert&& convert) {
  std::vector<Disk> block(std::min(out.size(), block_values));
  for (std::size_t at = 0; at < out.size(); at += block.size()) {
    const auto part = std::span(block).first(std::min(block.size(), out.size() - at));
    read_exactly(fd, path, begin + at * sizeof(Disk), std::as_writable_bytes(part));
    convert(out.subspan(at, part.size()), std::span<const Disk>(part));
  }
}

template <class T, class Disk>
void cast_all(std::span<T> out, std::span<const Disk> in) {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = static_cast<T>(in[i]);
}

}  // namespace

safetensors_file::safetensors_file(const std::filesystem::path& path) : path_(path) {
  descriptor file = open_for_reading(path);
  const std::uint64_t bytes = size_of(file.get(), path);
  std::uint64_t header_bytes = 0;
  if (bytes < sizeof header_bytes)
    fail(errc::bad_input,
         "{} has {} bytes; a safetensors file begins with 8 bytes of header length", path.string(),
         bytes);
  read_exactly(file.get(), path, 0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  const std::uint64_t after_length = bytes - sizeof header_bytes;
  if (header_bytes > header_bytes_max || header_bytes > after_length)
    fail(errc::bad_input, "{} announces a header of {} bytes; expected at most {}", path.string(),
         header_bytes, std::min(header_bytes_max, after_length));
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  read_exactly(file.get(), path, sizeof header_bytes, std::as_writable_bytes(std::span(header)));
  const std::uint64_t data_begin = sizeof header_bytes + header_bytes;
  tensors_ = parse_safetensors_header(header, bytes - data_begin, path.string(), metadata_);
  for (auto& [name, info] : tensors_) {
    info.begin += data_begin;
    info.end += data_begin;
  }
  descriptor_ = file.release();
}

safetensors_file::~safetensors_file() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

safetensors_file::safetensors_file(safetensors_file&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      tensors_(std::move(other.tensors_)),
      metadata_(std::move(other.metadata_)) {}

safetensors_file& safetensors_file::operator=(safetensors_file&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(tensors_, other.tensors_);
  std::swap(metadata_, other.metadata_);
  return *this;
}

const tensor_info* safetensors_file::find(const std::string& name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

void safetensors_file::read_floats(const std::string& name, std::span<float> out) const {
  const tensor_info& info = need(*this, name, out.size());
  switch (info.type) {
    case dtype::f32:
      return read_exactly(descriptor_, path_, info.begin, std::as_writable_bytes(out));
    case dtype::bf16:
      return read_blocks<std::uint16_t>(descriptor_, path_, info.begin, out, widen_bf16);
    case dtype::f16:
      return read_blocks<std::uint16_t>(descriptor_, path_, info.begin, out, widen_f16);
    case dtype::f64:
      return read_blocks<double>(descriptor_, path_, info.begin, out, cast_all<float, double>);
    default:
      wrong_dtype(*this, name, info, "F64, F32, F16 or BF16");
  }
}

void safetensors_file::read_doubles(const std::string& name, std::span<double> out) const {
  const tensor_info& info = need(*this, name, out.size());
  if (info.type == dtype::f64)
    return read_exactly(descriptor_, path_, info.begin, std::as_writable_bytes(out));
  std::vector<float> narrow(out.size());
  read_floats(name, narrow);
  std::copy(narrow.begin(), narrow.end(), out.begin());
}

void safetensors_file::read_integers(const std::string& name, std::span<std::int64_t> out) const {
  const tensor_info& info = need(*this, name, out.size());
  if (info.type == dtype::i64)
    return read_exactly(descriptor_, path_, info.begin, std::as_writable_bytes(out));
  if (info.type != dtype::i32) wrong_dtype(*this, name, info, "I64 or I32");
  read_blocks<std::int32_t>(descriptor_, path_, info.begin, out,
                            cast_all<std::int64_t, std::int32_t>);
}

void safetensors_file::read_bytes(const std::string& name, std::uint64_t offset,
                                  std::span<std::byte> out) const {
  const tensor_info* info = find(name);
  LS_ASSERT(info != nullptr, "bytes are read from a tensor that the file holds");
  LS_ASSERT(offset + out.size() <= info->end - info->begin, "bytes are read within the tensor");
  read_exactly(descriptor_, path_, info->begin + offset, out);
}

}  // namespace longstraw::models
