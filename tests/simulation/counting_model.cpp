#include "counting_model.hpp"

#include <longstraw/models/exchange_parts.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace longstraw::testing {

using namespace models;

namespace {

constexpr index width = counting_width;

float reduced(float value) {
  const float r = std::fmod(value, 5.0f);
  return r < 0 ? r + 5.0f : r;
}

float query_of(float x) { return 1.0f + static_cast<float>(static_cast<int>(x) % 2); }

float top_gradient(float out, index position, index column) {
  return 1.0f + static_cast<float>((static_cast<index>(out) + position + column) % 3);
}

/// What both kinds share: the probe, and the "count" of the last layer.
class counting_layer : public layer_program {
 public:
  counting_layer(vector_parameter weight, std::shared_ptr<layer_probe> probe,
                 std::vector<segment> segments, bool last)
      : weight_(weight),
        probe_(std::move(probe)),
        segments_(std::move(segments)),
        own_(segments_.size()) {
    if (last) segments_.push_back({"count", exchange::none, false});
  }

  std::span<const segment> segments() const override { return segments_; }
  bool gives_state_gradient() const override { return true; }
  bool runs_on_ranks() const override { return true; }

  void forward(std::size_t s, layer_pass& p) const override {
    begin_segment(p, false);
    s < own_ ? run(s, p) : count(p);
  }
  void backward(std::size_t s, layer_pass& p) const override {
    begin_segment(p, true);
    probe_->expect(p.keep, "backward ran on a pass that kept nothing");
    s < own_ ? run_backward(s, p) : count_backward(p);
  }

 protected:
  virtual void run(std::size_t s, layer_pass& p) const = 0;
  virtual void run_backward(std::size_t s, layer_pass& p) const = 0;
  /// [own tokens, width] behind what the layer itself keeps.
  virtual mat room_for_count(const layer_pass& p) const = 0;

  float w(index column) const { return weight_.w[static_cast<std::size_t>(column)]; }
  std::span<float> d_w(const layer_pass& p) const { return weight_.d(p.gradients); }
  layer_probe& probe() const { return *probe_; }
  float stamp() const { return static_cast<float>(probe_->version + 1); }

  /// d_hidden of own tokens, complete: through the input and through what was made of it (d_made = d of w x).
  void finish_input(layer_pass& p, cmat x, cmat d_made) const {
    const auto d = d_w(p);
    for (index t = 0; t < p.tokens(); ++t)
      for (index i = 0; i < width; ++i) {
        d[static_cast<std::size_t>(i)] += d_made(t, i) * x(t, i);
        p.d_hidden(t, i) = reduced(p.d_hidden(t, i) + w(i) * d_made(t, i));
      }
  }

 private:
  void begin_segment(layer_pass& p, bool backward) const {
    const std::int64_t number = probe_->segments++;
    if (number == probe_->throw_at) {
      probe_->thrown = true;
      throw std::runtime_error("a test wanted it");
    }
    // At the next backward: only there is a gradient to spoil.
    if (backward && probe_->poison_at >= 0 && number >= probe_->poison_at && !probe_->poisoned) {
      probe_->poisoned = true;
      d_w(p)[0] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  void count(layer_pass& p) const {
    const mat out = room_for_count(p);
    for (index t = 0; t < p.tokens(); ++t)
      for (index i = 0; i < width; ++i) {
        out(t, i) = p.hidden(t, i);
        p.hidden(t, i) = 1.0f;
      }
  }
  void count_backward(layer_pass& p) const {
    const mat out = room_for_count(p);
    for (index t = 0; t < p.tokens(); ++t)
      for (index i = 0; i < width; ++i) {
        probe_->expect(p.d_hidden(t, i) == 0.0f,
                       "the head's gradient of the hidden state is not 0");
        p.d_hidden(t, i) = top_gradient(out(t, i), p.positions.begin + t, i);
      }
  }

  const vector_parameter weight_;
  const std::shared_ptr<layer_probe> probe_;
  std::vector<segment> segments_;
  const std::size_t own_;
};

/// Cuts the activations into matrices of `width` columns.
class cutter {
 public:
  explicit cutter(const layer_pass& p) : at_(p.activations.data()) {}
  mat rows(index count) {
    const mat m(at_, count, width);
    at_ += count * width;
    return m;
  }
  mat matrix(index count, index columns) {
    const mat m(at_, count, columns);
    at_ += count * columns;
    return m;
  }

 private:
  float* at_;
};

class sum_layer : public counting_layer {
 public:
  sum_layer(vector_parameter weight, std::shared_ptr<layer_probe> probe, bool last)
      : counting_layer(weight, std::move(probe),
                       {{"keys", exchange::gather_queries, true},
                        {"parts", exchange::merge_partials, false},
                        {"merge", exchange::none, false}},
                       last) {}

  std::string_view kind() const override { return "sum"; }
  state_spec state(const rank_share&) const override { return {page_floats, 0}; }
  index activation_floats(index tokens, const rank_share& at) const override {
    return width * (8 * at.largest_part(tokens) + 4 * tokens);
  }

  index given_floats(std::size_t s, direction d, index tokens,
                     const rank_share& at) const override {
    const bool own_rows = (s == keys) == (d == direction::forward);
    return width * (own_rows ? at.largest_part(tokens) : tokens);
  }
  index give(std::size_t s, direction d, const layer_pass& p, std::span<float> to) const override {
    const views m = carve(p);
    given_parts out(to, *p.on);
    if (d == direction::forward)
      out.add(s == keys ? m.q : m.part);
    else
      out.add(s == keys ? m.d_q_part : m.d_sum);
    return out.floats();
  }
  void take(std::size_t s, direction d, layer_pass& p,
            std::span<const std::span<const float>> given) const override {
    const views m = carve(p);
    taken_parts in(given, p.at, p.whole.count(), *p.on);
    if (d == direction::forward) {
      if (s == keys)
        in.rows(m.q_all);
      else
        in.sum_of_rows(split_heads(m.sum, 1));
    } else {
      if (s == keys)
        in.sum_of_rows(split_heads(m.d_q, 1));
      else
        in.rows(m.d_all);
    }
  }

 protected:
  void run(std::size_t s, layer_pass& p) const override {
    const views m = carve(p);
    if (s == keys) return make_keys(p, m);
    if (s == parts) return sum_own(p, m);
    for (index t = 0; t < p.tokens(); ++t)
      for (index i = 0; i < width; ++i) p.hidden(t, i) = reduced(m.x(t, i) + m.sum(t, i));
  }
  void run_backward(std::size_t s, layer_pass& p) const override {
    const views m = carve(p);
    if (s == merge) return copy(m.d_sum, p.d_hidden, *p.on);
    if (s == parts) return sum_own_backward(p, m);
    if (p.state_only) set_zero(m.d_q, *p.on);
    if (p.writes_pages)  // the gradient of the pass's own keys lies where the keys lie
      for_page_tokens(p.page_gradients, [&](float* slot, index position) {
        const index t = position - p.positions.begin;
        if (t >= 0 && t < p.tokens()) std::copy_n(slot + 2, width, m.d_v.row(t));
      });
    for (index t = 0; t < p.tokens(); ++t)
      for (index i = 0; i < width; ++i) p.d_hidden(t, i) += m.d_q(t, i);
    finish_input(p, m.x, m.d_v);
  }
  mat room_for_count(const layer_pass& p) const override { return carve(p).out; }

 private:
  enum : std::size_t { keys, parts, merge };
  static constexpr index page_floats = width + 2;  // version, position, v

  struct views {
    mat x, v, q, d_v, d_q, out;  // [own tokens]
    mat sum, d_sum;              // [own tokens]
    mat q_all, d_all;            // [all tokens]
    mat part, d_q_part;          // [all tokens]
  };
  static views carve(const layer_pass& p) {
    cutter from(p);
    const index own = p.tokens(), all = p.whole.count();
    views m;
    for (mat* each : {&m.x, &m.v, &m.q, &m.d_v, &m.d_q, &m.out}) *each = from.rows(own);
    m.part = from.rows(all);
    m.d_q_part = from.rows(all);
    m.sum = from.rows(own);
    m.d_sum = from.rows(own);
    m.q_all = from.rows(all);
    m.d_all = from.rows(all);
    if (!p.at.alone()) return m;
    // On one rank every exchange is the identity: what is given is what is taken.
    m.q_all = m.q;
    m.sum = m.part;
    m.d_all = m.d_sum;
    m.d_q = m.d_q_part;
    return m;
  }

  template <class F>
  static void for_page_tokens(std::span<const state_page> pages, F&& f) {
    for (const state_page& page : pages)
      for (index t = 0; t < page.tokens; ++t)
        f(page.data + (page.slot + t) * page_floats, page.position + t);
  }

  void make_keys(layer_pass& p, const views& m) const {
    for (index t = 0; t < p.tokens(); ++t)
      for (index i = 0; i < width; ++i) {
        m.x(t, i) = reduced(p.hidden(t, i));
        m.v(t, i) = w(i) * m.x(t, i);
        m.q(t, i) = query_of(m.x(t, i));
      }
    if (!p.writes_pages) return;
    index written = 0;
    for_page_tokens(p.pages, [&](float* slot, index position) {
      const index t = position - p.positions.begin;
      if (t < 0 || t >= p.tokens()) return;
      slot[0] = stamp();
      slot[1] = static_cast<float>(position + 1);
      std::copy_n(m.v.row(t), width, slot + 2);
      ++written;
    });
    probe().expect(written == p.tokens(), "the pages of a pass have no room for its tokens");
  }

  // Calls f(v, d_v or nullptr, position) for the rank's tokens up to the last of the pass.
  template <class F>
  void for_own_tokens(const layer_pass& p, const views& m, F&& f) const {
    std::vector<float*> gradients;
    for_page_tokens(p.page_gradients, [&](float* slot, index) { gradients.push_back(slot + 2); });
    std::size_t number = 0;
    for_page_tokens(p.pages, [&](float* slot, index position) {
      probe().expect(slot[0] == stamp(), "a page of another version was read");
      probe().expect(slot[1] == static_cast<float>(position + 1),
                     "a page holds another token than its view says");
      f(slot + 2, gradients.empty() ? nullptr : gradients.at(number), position);
      ++number;
    });
    if (!p.writes_pages)
      for (index t = 0; t < p.tokens(); ++t) f(m.v.row(t), m.d_v.row(t), p.positions.begin + t);
  }

  void sum_own(layer_pass& p, const views& m) const {
    set_zero(m.part, *p.on);
    for_own_tokens(p, m, [&](const float* v, float*, index position) {
      for (index t = std::max<index>(0, position - p.whole.begin); t < p.whole.count(); ++t)
        for (index i = 0; i < width; ++i) m.part(t, i) += m.q_all(t, i) * v[i];
    });
  }

  void sum_own_backward(layer_pass& p, const views& m) const {
    set_zero(m.d_q_part, *p.on);
    set_zero(m.d_v, *p.on);
    for_own_tokens(p, m, [&](const float* v, float* d_v, index position) {
      for (index t = std::max<index>(0, position - p.whole.begin); t < p.whole.count(); ++t)
        for (index i = 0; i < width; ++i) {
          m.d_q_part(t, i) += m.d_all(t, i) * v[i];
          if (d_v) d_v[i] += m.q_all(t, i) * m.d_all(t, i);
        }
    });
  }
};

class scan_layer : public counting_layer {
 public:
  scan_layer(vector_parameter weight, std::shared_ptr<layer_probe> probe, bool last)
      : counting_layer(weight, std::move(probe),
                       {{"project", exchange::tokens_to_heads, true},
                        {"scan", exchange::heads_to_tokens, true},
                        {"output", exchange::none, false}},
                       last) {}

  std::string_view kind() const override { return "scan"; }
  state_spec state(const rank_share& at) const override { return {0, 2 + own(at)}; }
  index activation_floats(index tokens, const rank_share& at) const override {
    return width * (6 * at.largest_part(tokens) + 4 * tokens);
  }

  // A head is one column.
  index given_floats(std::size_t s, direction d, index tokens,
                     const rank_share& at) const override {
    const bool to_heads = (s == project) == (d == direction::forward);
    return to_heads ? width * at.largest_part(tokens) : own(at) * tokens;
  }
  index give(std::size_t s, direction d, const layer_pass& p, std::span<float> to) const override {
    const views m = carve(p);
    given_parts out(to, *p.on);
    if (d == direction::forward)
      out.add(s == project ? m.u : m.y_heads);
    else
      out.add(s == project ? m.d_u_heads : m.d_y);
    return out.floats();
  }
  void take(std::size_t s, direction d, layer_pass& p,
            std::span<const std::span<const float>> given) const override {
    const views m = carve(p);
    taken_parts in(given, p.at, p.whole.count(), *p.on);
    if (d == direction::forward)
      s == project ? in.own_heads(m.u_heads, width, 1) : in.all_heads(m.y, width, 1);
    else
      s == project ? in.all_heads(m.d_u, width, 1) : in.own_heads(m.d_y_heads, width, 1);
  }

 protected:
  void run(std::size_t s, layer_pass& p) const override {
    const views m = carve(p);
    if (s == scan) return run_scan(p, m);
    for (index t = 0; t < p.tokens(); ++t)
      for (index i = 0; i < width; ++i)
        if (s == project) {
          m.x(t, i) = reduced(p.hidden(t, i));
          m.u(t, i) = w(i) * m.x(t, i);
        } else {
          p.hidden(t, i) = reduced(m.x(t, i) + m.y(t, i));
        }
  }
  void run_backward(std::size_t s, layer_pass& p) const override {
    const views m = carve(p);
    if (s == output) return copy(m.d_y, p.d_hidden, *p.on);
    if (s == scan) return run_scan_backward(p, m);
    finish_input(p, m.x, m.d_u);
  }
  mat room_for_count(const layer_pass& p) const override { return carve(p).out; }

 private:
  enum : std::size_t { project, scan, output };

  static index own(const rank_share& at) { return at.part(width).count(); }

  struct views {
    mat x, u, y, d_y, d_u, out;                  // [own tokens]
    mat u_heads, y_heads, d_y_heads, d_u_heads;  // [all tokens, own heads]
  };
  static views carve(const layer_pass& p) {
    cutter from(p);
    views m;
    for (mat* each : {&m.x, &m.u, &m.y, &m.d_y, &m.d_u, &m.out}) *each = from.rows(p.tokens());
    for (mat* each : {&m.u_heads, &m.y_heads, &m.d_y_heads, &m.d_u_heads})
      *each = from.matrix(p.whole.count(), own(p.at));
    if (p.at.alone()) m.u_heads = m.u, m.y_heads = m.y, m.d_y_heads = m.d_y, m.d_u_heads = m.d_u;
    return m;
  }

  void run_scan(layer_pass& p, const views& m) const {
    const auto before = p.recurrent_before;
    const index first = p.whole.begin;
    probe().expect(before[1] == static_cast<float>(first),
                   "the recurrent state is not that after the token before the pass");
    probe().expect(before[0] == (first > 0 ? stamp() : 0.0f),
                   "the recurrent state is of another version");
    float state[width];
    std::copy(before.begin() + 2, before.end(), state);
    for (index t = 0; t < m.u_heads.rows; ++t)
      for (index i = 0; i < m.u_heads.cols; ++i) m.y_heads(t, i) = state[i] += m.u_heads(t, i);
    if (p.recurrent_after.empty()) return;
    ++probe().captures;
    p.recurrent_after[0] = stamp();
    p.recurrent_after[1] = static_cast<float>(p.whole.end);
    std::copy_n(state, m.u_heads.cols, p.recurrent_after.begin() + 2);
  }

  void run_scan_backward(layer_pass& p, const views& m) const {
    if (p.state_only) set_zero(m.d_y_heads, *p.on);
    float d_state[width] = {};
    const bool full = !p.d_recurrent.empty();
    if (full) {
      if (!p.writes_pages) p.d_recurrent[0] += 1;  // of one response; summed up over all
      probe().expect(!p.writes_pages || p.d_recurrent[0] == static_cast<float>(probe().replayed),
                     "the gradient of the state does not hold each response once");
      std::copy(p.d_recurrent.begin() + 2, p.d_recurrent.end(), d_state);
    }
    for (index t = m.d_y_heads.rows; t-- > 0;)
      for (index i = 0; i < m.d_y_heads.cols; ++i)
        m.d_u_heads(t, i) = d_state[i] += m.d_y_heads(t, i);
    if (full) std::copy_n(d_state, m.d_y_heads.cols, p.d_recurrent.begin() + 2);
  }
};

std::string weight_name(std::size_t layer) {
  return "model.layers." + std::to_string(layer) + ".weight";
}

}  // namespace

std::shared_ptr<const language_model> make_counting_model(
    const std::vector<counting_kind>& kinds, memory::budget& budget,
    const std::shared_ptr<layer_probe>& probe) {
  model_config config;
  config.hidden_size = width;
  config.vocabulary = counting_vocabulary;
  config.rotary.width = 2;
  config.layers.assign(kinds.size(), layer_kind::full_attention);
  parameter_layout layout;
  layout.add("model.embed_tokens.weight", {counting_vocabulary, width});
  for (std::size_t l = 0; l < kinds.size(); ++l) layout.add(weight_name(l), {width});
  layout.add("model.norm.weight", {width});
  layout.add("lm_head.weight", {counting_vocabulary, width});
  auto store = std::make_shared<parameter_store>(layout, parameter_use::train, budget);
  index number = 0;
  for (float& weight : store->weights()) weight = static_cast<float>(1 + (number++ * 7) % 4);
  set_counting_weights(*store);
  std::vector<std::unique_ptr<layer_program>> layers;
  for (std::size_t l = 0; l < kinds.size(); ++l) {
    const auto weight = vector_of(*store, weight_name(l));
    const bool last = l + 1 == kinds.size();
    if (kinds[l] == counting_kind::sum)
      layers.push_back(std::make_unique<sum_layer>(weight, probe, last));
    else
      layers.push_back(std::make_unique<scan_layer>(weight, probe, last));
  }
  return std::make_shared<language_model>(config, store, std::move(layers));
}

void set_counting_weights(const parameter_store& store) {
  for (float& weight : store.weights()) weight = std::round(weight);
  std::ranges::fill(store.weights(store.layout().at("lm_head.weight")), 0.0f);
  std::ranges::fill(store.weights(store.layout().at("model.norm.weight")), 1.0f);
}

namespace {

using row = std::array<float, static_cast<std::size_t>(width)>;
using rows = std::vector<row>;

/// One layer over consecutive tokens from position 0 on.
struct plain_layer {
  counting_kind kind;
  std::span<const float> w;
  rows x, made, d_made;  // of all tokens; made: v or u
  row d_weight{};

  rows forward(const rows& hidden) {
    x = made = d_made = rows(hidden.size(), row{});
    rows out(hidden.size());
    row sum{};
    for (std::size_t t = 0; t < hidden.size(); ++t)
      for (std::size_t i = 0; i < sum.size(); ++i) {
        x[t][i] = reduced(hidden[t][i]);
        made[t][i] = w[i] * x[t][i];
        sum[i] += made[t][i];
        const float q = kind == counting_kind::sum ? query_of(x[t][i]) : 1.0f;
        out[t][i] = reduced(x[t][i] + q * sum[i]);
      }
    return out;
  }
  // Of tokens from `first` on: d_out becomes the gradient of their inputs; earlier tokens' d_made is added to.
  void backward(rows& d_out, std::size_t first) {
    for (std::size_t i = 0; i < d_weight.size(); ++i) {
      std::vector<float> through_query(d_out.size(), 0.0f);
      for (std::size_t t = first; t < d_out.size(); ++t) {
        const float q = kind == counting_kind::sum ? query_of(x[t][i]) : 1.0f;
        for (std::size_t s = 0; s <= t; ++s) {
          d_made[s][i] += q * d_out[t][i];
          if (kind == counting_kind::sum) through_query[t] += d_out[t][i] * made[s][i];
        }
      }
      for (std::size_t t = first; t < d_out.size(); ++t) {
        d_weight[i] += d_made[t][i] * x[t][i];
        d_out[t][i] = reduced(d_out[t][i] + through_query[t] + w[i] * d_made[t][i]);
      }
    }
  }
};

}  // namespace

std::vector<double> expected_gradient(const language_model& model,
                                      const std::vector<counting_kind>& kinds, const group& g,
                                      const actors::step_settings& s) {
  const parameter_store& store = *model.parameters();
  const parameter_layout& layout = store.layout();
  std::vector<double> gradient(static_cast<std::size_t>(layout.total()), 0.0);
  const auto at = [&](const std::string& name, index i) -> double& {
    return gradient[static_cast<std::size_t>(layout.at(name).offset + i)];
  };
  const auto embedding = store.weights(layout.at("model.embed_tokens.weight"));
  const auto embed = [&](const std::vector<token_id>& ids) {
    rows hidden(ids.size());
    for (std::size_t t = 0; t < ids.size(); ++t)
      std::copy_n(embedding.begin() + ids[t] * width, width, hidden[t].begin());
    return hidden;
  };
  const auto add_to_embedding = [&](const std::vector<token_id>& ids, std::size_t first,
                                    const rows& d) {
    for (std::size_t t = first; t < ids.size(); ++t)
      for (index i = 0; i < width; ++i)
        at("model.embed_tokens.weight", ids[t] * width + i) += d[t][static_cast<std::size_t>(i)];
  };
  const auto make_layers = [&] {
    std::vector<plain_layer> layers;
    for (std::size_t l = 0; l < kinds.size(); ++l)
      layers.push_back({kinds[l], store.weights(layout.at(weight_name(l))), {}, {}, {}, {}});
    return layers;
  };
  const auto add_weights = [&](const std::vector<plain_layer>& layers) {
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (index i = 0; i < width; ++i)
        at(weight_name(l), i) += layers[l].d_weight[static_cast<std::size_t>(i)];
  };

  const std::size_t captured = g.prompt.size() - 1;
  std::vector<token_id> prompt(g.prompt.begin(), g.prompt.end() - 1);
  // The prompt's own pass: what the responses' gradients of its state are added to.
  std::vector<plain_layer> swept = make_layers();
  rows hidden = embed(prompt);
  for (plain_layer& l : swept) hidden = l.forward(hidden);

  const group_counts counts = counts_of(g, s.loss);
  for (const response& r : g.responses) {
    if (!has_signal(r, s.loss)) continue;
    std::vector<token_id> ids = g.prompt;
    ids.insert(ids.end(), r.tokens.begin(), r.tokens.end() - 1);
    std::vector<plain_layer> layers = make_layers();
    hidden = embed(ids);
    for (plain_layer& l : layers) hidden = l.forward(hidden);
    rows d(ids.size(), row{});
    for (std::size_t t = captured; t < ids.size(); ++t)
      for (index i = 0; i < width; ++i)
        d[t][static_cast<std::size_t>(i)] =
            top_gradient(hidden[t][static_cast<std::size_t>(i)], static_cast<index>(t), i);
    for (std::size_t l = layers.size(); l-- > 0;) layers[l].backward(d, captured);
    add_weights(layers);
    add_to_embedding(ids, captured, d);
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (std::size_t t = 0; t < captured; ++t)
        for (std::size_t i = 0; i < swept[l].d_made[t].size(); ++i)
          swept[l].d_made[t][i] += layers[l].d_made[t][i];

    // The head's weights are 0: every token has the probability 1 / vocabulary.
    const std::vector<float> logps(r.tokens.size(),
                                   -std::log(static_cast<float>(counting_vocabulary)));
    std::vector<float> d_logps(r.tokens.size());
    evaluate_response(d_logps, logps, logps, {}, logps, r.advantage, r.loss_tokens, counts, s.loss);
    for (std::size_t t = 0; t < r.tokens.size(); ++t)
      for (index v = 0; v < counting_vocabulary; ++v)
        for (index i = 0; i < width; ++i)
          at("lm_head.weight", v * width + i) +=
              d_logps[t] * ((v == r.tokens[t] ? 1.0 : 0.0) - 1.0 / counting_vocabulary);
  }
  if (s.gradient == messages::gradient_mode::frozen) return gradient;

  // The last layer's output for prompt tokens is read by nobody, so only the gradient of its state enters.
  rows d(captured, row{});
  for (std::size_t l = swept.size(); l-- > 0;) swept[l].backward(d, 0);
  add_weights(swept);
  add_to_embedding(prompt, 0, d);
  return gradient;
}

}  // namespace longstraw::testing
