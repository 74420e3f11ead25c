#include <longstraw/actors/optimizer_step.hpp>

#include <algorithm>
#include <cmath>

namespace longstraw::actors {

namespace {

constexpr index block_floats = index{1} << 16;

/// Calls body(parameter, begin, end) for the part of each tensor that lies in the shard, in places of the flat arrays.
template <class F>
void for_parts(const models::parameter_layout& layout, token_range shard, F&& body) {
  for (const models::parameter& p : layout.all()) {
    const index begin = std::max(p.offset, shard.begin);
    const index end = std::min(p.offset + p.count, shard.end);
    if (begin < end) body(p, begin, end);
  }
}

template <class T>
std::span<T> part(std::span<T> all, index begin, index end) {
  return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

token_range shard_of(const models::parameter_layout& layout, const models::rank_share& at) {
  return at.part(layout.total());
}

void sum_gradients(std::span<float> sum, std::span<const std::span<const float>> given,
                   token_range shard, kernels::executor& on) {
  on.parallel_for(kernels::blocks_of(shard.count(), block_floats), [&](index b, kernels::scratch&) {
    const index begin = shard.begin + b * block_floats;
    const index end = std::min(begin + block_floats, shard.end);
    const auto to = part(sum, begin, end);
    if (sum.data() != given[0].data()) std::ranges::copy(part(given[0], begin, end), to.begin());
    for (std::size_t r = 1; r < given.size(); ++r) {
      const auto add = part(given[r], begin, end);
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += add[i];
    }
  });
}

double gradient_squares(const models::parameter_store& parameters, token_range shard,
                        kernels::executor& on) {
  double sum = 0;
  for_parts(parameters.layout(), shard, [&](const models::parameter& p, index begin, index end) {
    const double squares = kernels::sum_of_squares(part(parameters.gradients(), begin, end), on);
    if (!std::isfinite(squares))
      fail(errc::not_finite, "the gradient of parameter '{}' is not finite; nothing was committed",
           p.name);
    sum += squares;
  });
  return sum;
}

void apply_adamw(const models::parameter_store& parameters, token_range shard,
                 const messages::optimizer_settings& s, double gradient_scale, index step,
                 kernels::executor& on) {
  for_parts(parameters.layout(), shard, [&](const models::parameter& p, index begin, index end) {
    kernels::adamw_settings settings = s.adamw;
    if (s.no_decay_one_dimensional && p.shape.size() < 2) settings.weight_decay = 0;
    const auto weights = part(parameters.weights(), begin, end);
    const auto moments = [&](std::span<float> all) {
      return parameters.keeps_moments() ? part(all, begin, end) : std::span<float>();
    };
    kernels::adamw_update(
        weights, moments(parameters.first_moments()), moments(parameters.second_moments()),
        part(parameters.gradients(), begin, end), gradient_scale, settings, step, on);
    if (!std::isfinite(kernels::sum_of_squares(weights, on)))
      fail(errc::not_finite,
           "the update of parameter '{}' is not finite (learning rate {}, weight decay {}, eps {})",
           p.name, settings.learning_rate, settings.weight_decay, settings.eps);
  });
}

bool carry_through(messages::job& j, memory::arena& scratch) {
  using update = messages::commit_result::update;
  const auto updates = std::span(j.commit.updates).first(static_cast<std::size_t>(j.ranks));
  if (std::ranges::any_of(updates, [](const auto& u) { return u == update::begun; })) return false;
  if (std::ranges::all_of(updates, [](const auto& u) { return u == update::done; })) return true;
  const auto& store = *j.model->parameters();
  try {
    kernels::executor on(1, scratch);
    for (index r = 0; r < j.ranks; ++r) {
      auto& u = updates[static_cast<std::size_t>(r)];
      if (u == update::done) continue;
      u = update::begun;
      apply_adamw(store, shard_of(store.layout(), {r, j.ranks}), j.optimizer, j.commit.clip_scale,
                  j.optimizer_step, on);
      u = update::done;
    }
  } catch (const error&) {  // the update is not finite, as it would have been on its own rank
    return false;
  }
  return true;
}

}  // namespace longstraw::actors
