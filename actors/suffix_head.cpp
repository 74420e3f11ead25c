#include <longstraw/actors/suffix_head.hpp>

#include <algorithm>
#include <cmath>

namespace longstraw::actors {

using namespace messages;

namespace {

const models::response& response_of(const token_pass& pass) {
  return pass.of->data->responses[static_cast<std::size_t>(pass.response)];
}
response_result& result_of(const token_pass& pass) {
  return pass.of->results[static_cast<std::size_t>(pass.response)];
}

/// The rank's part of something that has one value a token of the suffix.
template <class T>
std::span<T> slice_of(const token_pass& pass, std::span<T> whole) {
  return whole.subspan(static_cast<std::size_t>(pass.positions.begin - pass.whole.begin),
                       static_cast<std::size_t>(pass.positions.count()));
}

std::size_t head_floats(const token_pass& pass) {
  return static_cast<std::size_t>(
      pass.of->model->head_workspace_floats(pass.at.largest_part(pass.whole.count())));
}

// Behind the head's own workspace lies the gradient by the log-probabilities.
models::head_pass head_of(token_pass& pass, kernels::executor& on) {
  models::head_pass head;
  head.hidden = pass.hidden;
  head.d_hidden = pass.d_hidden;
  head.targets = slice_of(pass, std::span<const token_id>(response_of(pass).tokens));
  head.temperature = static_cast<float>(pass.of->loss.temperature);
  head.logps = slice_of(pass, std::span<float>(pass.logps));
  head.entropies = slice_of(pass, std::span<float>(pass.entropies));
  head.workspace = pass.space->head.floats().first(head_floats(pass));
  head.on = &on;
  return head;
}

/// What every result rests on: a NaN that goes unnoticed would be printed, or become a loss.
void check_finite(const token_pass& pass, std::span<const float> slice, const char* what) {
  const auto bad = std::ranges::find_if(slice, [](float v) { return !std::isfinite(v); });
  if (bad == slice.end()) return;
  const index token = pass.positions.begin - pass.whole.begin + (bad - slice.begin());
  fail(errc::not_finite, "the {} of token {} of response {} of {} is {}; {}", what, token,
       pass.response, pass.of->data->name, *bad,
       pass.of->commits ? "nothing was committed" : "weights or data make it so");
}

}  // namespace

void score_slice(token_pass& pass, kernels::executor& on) {
  const auto tokens = static_cast<std::size_t>(pass.whole.count());
  pass.logps.assign(tokens, 0.0f);
  pass.entropies.assign(tokens, 0.0f);
  if (pass.positions.count() == 0) return;
  models::head_pass head = head_of(pass, on);
  pass.of->model->head_forward(head);
  check_finite(pass, head.logps, "log-probability");
  check_finite(pass, head.entropies, "entropy");
}

index score_floats(index tokens) { return 2 * tokens; }

void give_scores(const token_pass& pass, std::span<float> to) {
  const auto logps = slice_of(pass, std::span<const float>(pass.logps));
  const auto entropies = slice_of(pass, std::span<const float>(pass.entropies));
  std::ranges::copy(entropies, std::ranges::copy(logps, to.begin()).out);
}

void take_scores(token_pass& pass, std::span<const std::span<const float>> given) {
  for (std::size_t r = 0; r < given.size(); ++r) {
    const token_range slice = pass.at.slice(pass.whole, static_cast<index>(r));
    const auto first = slice.begin - pass.whole.begin;
    const auto tokens = static_cast<std::size_t>(slice.count());
    std::ranges::copy(given[r].first(tokens), pass.logps.begin() + first);
    std::ranges::copy(given[r].subspan(tokens, tokens), pass.entropies.begin() + first);
  }
}

void note_scores(const token_pass& pass, bool scored) {
  if (pass.at.rank != 0) return;
  response_result& result = result_of(pass);
  result.logps = pass.logps;
  result.entropies = pass.entropies;
  result.scored |= scored;
  // Nothing was given and nothing scored: the parameters are those of the sampling policy, and
  // scoring would have computed these very bits.
  if (result.old_logps.empty()) result.old_logps = pass.logps;
}

void backward_from_loss(token_pass& pass, kernels::executor& on) {
  job& of = *pass.of;
  const models::response& response = response_of(pass);
  // Rank 0 notes a response's own log-probabilities as the old ones while others may be here: they are read only where
  // they were known before.
  const bool known = !response.old_logps.empty() || of.scores_first;
  const std::vector<float>& old_logps = known ? result_of(pass).old_logps : pass.logps;
  const std::span<float> d_logps = pass.space->head.floats().subspan(
      head_floats(pass), static_cast<std::size_t>(pass.whole.count()));
  const models::response_loss loss =
      models::evaluate_response(d_logps, pass.logps, old_logps, response.ref_logps, pass.entropies,
                                response.advantage, response.loss_tokens, of.counts, of.loss);
  if (!std::isfinite(loss.loss))
    fail(errc::not_finite, "the loss of response {} of {} is {}; nothing was committed",
         pass.response, of.data->name, loss.loss);
  if (pass.at.rank == 0) result_of(pass).loss = loss;
  if (pass.positions.count() == 0) return;
  models::head_pass head = head_of(pass, on);
  head.d_logps = slice_of(pass, std::span<const float>(d_logps));
  head.gradients = (*of.gradients)[static_cast<std::size_t>(pass.at.rank)];
  of.model->head_backward(head);
}

}  // namespace longstraw::actors
