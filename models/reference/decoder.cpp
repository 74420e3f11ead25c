#include <longstraw/kernels/reference/embedding.hpp>
#include <longstraw/kernels/reference/head.hpp>
#include <longstraw/kernels/reference/rms_norm.hpp>
#include <longstraw/kernels/reference/rotary.hpp>
#include <longstraw/models/reference/decoder.hpp>
#include <longstraw/models/reference/decoder_layer.hpp>

namespace longstraw::models::reference {

namespace ref = kernels::reference;

namespace {
/// A run of tokens through the whole model, with all that backward needs.
struct run {
  const model_config& config;
  named_weights parameters;
  const decoder_state& before;
  std::span<const token_id> ids;
  tensor angles, hidden, rstd, normed;
  std::vector<layer_trace> traces;

  run(const model_config& c, named_weights p, const decoder_state& s, std::span<const token_id> i)
      : config(c), parameters(p), before(s), ids(i) {
    const auto tokens = static_cast<index>(ids.size());
    angles = tensor(tokens, config.rotary.width);
    ref::rotary_angles<double>(angles.m(), {before.tokens, before.tokens + tokens},
                               kernels::rotary_frequencies(config.rotary));
  }

  decoder_layer layer(index l) const {
    return {&config,      l, parameters, &angles, &before.layers[static_cast<std::size_t>(l)],
            before.tokens};
  }
  std::string embedding() const { return config.tensor_prefix + "embed_tokens.weight"; }
  std::string head() const { return config.tied_embeddings ? embedding() : "lm_head.weight"; }
  std::string norm() const { return config.tensor_prefix + "norm.weight"; }

  void forward(decoder_state* after) {
    const auto tokens = static_cast<index>(ids.size());
    hidden = tensor(tokens, config.hidden_size);
    ref::embedding_forward<double>(hidden.m(), ids, parameters.matrix(embedding()));
    for (index l = 0; l < config.layer_count(); ++l)
      traces.push_back(
          layer(l).forward(hidden, after ? &after->layers[static_cast<std::size_t>(l)] : nullptr));
    normed = tensor(tokens, config.hidden_size);
    rstd = tensor(tokens, 1);
    ref::rms_norm_forward<double>(normed.heads(1), rstd.m(), hidden.heads(1),
                                  parameters.vector(norm()), config.rms_norm_eps, config.norm);
  }

  /// The last `count` rows of the normed hidden state.
  matrix_view<const double> last_normed(std::size_t count) const {
    return normed.m().row_range(normed.rows - static_cast<index>(count), normed.rows);
  }

  token_scores scores(std::span<const token_id> targets, double temperature,
                      std::vector<double>& lse) const {
    token_scores s{std::vector<double>(targets.size()), std::vector<double>(targets.size())};
    lse.resize(targets.size());
    ref::head_forward<double>(s.logps, s.entropies, lse, last_normed(targets.size()),
                              parameters.matrix(head()), targets, temperature);
    return s;
  }

  void backward(std::span<const token_id> targets, std::span<const double> d_logps,
                double temperature, decoder_state* d_before) {
    std::vector<double> lse;
    scores(targets, temperature, lse);
    tensor d_normed(normed.rows, normed.cols), d_hidden = d_normed;
    const auto first = normed.rows - static_cast<index>(targets.size());
    ref::head_backward<double>(
        d_normed.m().row_range(first, normed.rows), parameters.d_matrix(head()), d_logps, lse,
        last_normed(targets.size()), parameters.matrix(head()), targets, temperature);
    ref::rms_norm_backward<double>(d_hidden.heads(1), parameters.d_vector(norm()),
                                   d_normed.heads(1), hidden.heads(1), rstd.m(),
                                   parameters.vector(norm()), config.norm);
    for (index l = config.layer_count() - 1; l >= 0; --l)
      layer(l).backward(d_hidden, traces[static_cast<std::size_t>(l)],
                        d_before ? &d_before->layers[static_cast<std::size_t>(l)] : nullptr);
    ref::embedding_backward<double>(parameters.d_matrix(embedding()), d_hidden.m(), ids);
  }
};
}  // namespace

decoder::decoder(model_config config, parameter_layout layout, std::span<const float> weights)
    : config_(std::move(config)),
      layout_(std::move(layout)),
      weights_(weights.begin(), weights.end()) {}

decoder_state decoder::empty_state() const {
  decoder_state s;
  s.layers.resize(config_.layers.size());
  const index channels = 2 * config_.delta_key_heads * config_.delta_key_dim +
                         config_.delta_value_heads * config_.delta_value_dim;
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    if (config_.layers[l] != layer_kind::gated_delta_net) continue;
    s.layers[l].recurrent.resize(static_cast<std::size_t>(
        config_.delta_value_heads * config_.delta_key_dim * config_.delta_value_dim));
    s.layers[l].tail.resize(static_cast<std::size_t>((config_.conv_kernel - 1) * channels));
  }
  return s;
}

decoder_state decoder::capture(const decoder_state& before, std::span<const token_id> ids) const {
  decoder_state after = before;
  run r(config_, {&layout_, weights_.data()}, before, ids);
  r.forward(&after);
  after.tokens += static_cast<index>(ids.size());
  return after;
}

token_scores decoder::score(const decoder_state& before, std::span<const token_id> ids,
                            std::span<const token_id> targets, double temperature) const {
  run r(config_, {&layout_, weights_.data()}, before, ids);
  r.forward(nullptr);
  std::vector<double> lse;
  return r.scores(targets, temperature, lse);
}

std::vector<double> decoder::last_logits(const decoder_state& before,
                                         std::span<const token_id> ids) const {
  run r(config_, {&layout_, weights_.data()}, before, ids);
  r.forward(nullptr);
  tensor logits(1, config_.vocabulary);
  ref::head_logits<double>(logits.m(), r.last_normed(1), r.parameters.matrix(r.head()));
  return logits.values;
}

void decoder::backward(std::span<double> gradients, const decoder_state& before,
                       std::span<const token_id> ids, std::span<const token_id> targets,
                       std::span<const double> d_logps, double temperature,
                       decoder_state* d_before) const {
  LS_ASSERT(static_cast<index>(gradients.size()) == layout_.total(),
            "gradients have the layout of the weights");
  run r(config_, {&layout_, weights_.data(), gradients.data()}, before, ids);
  r.forward(nullptr);
  r.backward(targets, d_logps, temperature, d_before);
}

}  // namespace longstraw::models::reference
