#include <longstraw/kernels/embedding.hpp>
#include <longstraw/kernels/head.hpp>
#include <longstraw/models/attention_layer.hpp>
#include <longstraw/models/gated_delta_layer.hpp>
#include <longstraw/models/language_model.hpp>
#include <longstraw/models/workspace.hpp>

namespace longstraw::models {
namespace {
std::vector<std::unique_ptr<layer_program>> programs_of(const model_config& config,
                                                        const parameter_store& store) {
  std::vector<std::unique_ptr<layer_program>> programs;
  for (index l = 0; l < config.layer_count(); ++l) {
    switch (config.layers[static_cast<std::size_t>(l)]) {
      case layer_kind::full_attention:
        programs.push_back(std::make_unique<attention_layer>(config, l, store));
        break;
      case layer_kind::gated_delta_net:
        programs.push_back(std::make_unique<gated_delta_layer>(config, l, store));
        break;
    }
  }
  return programs;
}
}  // namespace

language_model::language_model(model_config config, std::shared_ptr<parameter_store> parameters)
    : language_model(config, parameters, programs_of(config, *parameters)) {}

language_model::language_model(model_config config, std::shared_ptr<parameter_store> parameters,
                               std::vector<std::unique_ptr<layer_program>> layers)
    : config_(std::move(config)),
      parameters_(std::move(parameters)),
      layers_(std::move(layers)),
      embedding_(matrix_of(*parameters_, config_.tensor_prefix + "embed_tokens.weight")),
      head_(config_.tied_embeddings ? embedding_ : matrix_of(*parameters_, "lm_head.weight")),
      final_norm_(vector_of(*parameters_, config_.tensor_prefix + "norm.weight")),
      rotary_frequencies_(kernels::rotary_frequencies(config_.rotary)) {}

void language_model::embed(mat hidden, mat angles, std::span<const token_id> ids,
                           token_range positions, kernels::executor& on) const {
  kernels::embedding_forward(hidden, ids, embedding_.w, on);
  kernels::rotary_angles(angles, positions, rotary_frequencies_, on);
}

void language_model::embed_backward(cmat d_hidden, std::span<const token_id> ids,
                                    std::span<float> gradients, kernels::executor& on) const {
  kernels::embedding_backward(embedding_.d(gradients), d_hidden, ids, on);
}

struct language_model::head_workspace {
  mat normed;               // [tokens, hidden] kept
  mat rstd;                 // [tokens, 1] kept
  mat d_normed;             // [tokens, hidden]
  std::span<float> lse;     // [tokens] kept
  std::span<float> logits;  // kernels::head_workspace_floats, kept while all tokens are one block

  index cut(carver& from, index tokens, index hidden, index vocabulary) {
    normed = from.matrix(tokens, hidden);
    rstd = from.matrix(tokens, 1);
    d_normed = from.matrix(tokens, hidden);
    lse = from.floats(tokens);
    logits = from.floats(kernels::head_workspace_floats(tokens, vocabulary));
    return from.highest();
  }
};

language_model::head_workspace language_model::carve(const head_pass& pass) const {
  carver from(pass.workspace.data());
  head_workspace w;
  const index floats = w.cut(from, pass.hidden.rows, config_.hidden_size, config_.vocabulary);
  LS_ASSERT(floats <= static_cast<index>(pass.workspace.size()),
            "a head pass has the workspace that the model asked for");
  return w;
}

index language_model::head_workspace_floats(index tokens) const {
  carver from(nullptr);
  return head_workspace{}.cut(from, tokens, config_.hidden_size, config_.vocabulary);
}

void language_model::head_forward(head_pass& pass) const {
  const head_workspace w = carve(pass);
  kernels::executor& on = *pass.on;
  kernels::rms_norm_forward(one_head(w.normed), w.rstd, one_head(pass.hidden), final_norm_.w,
                            config_.rms_norm_eps, config_.norm, on);
  kernels::head_forward(pass.logps, pass.entropies, w.lse, w.normed, head_.w, pass.targets,
                        pass.temperature, w.logits, on);
}

void language_model::head_backward(head_pass& pass) const {
  const head_workspace w = carve(pass);
  kernels::executor& on = *pass.on;
  const bool logits_kept = pass.hidden.rows <= kernels::head_block_tokens(config_.vocabulary);
  // A tied head's gradient meets the embedding's in one tensor: both add to it.
  kernels::head_backward(w.d_normed, head_.d(pass.gradients), pass.d_logps, w.lse, w.normed,
                         head_.w, pass.targets, pass.temperature, w.logits, logits_kept, on);
  set_zero(pass.d_hidden, on);
  kernels::rms_norm_backward(one_head(pass.d_hidden), final_norm_.d(pass.gradients),
                             one_head(w.d_normed), one_head(pass.hidden), w.rstd, final_norm_.w,
                             config_.norm, on);
}

void language_model::last_logits(mat logits, cmat hidden, std::span<float> workspace,
                                 kernels::executor& on) const {
  LS_ASSERT(hidden.rows > 0, "logits belong to a token");
  LS_ASSERT(static_cast<index>(workspace.size()) > config_.hidden_size,
            "the workspace holds one normed row and its rstd");
  const cmat last = hidden.row_range(hidden.rows - 1, hidden.rows);
  const mat normed(workspace.data(), 1, config_.hidden_size);
  const mat rstd(workspace.data() + config_.hidden_size, 1, 1);
  kernels::rms_norm_forward(one_head(normed), rstd, one_head(last), final_norm_.w,
                            config_.rms_norm_eps, config_.norm, on);
  kernels::head_logits(logits, normed, head_.w, on);
}

}  // namespace longstraw::models
