#pragma once
// The safetensors format: an 8-byte header length, a JSON header of names, dtypes, shapes and byte ranges, then the
// bytes. A file from outside is untrusted: every length, offset, shape and count is checked before it is used, and the
// header's length before anything is allocated for it.

#include <longstraw/memory/view.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace longstraw::models {

enum class dtype { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, other };
std::string_view to_string(dtype t);
/// 0 for `other`.
std::size_t bytes_of(dtype t);
/// "[4096, 128]": for sentences.
std::string shape_text(std::span<const index> shape);

struct tensor_info {
  dtype type = dtype::f32;
  std::string type_name;  ///< as written in the file
  std::vector<index> shape;
  std::uint64_t begin = 0;  ///< byte offsets in the file, half-open
  std::uint64_t end = 0;
  index count() const;
};

/// An open file: header parsed and checked, bytes read on demand.
class safetensors_file {
 public:
  /// errc::bad_input (what is wrong with the file) or errc::io_failed (it cannot be read).
  explicit safetensors_file(const std::filesystem::path& path);
  ~safetensors_file();
  safetensors_file(safetensors_file&&) noexcept;
  safetensors_file& operator=(safetensors_file&&) noexcept;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, tensor_info>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const tensor_info* find(const std::string& name) const;

  /// The tensor's values as floats (from F64, F32, F16 or BF16), converted in blocks. errc::bad_input for another dtype
  /// or if out.size() is not the tensor's count.
  void read_floats(const std::string& name, std::span<float> out) const;
  void read_doubles(const std::string& name, std::span<double> out) const;
  /// From I64 or I32.
  void read_integers(const std::string& name, std::span<std::int64_t> out) const;
  /// Bytes [offset, offset + out.size()) of the tensor as they are.
  void read_bytes(const std::string& name, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::map<std::string, tensor_info> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Checks a header (the JSON text) against the size of the data that follows it. Used by safetensors_file and the fuzzer.
/// Offsets in the result are relative to the first data byte.
std::map<std::string, tensor_info> parse_safetensors_header(
    std::string_view json, std::uint64_t data_bytes, const std::string& file,
    std::map<std::string, std::string>& metadata);

/// A tensor to be written: `fill(offset, bytes)` is called for consecutive blocks and provides the tensor's bytes, so
/// that nothing needs to be held whole.
struct tensor_source {
  std::string name;
  dtype type = dtype::f32;
  std::string type_name;  ///< used if type is `other`
  std::vector<index> shape;
  std::uint64_t opaque_bytes = 0;  ///< size of the data if type is `other`
  std::function<void(std::uint64_t offset, std::span<std::byte> block)> fill;
  std::uint64_t bytes() const;
};

/// `values` (float) as a source of dtype f32, f16 or bf16 (rounded to nearest even). `values` must outlive the write.
tensor_source from_floats(std::string name, std::vector<index> shape, std::span<const float> values,
                          dtype type = dtype::f32);

/// Writes path.partial, syncs it, renames it to path and syncs the folder: the file is there whole or not at all.
/// errc::io_failed names the path and the system's reason; the partial file is removed.
void write_safetensors(const std::filesystem::path& path, std::span<const tensor_source> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace longstraw::models
