// Any bytes as a safetensors file: refused with a sentence, or every tensor lies within the file
// and can be read.

#include <longstraw/models/safetensors.hpp>

#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace longstraw::models {

namespace {

void read_all(const safetensors_file& file, std::size_t file_bytes) {
  for (const auto& [name, info] : file.tensors()) {
    LS_ASSERT(info.begin <= info.end && info.end <= file_bytes, "a tensor lies within its file");
    std::vector<std::byte> bytes(info.end - info.begin);
    file.read_bytes(name, 0, bytes);
    const auto count = static_cast<std::size_t>(info.count());
    if (info.type == dtype::i64 || info.type == dtype::i32) {
      std::vector<std::int64_t> values(count);
      file.read_integers(name, values);
    } else if (info.type == dtype::f64 || info.type == dtype::f32 || info.type == dtype::f16 ||
               info.type == dtype::bf16) {
      std::vector<float> values(count);
      file.read_floats(name, values);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The header parser alone, on the whole input and on a claimed data size of the input's choice.
  std::map<std::string, std::string> metadata;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    parse_safetensors_header(text, size > 0 ? data[0] : 0, "header", metadata);
  } catch (const error&) {
  }

  const int fd = ::memfd_create("fuzz", 0);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const safetensors_file file("/proc/self/fd/" + std::to_string(fd));
    read_all(file, size);
  } catch (const error&) {
  }
  ::close(fd);
  return 0;
}

}  // namespace longstraw::models
