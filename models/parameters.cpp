#include <longstraw/models/parameters.hpp>

namespace longstraw::models {
namespace {

matrix_parameter view(const parameter_store& store, index offset, index rows, index cols) {
  const auto begin = static_cast<std::size_t>(offset);
  matrix_parameter m;
  m.w = cmat(store.weights().data() + begin, rows, cols);
  m.offset = offset;
  return m;
}

void add_with_bias(parameter_layout& layout, const std::string& name, index rows, index cols,
                   bool bias) {
  layout.add(name + ".weight", {rows, cols});
  if (bias) layout.add(name + ".bias", {rows});
}

// q, k, v follow each other, and so do their biases: one product then computes all three.
void add_attention(parameter_layout& layout, const model_config& c, const std::string& at) {
  const index q_rows = c.query_heads * c.head_dim * (c.attention_gate ? 2 : 1);
  const index kv_rows = c.kv_heads * c.head_dim;
  layout.add(at + "q_proj.weight", {q_rows, c.hidden_size});
  layout.add(at + "k_proj.weight", {kv_rows, c.hidden_size}, placed::behind);
  layout.add(at + "v_proj.weight", {kv_rows, c.hidden_size}, placed::behind);
  if (c.attention_bias) {
    layout.add(at + "q_proj.bias", {q_rows});
    layout.add(at + "k_proj.bias", {kv_rows}, placed::behind);
    layout.add(at + "v_proj.bias", {kv_rows}, placed::behind);
  }
  add_with_bias(layout, at + "o_proj", c.hidden_size, c.query_heads * c.head_dim, c.attention_bias);
  if (c.qk_norm) {
    layout.add(at + "q_norm.weight", {c.head_dim});
    layout.add(at + "k_norm.weight", {c.head_dim});
  }
}

void add_gated_delta_net(parameter_layout& layout, const model_config& c, const std::string& at) {
  const index value_width = c.delta_value_heads * c.delta_value_dim;
  const index channels = 2 * c.delta_key_heads * c.delta_key_dim + value_width;
  layout.add(at + "in_proj_qkv.weight", {channels, c.hidden_size});
  layout.add(at + "in_proj_z.weight", {value_width, c.hidden_size}, placed::behind);
  layout.add(at + "in_proj_b.weight", {c.delta_value_heads, c.hidden_size}, placed::behind);
  layout.add(at + "in_proj_a.weight", {c.delta_value_heads, c.hidden_size}, placed::behind);
  layout.add(at + "conv1d.weight", {channels, 1, c.conv_kernel});
  layout.add(at + "A_log", {c.delta_value_heads});
  layout.add(at + "dt_bias", {c.delta_value_heads});
  layout.add(at + "norm.weight", {c.delta_value_dim});
  layout.add(at + "out_proj.weight", {c.hidden_size, value_width});
}

void add_feed_forward(parameter_layout& layout, const model_config& c, const std::string& at) {
  layout.add(at + "gate_proj.weight", {c.intermediate_size, c.hidden_size});
  layout.add(at + "up_proj.weight", {c.intermediate_size, c.hidden_size}, placed::behind);
  if (c.mlp_bias) {
    layout.add(at + "gate_proj.bias", {c.intermediate_size});
    layout.add(at + "up_proj.bias", {c.intermediate_size}, placed::behind);
  }
  add_with_bias(layout, at + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
}

}  // namespace

void parameter_layout::add(std::string name, std::vector<index> shape, placed where) {
  constexpr index line_floats = 16;
  if (where == placed::on_a_line) total_ = (total_ + line_floats - 1) / line_floats * line_floats;
  index count = 1;
  for (const index n : shape) {
    LS_ASSERT(n > 0, "a parameter has no empty dimension");
    count *= n;
  }
  LS_ASSERT(by_name_.emplace(name, parameters_.size()).second, "a parameter is declared once");
  parameters_.push_back({std::move(name), std::move(shape), total_, count});
  total_ += count;
  parameter_count_ += count;
}

const parameter* parameter_layout::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &parameters_[at->second];
}

const parameter& parameter_layout::at(const std::string& name) const {
  const parameter* p = find(name);
  LS_ASSERT(p != nullptr, "a parameter is declared before it is used");
  return *p;
}

parameter_layout layout_of(const model_config& c) {
  parameter_layout layout;
  layout.add(c.tensor_prefix + "embed_tokens.weight", {c.vocabulary, c.hidden_size});
  for (index l = 0; l < c.layer_count(); ++l) {
    const std::string at = fmt::format("{}layers.{}.", c.tensor_prefix, l);
    layout.add(at + "input_layernorm.weight", {c.hidden_size});
    if (c.layers[static_cast<std::size_t>(l)] == layer_kind::full_attention)
      add_attention(layout, c, at + "self_attn.");
    else
      add_gated_delta_net(layout, c, at + "linear_attn.");
    layout.add(at + "post_attention_layernorm.weight", {c.hidden_size});
    add_feed_forward(layout, c, at + "mlp.");
  }
  layout.add(c.tensor_prefix + "norm.weight", {c.hidden_size});
  if (!c.tied_embeddings) layout.add("lm_head.weight", {c.vocabulary, c.hidden_size});
  return layout;
}

parameter_store::parameter_store(parameter_layout layout, parameter_use use, memory::budget& budget,
                                 const std::string& prefix)
    : layout_(std::move(layout)) {
  const auto take = [&](const char* name) {
    return budget.named(prefix + name)->allocate_floats(layout_.total());
  };
  weights_ = take("parameters");
  if (use != parameter_use::forward) gradients_ = take("gradients");
  if (use == parameter_use::train) {
    first_moments_ = take("moments");
    second_moments_ = take("moments");
  }
  for (const memory::buffer* b : {&gradients_, &first_moments_, &second_moments_}) b->populate();
}

matrix_parameter stacked(const parameter_store& store, const std::string& first,
                         const std::string& last) {
  const parameter& begin = store.layout().at(first);
  const parameter& end = store.layout().at(last);
  LS_ASSERT(begin.offset <= end.offset, "stacked tensors are named in the order of the layout");
  const index cols = begin.count / begin.shape.front();
  index rows = 0;
  for (const parameter& p : store.layout().all()) {
    if (p.offset < begin.offset || p.offset > end.offset) continue;
    LS_ASSERT(p.offset == begin.offset + rows * cols, "stacked tensors lie behind each other");
    LS_ASSERT(p.count / p.shape.front() == cols, "stacked tensors have rows of one length");
    rows += p.shape.front();
  }
  return view(store, begin.offset, rows, cols);
}

matrix_parameter matrix_of(const parameter_store& store, const std::string& name) {
  return stacked(store, name, name);
}

vector_parameter vector_of(const parameter_store& store, const std::string& name) {
  const parameter& p = store.layout().at(name);
  return {store.weights(p), p.offset};
}

}  // namespace longstraw::models
