#include "random_model.hpp"

#include <longstraw/models/reference/random_weights.hpp>

#include <random>

namespace longstraw::testing {

using models::architecture;
using models::layer_kind;
using models::model_config;

namespace {
model_config dense(architecture arch, index query_heads, index kv_heads, index head_dim) {
  model_config c;
  c.arch = arch;
  c.hidden_size = 24;
  c.intermediate_size = 36;
  c.vocabulary = 50;
  c.query_heads = query_heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.layers = {layer_kind::full_attention, layer_kind::full_attention};
  c.rotary.width = head_dim;
  return c;
}

model_config qwen3_5(std::vector<layer_kind> layers) {
  model_config c = dense(architecture::qwen3_5, 4, 2, 12);
  c.layers = std::move(layers);
  c.rotary.width = 6;
  c.norm = kernels::norm_weight::one_plus;
  c.attention_gate = true;
  c.qk_norm = true;
  c.delta_key_heads = 2;
  c.delta_value_heads = 4;
  c.delta_key_dim = 8;
  c.delta_value_dim = 6;
  c.conv_kernel = 4;
  return c;
}
}  // namespace

std::vector<named_config> small_configs() {
  std::vector<named_config> all;
  const auto delta = layer_kind::gated_delta_net, attention = layer_kind::full_attention;

  all.push_back({"qwen3_5", qwen3_5({delta, attention, delta})});
  model_config odd = qwen3_5({delta, delta, attention});
  odd.tied_embeddings = true;
  odd.hidden_size = 21;
  odd.query_heads = 3;
  odd.kv_heads = 1;
  odd.head_dim = 10;
  odd.rotary.width = 4;
  odd.delta_key_heads = 1;
  odd.delta_value_heads = 3;
  odd.delta_key_dim = 7;
  odd.delta_value_dim = 9;
  odd.conv_kernel = 3;
  all.push_back({"qwen3_5, tied, odd sizes", odd});

  model_config qwen3 = dense(architecture::qwen3, 6, 2, 10);
  qwen3.qk_norm = true;
  all.push_back({"qwen3", qwen3});
  qwen3.attention_bias = true;
  qwen3.tied_embeddings = true;
  qwen3.kv_heads = 6;
  all.push_back({"qwen3, tied, biases", qwen3});

  model_config llama = dense(architecture::llama, 4, 1, 14);
  llama.rms_norm_eps = 1e-5f;
  all.push_back({"llama", llama});
  llama.attention_bias = true;
  llama.mlp_bias = true;
  llama.kv_heads = 2;
  llama.rotary.kind = kernels::rotary_spec::scaling::llama3;
  llama.rotary.factor = 8;
  llama.rotary.original_positions = 64;
  all.push_back({"llama, biases, scaled rotary", llama});
  return all;
}

std::shared_ptr<models::parameter_store> random_parameters(const model_config& config,
                                                           unsigned seed) {
  const auto budget = memory::budget::make(0);
  auto store = std::make_shared<models::parameter_store>(models::layout_of(config),
                                                         models::parameter_use::train, *budget);
  models::reference::fill_random(store->weights(), config, store->layout(), seed);
  return store;
}

std::vector<token_id> random_tokens(index count, index vocabulary, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::uniform_int_distribution<token_id> draw(0, static_cast<token_id>(vocabulary - 1));
  std::vector<token_id> ids(static_cast<std::size_t>(count));
  for (token_id& id : ids) id = draw(engine);
  return ids;
}

}  // namespace longstraw::testing
