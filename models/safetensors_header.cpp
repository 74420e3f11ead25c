// The header of a safetensors file: parsed event by event, so that a hostile text is refused at its
// first fault and costs no more memory than the tensors it names; then checked as a whole.

#include <longstraw/models/json_text.hpp>
#include <longstraw/models/safetensors.hpp>

#include <algorithm>
#include <limits>
#include <optional>

namespace longstraw::models {
namespace {

struct known_dtype {
  const char* name;
  dtype type;
  int bits;
};
// All dtypes of the format; those that nothing here reads are carried along as `other`.
constexpr known_dtype known_dtypes[] = {
    {"F64", dtype::f64, 64},
    {"F32", dtype::f32, 32},
    {"F16", dtype::f16, 16},
    {"BF16", dtype::bf16, 16},
    {"I64", dtype::i64, 64},
    {"I32", dtype::i32, 32},
    {"I16", dtype::i16, 16},
    {"I8", dtype::i8, 8},
    {"U8", dtype::u8, 8},
    {"BOOL", dtype::boolean, 8},
    {"U64", dtype::other, 64},
    {"U32", dtype::other, 32},
    {"U16", dtype::other, 16},
    {"C64", dtype::other, 64},
    {"F8_E4M3", dtype::other, 8},
    {"F8_E5M2", dtype::other, 8},
    {"F8_E8M0", dtype::other, 8},
    {"F8_E4M3FNUZ", dtype::other, 8},
    {"F8_E5M2FNUZ", dtype::other, 8},
    {"F6_E2M3", dtype::other, 6},
    {"F6_E3M2", dtype::other, 6},
    {"F4", dtype::other, 4},
};
constexpr std::size_t dimensions_max = 32;

class header_reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  header_reader(std::string_view text, const std::string& file,
                std::map<std::string, tensor_info>& tensors,
                std::map<std::string, std::string>& metadata)
      : text_(text), file_(file), tensors_(tensors), metadata_(metadata) {}

  bool start_object(std::size_t) override {
    switch (place_) {
      case place::outside:
        place_ = place::top;
        return true;
      case place::after_name:
        place_ = place::tensor;
        return true;
      case place::after_metadata:
        place_ = place::metadata;
        return true;
      default:
        misplaced("an object");
    }
  }
  bool end_object() override {
    if (place_ == place::tensor) finish_tensor();
    place_ = place_ == place::top ? place::outside : place::top;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == place::after_shape)
      place_ = place::shape;
    else if (place_ == place::after_offsets)
      place_ = place::offsets;
    else
      misplaced("an array");
    return true;
  }
  bool end_array() override {
    if (place_ == place::offsets && offsets_.size() != 2)
      refuse(fmt::format("has {} data_offsets; expected begin and end", offsets_.size()));
    place_ = place::tensor;
    return true;
  }

  bool key(std::string& name) override {
    if (place_ == place::metadata) {
      key_ = name;
      if (metadata_.count(name))
        fail(errc::bad_input, "{}: __metadata__ names {} twice", file_, in_quotes(name));
    } else if (place_ == place::top) {
      tensor_ = name;
      dtype_.reset();
      has_shape_ = has_offsets_ = false;
      shape_.clear();
      offsets_.clear();
      if (name == "__metadata__") {
        if (seen_metadata_) fail(errc::bad_input, "{}: __metadata__ is there twice", file_);
        seen_metadata_ = true;
        place_ = place::after_metadata;
      } else {
        if (tensors_.count(name))
          fail(errc::bad_input, "{}: tensor {} is there twice", file_, in_quotes(name));
        place_ = place::after_name;
      }
    } else if (name == "dtype" && !dtype_) {
      place_ = place::after_dtype;
    } else if (name == "shape" && !has_shape_) {
      has_shape_ = true;
      place_ = place::after_shape;
    } else if (name == "data_offsets" && !has_offsets_) {
      has_offsets_ = true;
      place_ = place::after_offsets;
    } else {
      refuse(fmt::format("has a field {}; expected dtype, shape and data_offsets, each once",
                         in_quotes(name)));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == place::metadata) {
      metadata_.emplace(key_, std::move(value));
    } else if (place_ == place::after_dtype) {
      dtype_ = std::move(value);
      place_ = place::tensor;
    } else {
      misplaced(in_quotes(value));
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == place::offsets) {
      if (offsets_.size() == 2) refuse("has more than two data_offsets");
      offsets_.push_back(value);
    } else if (place_ == place::shape) {
      if (shape_.size() == dimensions_max)
        refuse(fmt::format("has more than {} dimensions", dimensions_max));
      if (value > static_cast<std::uint64_t>(std::numeric_limits<index>::max()))
        refuse(fmt::format("has a dimension of {}, more than 63 bits hold", value));
      shape_.push_back(static_cast<index>(value));
    } else {
      misplaced(std::to_string(value));
    }
    return true;
  }
  bool number_integer(number_integer_t value) override { misplaced(std::to_string(value)); }
  bool number_float(number_float_t, const std::string& value) override {
    misplaced(in_quotes(value));
  }
  bool null() override { misplaced("null"); }
  bool boolean(bool) override { misplaced("a boolean"); }
  bool binary(binary_t&) override { misplaced("binary data"); }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail(errc::bad_input, "{}: the header is not JSON: {}", file_, json_fault(text_, byte));
  }

 private:
  /// What has just been read; the value that may follow depends on it alone.
  enum class place {
    outside,
    top,
    after_name,
    tensor,
    after_dtype,
    after_shape,
    shape,
    after_offsets,
    offsets,
    after_metadata,
    metadata,
  };

  [[noreturn]] void refuse(const std::string& what) const {
    fail(errc::bad_input, "{}: tensor {} {}", file_, in_quotes(tensor_), what);
  }
  [[noreturn]] void misplaced(const std::string& value) const {
    switch (place_) {
      case place::outside:
        fail(errc::bad_input, "{}: the header is {}; expected a JSON object", file_, value);
      case place::after_metadata:
        fail(errc::bad_input, "{}: __metadata__ is {}; expected an object", file_, value);
      case place::metadata:
        fail(errc::bad_input, "{}: __metadata__ field {} is {}; expected a text", file_,
             in_quotes(key_), value);
      case place::after_name:
        refuse(fmt::format("is {}; expected an object", value));
      case place::after_dtype:
        refuse(fmt::format("has dtype {}; expected a text", value));
      case place::after_shape:
      case place::shape:
        refuse(fmt::format("has {} as its shape or in it; expected whole numbers", value));
      default:
        refuse(fmt::format("has {} in data_offsets; expected two whole numbers", value));
    }
  }

  void finish_tensor() {
    if (!dtype_ || !has_shape_ || !has_offsets_)
      refuse(fmt::format("has no {}", !dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets"));
    const auto* known = std::find_if(std::begin(known_dtypes), std::end(known_dtypes),
                                     [&](const known_dtype& d) { return *dtype_ == d.name; });
    if (known == std::end(known_dtypes))
      refuse(fmt::format("has dtype {}, which the format does not know", in_quotes(*dtype_)));
    tensor_info info;
    info.type = known->type;
    info.type_name = known->name;
    info.shape = shape_;
    info.begin = offsets_[0];
    info.end = offsets_[1];
    check_bytes(info, static_cast<std::uint64_t>(known->bits));
    tensors_.emplace(tensor_, std::move(info));
  }

  void check_bytes(const tensor_info& info, std::uint64_t bits) const {
    // Dimensions of zero are left out, so that [2^40, 2^40, 0] cannot slip an overflow past the
    // check.
    std::uint64_t total_bits = bits;
    bool empty = false;
    for (const index n : info.shape) {
      if (n == 0)
        empty = true;
      else if (__builtin_mul_overflow(total_bits, static_cast<std::uint64_t>(n), &total_bits))
        refuse(fmt::format("has shape {}, more than 64 bits can count", shape_text(info.shape)));
    }
    if (empty) total_bits = 0;
    if (total_bits % 8 != 0)
      refuse(fmt::format("has shape {} of {}, which is no whole number of bytes",
                         shape_text(info.shape), info.type_name));
    if (info.end < info.begin)
      refuse(fmt::format("has data_offsets [{}, {}]; expected begin <= end", info.begin, info.end));
    if (info.end - info.begin != total_bits / 8)
      refuse(fmt::format("has {} bytes in data_offsets [{}, {}]; expected {} for {} of shape {}",
                         info.end - info.begin, info.begin, info.end, total_bits / 8,
                         info.type_name, shape_text(info.shape)));
  }

  std::string_view text_;
  const std::string& file_;
  std::map<std::string, tensor_info>& tensors_;
  std::map<std::string, std::string>& metadata_;

  place place_ = place::outside;
  bool seen_metadata_ = false;
  std::string key_, tensor_;
  std::optional<std::string> dtype_;
  bool has_shape_ = false, has_offsets_ = false;
  std::vector<index> shape_;
  std::vector<std::uint64_t> offsets_;
};

/// Every byte of the data belongs to one tensor: no hole in which something could hide, no byte
/// read as two tensors.
void check_ranges(const std::map<std::string, tensor_info>& tensors, std::uint64_t data_bytes,
                  const std::string& file) {
  std::vector<const std::pair<const std::string, tensor_info>*> order;
  order.reserve(tensors.size());
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t reached = 0;
  const std::string* before = nullptr;
  for (const auto* entry : order) {
    const auto& [name, info] = *entry;
    if (info.end > data_bytes)
      fail(errc::bad_input,
           "{}: tensor {} has data_offsets [{}, {}], but the file has {} bytes of data", file,
           in_quotes(name), info.begin, info.end, data_bytes);
    if (info.begin < reached)
      fail(errc::bad_input, "{}: tensors {} and {} overlap at byte {} of the data", file,
           in_quotes(*before), in_quotes(name), info.begin);
    if (info.begin > reached)
      fail(errc::bad_input, "{}: no tensor owns bytes {} to {} of the data, before tensor {}", file,
           reached, info.begin, in_quotes(name));
    reached = info.end;
    before = &name;
  }
  if (reached != data_bytes)
    fail(errc::bad_input,
         "{}: the tensors end at byte {} of the data, but the file has {} bytes of data", file,
         reached, data_bytes);
}

}  // namespace

std::string_view to_string(dtype t) {
  for (const known_dtype& d : known_dtypes)
    if (d.type == t && t != dtype::other) return d.name;
  return "another dtype";
}

std::size_t bytes_of(dtype t) {
  for (const known_dtype& d : known_dtypes)
    if (d.type == t && t != dtype::other) return static_cast<std::size_t>(d.bits) / 8;
  return 0;
}

std::string shape_text(std::span<const index> shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    out += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

index tensor_info::count() const {
  index n = 1;
  for (const index d : shape) {
    if (d == 0) return 0;
    n *= d;
  }
  return n;
}

std::map<std::string, tensor_info> parse_safetensors_header(
    std::string_view json, std::uint64_t data_bytes, const std::string& file,
    std::map<std::string, std::string>& metadata) {
  std::map<std::string, tensor_info> tensors;
  metadata.clear();
  header_reader reader(json, file, tensors, metadata);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  check_ranges(tensors, data_bytes, file);
  return tensors;
}

}  // namespace longstraw::models
