// What the gated delta program promises beyond its mathematics: cutting tokens into passes,
// updating the state in place and leaving out what nobody reads change nothing.

#include "support/model_driver.hpp"
#include "support/random_model.hpp"
#include "support/runner.hpp"

#include <longstraw/models/gated_delta_layer.hpp>

#include <algorithm>

namespace longstraw::testing {
namespace {
models::model_config delta_config() {
  models::model_config c = small_configs().front().config;
  c.layers = {models::layer_kind::gated_delta_net};
  return c;
}

/// One layer, one pass over rows [begin, end) of a fixed input, and the memory of both.
struct layer_bench {
  models::model_config config;
  std::shared_ptr<models::parameter_store> store;
  models::gated_delta_layer layer;
  runner on{2};
  guarded hidden, d_hidden, activations;
  std::vector<float> state;
  models::layer_pass pass;

  layer_bench(const models::model_config& c, index begin, index end)
      : config(c),
        store(random_parameters(c, 7)),
        layer(config, 0, *store),
        hidden((end - begin) * c.hidden_size),
        d_hidden((end - begin) * c.hidden_size),
        activations(layer.activation_floats(end - begin, {})),
        state(static_cast<std::size_t>(layer.state({}).recurrent_floats)) {
    const auto x = random_values<float>(end * c.hidden_size, 31);
    const auto d = random_values<float>(end * c.hidden_size, 32);
    std::copy(x.begin() + begin * c.hidden_size, x.end(), hidden.data());
    std::copy(d.begin() + begin * c.hidden_size, d.end(), d_hidden.data());
    pass.positions = pass.whole = {begin, end};
    pass.gradients = store->gradients();
    pass.hidden = hidden.matrix(end - begin, c.hidden_size);
    pass.d_hidden = d_hidden.matrix(end - begin, c.hidden_size);
    pass.activations = activations.values();
    pass.recurrent_before = state;
    pass.keep = true;
    pass.on = &on.exec;
  }
  void forward() {
    for (std::size_t s = 0; s < layer.segments().size(); ++s)
      if (!pass.state_only || layer.segments()[s].for_state) layer.forward(s, pass);
  }
  void backward() {
    for (std::size_t s = layer.segments().size(); s-- > 0;)
      if (!pass.state_only || layer.segments()[s].for_state) layer.backward(s, pass);
  }
};
}  // namespace

TEST_CASE("gated delta: the state updated in place is the state written elsewhere", "[models]") {
  layer_bench in_place(delta_config(), 0, 70), elsewhere(delta_config(), 0, 70);
  const auto before = random_values<float>(in_place.layer.state({}).recurrent_floats, 3, 0.3);
  in_place.state = elsewhere.state = before;
  in_place.pass.recurrent_before = in_place.pass.recurrent_after = in_place.state;
  std::vector<float> after(before.size());
  elsewhere.pass.recurrent_before = elsewhere.state;
  elsewhere.pass.recurrent_after = after;
  in_place.forward();
  elsewhere.forward();
  CHECK(same_bits(in_place.state, after));
  CHECK(same_bits(elsewhere.state, before));
  CHECK(same_bits(in_place.hidden.values(), elsewhere.hidden.values()));
  // Backward needs the state before, which in place is gone by then.
  in_place.backward();
  elsewhere.backward();
  CHECK(same_bits(in_place.store->gradients(), elsewhere.store->gradients()));
}

TEST_CASE("gated delta: two passes joined by their state are one pass, forward and backward",
          "[models]") {
  const auto c = delta_config();
  for (const index cut : {1, 2, 30, 64}) {  // 1 and 2: shorter than the convolution's tail
    INFO("cut after " << cut);
    layer_bench whole(c, 0, 75), left(c, 0, cut), right(c, cut, 75);
    std::vector<float> end(whole.state.size()), end_of_parts(whole.state.size());
    whole.pass.recurrent_after = end;
    left.pass.recurrent_after = right.state;
    right.pass.recurrent_after = end_of_parts;
    whole.forward();
    left.forward();
    right.forward();
    CHECK(relative_error(end_of_parts, end) < 1e-5);

    auto d_whole = random_values<float>(whole.layer.state({}).recurrent_floats, 9, 0.1);
    auto d_parts = d_whole;
    whole.pass.d_recurrent = d_whole;
    left.pass.d_recurrent = right.pass.d_recurrent = d_parts;
    whole.backward();
    right.backward();
    left.backward();
    CHECK(relative_error(d_parts, d_whole) < 1e-5);
    std::vector<float> sum;
    for (std::size_t i = 0; i < left.store->gradients().size(); ++i)
      sum.push_back(left.store->gradients()[i] + right.store->gradients()[i]);
    CHECK(relative_error(sum, whole.store->gradients()) < 1e-5);
  }
}

TEST_CASE("gated delta: a frozen state takes no gradient and changes none of the pass's own",
          "[models]") {
  layer_bench frozen(delta_config(), 0, 20), full(delta_config(), 0, 20);
  std::vector<float> d_state(full.state.size());
  full.pass.d_recurrent = d_state;
  frozen.forward();
  full.forward();
  frozen.backward();
  full.backward();
  CHECK(same_bits(frozen.store->gradients(), full.store->gradients()));
  CHECK(same_bits(frozen.d_hidden.values(), full.d_hidden.values()));
  CHECK(std::any_of(d_state.begin(), d_state.end(), [](float d) { return d != 0; }));
}

TEST_CASE("gated delta: the state alone is the same state, and its gradient that of the state",
          "[models]") {
  layer_bench whole(delta_config(), 0, 9), alone(delta_config(), 0, 9);
  std::vector<float> whole_after(whole.state.size()), alone_after(whole.state.size());
  whole.pass.recurrent_after = whole_after;
  alone.pass.recurrent_after = alone_after;
  alone.pass.state_only = true;
  auto d_whole = random_values<float>(whole.layer.state({}).recurrent_floats, 9);
  auto d_alone = d_whole;
  whole.pass.d_recurrent = d_whole;
  alone.pass.d_recurrent = d_alone;
  for (layer_bench* b : {&whole, &alone}) {
    std::fill(b->d_hidden.values().begin(), b->d_hidden.values().end(), 0.0f);
    b->forward();
    b->backward();
  }
  CHECK(same_bits(whole_after, alone_after));
  CHECK(relative_error(d_alone, d_whole) < 1e-6);
  CHECK(relative_error(alone.d_hidden.values(), whole.d_hidden.values()) < 1e-6);
  CHECK(relative_error(alone.store->gradients(), whole.store->gradients()) < 1e-6);
}

TEST_CASE("gated delta: keeping for backward changes no bit of the result", "[models]") {
  layer_bench kept(delta_config(), 0, 70), passing(delta_config(), 0, 70);
  passing.pass.keep = false;
  kept.forward();
  passing.forward();
  CHECK(same_bits(kept.hidden.values(), passing.hidden.values()));
}

}  // namespace longstraw::testing
