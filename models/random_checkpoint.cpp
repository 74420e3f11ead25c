#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>

#include <cmath>
#include <memory>
#include <numbers>

namespace longstraw::models {
namespace {

/// Uniform and normal numbers from a seed, spelled out here because the standard library's
/// distributions may differ from one implementation to the next. SplitMix64 (Steele, Lea, Flood
/// 2014).
class random_stream {
 public:
  explicit random_stream(std::uint64_t seed) : state_(seed) {}

  /// In (0, 1): never 0, whose logarithm is taken.
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

  /// Box and Muller 1958.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    const double angle = 2.0 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

std::vector<float> values_of(const parameter& p, const model_config& c, double deviation,
                             std::uint64_t seed) {
  random_stream random(seed);
  std::vector<float> v(static_cast<std::size_t>(p.count));
  if (p.name.ends_with("linear_attn.norm.weight")) {
    std::fill(v.begin(), v.end(), 1.0f);
  } else if (p.name.ends_with("norm.weight")) {
    std::fill(v.begin(), v.end(), c.norm == kernels::norm_weight::plain ? 1.0f : 0.0f);
  } else if (p.name.ends_with("A_log")) {
    for (float& x : v) x = static_cast<float>(std::log(16.0 * random.uniform()));
  } else if (p.name.ends_with("dt_bias")) {
    // The inverse of softplus, so that the step size itself is log-uniform.
    for (float& x : v) {
      const double dt = std::exp(std::log(0.001) + random.uniform() * std::log(100.0));
      x = static_cast<float>(dt + std::log(-std::expm1(-dt)));
    }
  } else if (!p.name.ends_with(".bias")) {
    for (float& x : v) x = static_cast<float>(deviation * random.normal());
  }
  return v;
}

/// A tensor that is made when its first block is written and freed after its last, so that one
/// tensor is held at a time.
tensor_source random_source(const parameter& p, const model_config& c, double deviation,
                            std::uint64_t seed, dtype type) {
  auto values = std::make_shared<std::vector<float>>();
  tensor_source t;
  t.name = p.name;
  t.shape = p.shape;
  t.type = type;
  const std::uint64_t bytes = t.bytes();
  t.fill = [=, &c](std::uint64_t offset, std::span<std::byte> block) {
    if (offset == 0) *values = values_of(p, c, deviation, seed);
    from_floats(p.name, p.shape, *values, type).fill(offset, block);
    if (offset + block.size() == bytes) std::vector<float>().swap(*values);
  };
  return t;
}

dtype dtype_named(const json_fields& f) {
  const char* field = f.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = f.text(field, "float32");
  if (name == "float32") return dtype::f32;
  if (name == "bfloat16") return dtype::bf16;
  if (name == "float16") return dtype::f16;
  f.reject(field, "float32, bfloat16 or float16");
}

}  // namespace

void write_random_checkpoint(const std::filesystem::path& folder, const std::string& config_text,
                             std::uint64_t seed) {
  const model_config config = parse_config(config_text, "config.json");
  const auto document = parse_json(config_text, "config.json");
  const json_fields top(document, "config.json");
  const json_fields fields = top.has("text_config") ? top.object("text_config") : top;
  const double deviation = fields.number("initializer_range", 0.0, 10.0, 0.02);
  const dtype type = dtype_named(top.has("dtype") || top.has("torch_dtype") ? top : fields);
  const parameter_layout layout = layout_of(config);

  // One stream a tensor: its values do not depend on the order of writing.
  random_stream seeds(seed);
  std::vector<tensor_source> tensors;
  for (const parameter& p : layout.all())
    tensors.push_back(random_source(p, config, deviation, seeds.next(), type));

  check_replaceable(folder);
  replace_folder(folder, [&](const std::filesystem::path& fresh) {
    const auto file = open_for_writing(fresh / "config.json");
    write_all(file.get(), fresh / "config.json", config_text);
    write_safetensors(fresh / "model.safetensors", tensors, {{"format", "pt"}});
  });
}

}  // namespace longstraw::models
