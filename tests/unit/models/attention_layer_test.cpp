// What the attention program promises beyond its mathematics: where keys lie changes nothing, and
// what is not needed is not computed.

#include "support/model_driver.hpp"
#include "support/random_model.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/rotary.hpp>
#include <longstraw/models/attention_layer.hpp>

#include <algorithm>
#include <limits>

namespace longstraw::testing {
namespace {

models::model_config attention_config() {
  models::model_config c = small_configs().front().config;
  c.layers = {models::layer_kind::full_attention};
  return c;
}

/// One layer, one pass of tokens, and the memory of both.
struct layer_bench {
  models::model_config config;
  std::shared_ptr<models::parameter_store> store;
  models::attention_layer layer;
  runner on{2};
  token_range positions;
  guarded hidden, d_hidden, activations;
  std::vector<float> angles;
  models::layer_pass pass;

  layer_bench(const models::model_config& c, token_range p)
      : config(c),
        store(random_parameters(c, 7)),
        layer(config, 0, *store),
        positions(p),
        hidden(p.count() * c.hidden_size),
        d_hidden(p.count() * c.hidden_size),
        activations(layer.activation_floats(p.count(), {})),
        angles(static_cast<std::size_t>(p.count() * c.rotary.width)) {
    const auto x = random_values<float>(p.count() * c.hidden_size, 21);
    const auto d = random_values<float>(p.count() * c.hidden_size, 22);
    std::copy(x.begin(), x.end(), hidden.data());
    std::copy(d.begin(), d.end(), d_hidden.data());
    const mat a(angles.data(), p.count(), c.rotary.width);
    kernels::rotary_angles(a, p, kernels::rotary_frequencies(c.rotary), on.exec);
    pass.positions = pass.whole = p;
    pass.gradients = store->gradients();
    pass.hidden = hidden.matrix(p.count(), c.hidden_size);
    pass.d_hidden = d_hidden.matrix(p.count(), c.hidden_size);
    pass.angles = a;
    pass.activations = activations.values();
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
  index page_floats(index capacity) const {
    return capacity * layer.state({}).page_floats_per_token;
  }
};
}  // namespace

TEST_CASE("attention: keys in pages or in the pass give the same result and gradient", "[models]") {
  for (const auto& [name, config] : small_configs()) {
    if (config.layers.back() != models::layer_kind::full_attention) continue;
    INFO(name);
    models::model_config c = config;
    c.layers = {models::layer_kind::full_attention};
    layer_bench own(c, {0, 37}), paged(c, {0, 37});
    own.forward();
    own.backward();

    guarded memory(paged.page_floats(40));
    std::vector<float> gradient(static_cast<std::size_t>(paged.page_floats(40)));
    const models::state_page page{memory.data(), 40, 37, 0}, d_page{gradient.data(), 40, 37, 0};
    paged.pass.pages = {&page, 1};
    paged.pass.page_gradients = {&d_page, 1};
    paged.pass.writes_pages = true;
    paged.forward();
    paged.backward();

    CHECK(relative_error(paged.hidden.values(), own.hidden.values()) < 1e-6);
    CHECK(relative_error(paged.d_hidden.values(), own.d_hidden.values()) < 1e-5);
    CHECK(relative_error(paged.store->gradients(), own.store->gradients()) < 1e-5);
  }
}

TEST_CASE("attention: a page holds keys, then values, by head; slots beyond are untouched",
          "[models]") {
  const auto c = attention_config();
  layer_bench bench(c, {5, 8});
  guarded first(bench.page_floats(6)), second(bench.page_floats(6));
  std::fill(first.values().begin(), first.values().end(), 0.5f);
  const std::vector<models::state_page> pages{{first.data(), 6, 6, 0}, {second.data(), 6, 2, 6}};
  bench.pass.pages = pages;
  bench.pass.writes_pages = true;
  bench.forward();
  const auto at = [&](guarded& page, index part, index slot) {
    return page.data()[(part * 6 + slot) * c.head_dim];
  };
  for (index part = 0; part < 2 * c.kv_heads; ++part) {
    for (index slot = 0; slot < 5; ++slot) CHECK(at(first, part, slot) == 0.5f);
    CHECK(at(first, part, 5) != 0.5f);
    for (index slot = 0; slot < 2; ++slot) CHECK(std::isfinite(at(second, part, slot)));
    for (index slot = 2; slot < 6; ++slot) CHECK(std::isnan(at(second, part, slot)));
  }
}

TEST_CASE("attention: a page may hold several runs of tokens, each from a slot of its own",
          "[models]") {
  const auto c = attention_config();
  layer_bench dense(c, {0, 8}), apart(c, {0, 8});
  guarded dense_page(dense.page_floats(8)), apart_page(dense.page_floats(11));
  std::vector<float> dense_gradient(static_cast<std::size_t>(dense.page_floats(8)));
  std::vector<float> apart_gradient(static_cast<std::size_t>(dense.page_floats(11)));
  const auto dense_run = [&](float* page) {
    return std::vector<models::state_page>{{page, 8, 8, 0}};
  };
  const auto apart_runs = [&](float* page) {  // slots 0 and 6 stay free
    return std::vector<models::state_page>{{page, 11, 5, 0, 1}, {page, 11, 3, 5, 7}};
  };
  const auto run = [](layer_bench& bench, const std::vector<models::state_page>& pages,
                      const std::vector<models::state_page>& gradients) {
    bench.pass.pages = pages;
    bench.pass.page_gradients = gradients;
    bench.pass.writes_pages = true;
    bench.forward();
    bench.backward();
  };
  run(dense, dense_run(dense_page.data()), dense_run(dense_gradient.data()));
  run(apart, apart_runs(apart_page.data()), apart_runs(apart_gradient.data()));
  CHECK(same_bits(apart.hidden.values(), dense.hidden.values()));
  CHECK(same_bits(apart.d_hidden.values(), dense.d_hidden.values()));
  for (index part = 0; part < 2 * c.kv_heads; ++part)
    for (index slot = 0; slot < 11; ++slot) {
      const bool free = slot == 0 || slot == 6 || slot > 9;
      CHECK(std::isnan(apart_page.data()[(part * 11 + slot) * c.head_dim]) == free);
      const float gradient =
          apart_gradient[static_cast<std::size_t>((part * 11 + slot) * c.head_dim)];
      CHECK((gradient == 0) == free);
    }
}

TEST_CASE("attention: the state alone is the same state, and its gradient that of the state",
          "[models]") {
  const auto c = attention_config();
  layer_bench whole(c, {0, 9}), alone(c, {0, 9});
  guarded whole_page(whole.page_floats(16)), alone_page(whole.page_floats(16));
  auto whole_gradient = random_values<float>(whole.page_floats(16), 5);
  auto alone_gradient = whole_gradient;
  const models::state_page pages[]{{whole_page.data(), 16, 9, 0}, {alone_page.data(), 16, 9, 0}};
  const models::state_page gradients[]{{whole_gradient.data(), 16, 9, 0},
                                       {alone_gradient.data(), 16, 9, 0}};
  layer_bench* benches[]{&whole, &alone};
  for (int i = 0; i < 2; ++i) {
    benches[i]->pass.pages = {&pages[i], 1};
    benches[i]->pass.page_gradients = {&gradients[i], 1};
    benches[i]->pass.writes_pages = true;
    std::fill(benches[i]->d_hidden.values().begin(), benches[i]->d_hidden.values().end(), 0.0f);
  }
  alone.pass.state_only = true;
  whole.forward();
  alone.forward();
  CHECK(same_bits(whole_page.values(), alone_page.values()));
  whole.backward();
  alone.backward();
  // With no gradient on the output, nothing but the state's gradient reaches the input.
  CHECK(relative_error(alone.d_hidden.values(), whole.d_hidden.values()) < 1e-6);
  CHECK(relative_error(alone.store->gradients(), whole.store->gradients()) < 1e-6);
}

TEST_CASE("attention: keeping for backward changes no bit of the result", "[models]") {
  const auto c = attention_config();
  layer_bench kept(c, {3, 20}), passing(c, {3, 20});
  passing.pass.keep = false;
  kept.forward();
  passing.forward();
  CHECK(same_bits(kept.hidden.values(), passing.hidden.values()));
}

TEST_CASE("attention: workspace grows with tokens and asks for no more than it names", "[models]") {
  const auto c = attention_config();
  const auto store = random_parameters(c, 1);
  const models::attention_layer layer(c, 0, *store);
  CHECK(layer.activation_floats(0, {}) == 0);
  index before = 0;
  for (const index tokens : {1, 2, 64, 1000}) {
    CHECK(layer.activation_floats(tokens, {}) > before);
    before = layer.activation_floats(tokens, {});
  }
  // input, middle, q | gate | k | v, turned q | k, attended, and the larger of gate | up | product
  // and d(q..k) | work
  const index q = c.query_heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const index kept =
      2 * c.hidden_size + 2 * q + 2 * kv + q + kv + q + 2 * c.query_heads + c.kv_heads + 2;
  const index rest =
      std::max(2 * c.intermediate_size + std::max(c.intermediate_size, c.hidden_size),
               3 * q + 3 * kv + std::max(q, c.hidden_size) + c.query_heads);
  CHECK(before <= 1000 * (kept + rest) + 16 * 16);
  CHECK(layer.state({}).page_floats_per_token == 2 * kv);
  CHECK(layer.state({}).recurrent_floats == 0);
}

}  // namespace longstraw::testing
