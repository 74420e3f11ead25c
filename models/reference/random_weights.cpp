#include <longstraw/models/reference/random_weights.hpp>

#include <cmath>
#include <random>
#include <string_view>

namespace longstraw::models::reference {

void fill_random(std::span<float> weights, const model_config& config,
                 const parameter_layout& layout, std::uint64_t seed) {
  LS_ASSERT(static_cast<index>(weights.size()) == layout.total(), "weights have that layout");
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto has = [](const std::string& name, std::string_view part) {
    return name.find(part) != std::string::npos;
  };
  for (const parameter& p : layout.all()) {
    const bool one_plus = config.norm == kernels::norm_weight::one_plus;
    const bool is_norm = has(p.name, "norm.weight");
    const bool neutral_one = is_norm && (!one_plus || has(p.name, "linear_attn.norm"));
    const double fan_in = static_cast<double>(p.count / p.shape[0]);
    const double spread = is_norm || has(p.name, ".bias") ? 0.1
                          : has(p.name, "embed_tokens")   ? 0.5
                                                          : 0.8 / std::sqrt(fan_in);
    for (float& w :
         weights.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count))) {
      if (has(p.name, "A_log"))
        w = static_cast<float>(std::log(1 + 15 * uniform(engine)));
      else if (has(p.name, "dt_bias"))  // the inverse of softplus at dt in [0.001, 0.1]
        w = static_cast<float>(std::log(std::expm1(std::pow(10.0, -3 + 2 * uniform(engine)))));
      else
        w = static_cast<float>((neutral_one ? 1.0 : 0.0) + spread * normal(engine));
    }
  }
}

}  // namespace longstraw::models::reference
