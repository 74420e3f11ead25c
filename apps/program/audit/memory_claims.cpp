// What the named memory of a step grows with.

#include "bounds.hpp"
#include "claims.hpp"
#include "data.hpp"

#include <longstraw/kernels/executor.hpp>

namespace longstraw::audit {
namespace {

constexpr index shorter_prompt = 513, longer_prompt = 4097, capacity_chunk = 128;
constexpr unsigned seed = 41;

/// What is measured is memory; nothing needs to be given.
actors::step_settings memory_step(messages::gradient_mode gradient) {
  actors::step_settings s = audit_step(gradient);
  s.loss.beta = 0;
  return s;
}

struct peaks {
  std::size_t total = 0;         ///< highest sum at one moment
  std::size_t lasting = 0;       ///< sum of the peaks of all names but staging and scratch
  std::size_t staging = 0;       ///< data on its way between ranks
  std::size_t staging_plan = 0;  ///< what may be on its way
  std::size_t others = 0;        ///< sum of the other names' peaks
  std::string largest;           ///< name of the largest part
};

peaks peaks_of(const column& c, const setup& how, const models::group& g) {
  trainer t(*c.model, how);
  const actors::step_settings s = memory_step(how.gradient);
  const actors::memory_plan plan = t.plan(g, s);
  t.step(g, s);
  peaks p;
  p.total = t.budget().peak_bytes();
  std::size_t most = 0;
  for (const auto& u : t.budget().report()) {
    (u.name == actors::arena_name::staging ? p.staging : p.others) += u.peak_bytes;
    if (u.name != actors::arena_name::staging && u.name != actors::arena_name::scratch)
      p.lasting += u.peak_bytes;
    if (u.peak_bytes <= most) continue;
    most = u.peak_bytes;
    p.largest = u.name;
  }
  if (const auto at = plan.bytes.find(actors::arena_name::staging); at != plan.bytes.end())
    p.staging_plan = at->second;
  return p;
}

/// Bytes that the conditional state of `tokens` more prompt tokens takes: pages of every layer and,
/// with the full gradient, as much again for their gradients, and a recurrent state at every chunk's
/// border. Pages are whole: the last one of each rank and layer may be partly empty.
std::size_t state_growth(const column& c, const setup& how, index tokens) {
  const models::language_model model(
      c.model->config,
      std::make_shared<models::parameter_store>(c.model->layout, models::parameter_use::forward,
                                                *memory::budget::make(0)));
  const bool full = how.gradient == messages::gradient_mode::full;
  index floats = 0;
  for (index l = 0; l < model.layer_count(); ++l) {
    const models::state_spec s = model.layer(l).state({});
    floats += (tokens + how.ranks * how.page_tokens) * s.page_floats_per_token * (full ? 2 : 1);
    if (full) floats += kernels::blocks_of(tokens, how.chunk_tokens) * s.recurrent_floats;
  }
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace

void measure_capacity(const column& c, std::size_t memory_bytes) {
  cell& here = c.at(claim::execution_capacity);
  attempt(here, [&] {
    setup how = c.how;
    how.chunk_tokens = capacity_chunk;
    how.memory = memory_bytes;
    const auto data = [&](index prompt) {
      return plain_group(prompt, {16, 12}, c.model->config.vocabulary, seed);
    };
    const peaks shorter = peaks_of(c, how, data(shorter_prompt));
    const peaks longer = peaks_of(c, how, data(longer_prompt));
    here.measure({"growth of named memory (bound: state of the added tokens)",
                  static_cast<double>(longer.others) - static_cast<double>(shorter.others),
                  static_cast<double>(state_growth(c, how, longer_prompt - shorter_prompt)),
                  longer.largest, measurement::unit::bytes});
    // Arenas refuse what is beyond the budget: a step that ends is within it.
    here.measure({fmt::format("peak bytes on {} prompt tokens", longer_prompt),
                  static_cast<double>(longer.total), static_cast<double>(memory_bytes),
                  longer.largest, measurement::unit::bytes});
    // How much is on its way at once depends on which rank is ahead; the most that can be does not
    // depend on the prompt.
    if (how.ranks > 1)
      here.measure({"data between ranks (bound: plan of the shorter prompt)",
                    static_cast<double>(longer.staging), static_cast<double>(shorter.staging_plan),
                    actors::arena_name::staging, measurement::unit::bytes});
  });
}

void measure_group_memory(const column& c) {
  cell& here = c.at(claim::group_size_memory);
  attempt(here, [&] {
    const auto data = [&](std::size_t responses) {
      return plain_group(257, std::vector<index>(responses, 24), c.model->config.vocabulary, seed);
    };
    const peaks few = peaks_of(c, c.how, data(2)), many = peaks_of(c, c.how, data(32));
    // The peak of staging depends on which rank is ahead, and scratch is the same whatever the
    // group: either would hide a growth of the rest.
    const double before = static_cast<double>(few.lasting);
    here.measure({"peak bytes but staging and scratch, 32 responses against 2, relative",
                  std::abs(static_cast<double>(many.lasting) - before) / before,
                  group_memory_relative, many.largest});
  });
}

}  // namespace longstraw::audit
