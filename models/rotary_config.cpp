#include <longstraw/models/rotary_config.hpp>

#include <optional>

namespace longstraw::models {
namespace {

/// Looks in the object first, then beside it.
struct spellings {
  const json_fields& outer;
  std::optional<json_fields> inner;

  const json_fields* with(const char* name) const {
    if (inner && inner->has(name)) return &*inner;
    return outer.has(name) ? &outer : nullptr;
  }
};

spellings spellings_of(const json_fields& fields) {
  // transformers lets an old rope_scaling win over rope_parameters when both are there.
  for (const char* name : {"rope_scaling", "rope_parameters"})
    if (const auto* v = fields.find(name); v && !(v->is_object() && v->empty()))
      return {fields, fields.object(name)};
  return {fields, std::nullopt};
}

void read_llama3(kernels::rotary_spec& spec, const spellings& s) {
  const json_fields& f = *s.inner;
  spec.kind = kernels::rotary_spec::scaling::llama3;
  spec.factor = f.number("factor", 1.0, 1e6);
  spec.low_frequency_factor = f.number("low_freq_factor", 1e-6, 1e6);
  spec.high_frequency_factor = f.number("high_freq_factor", 1e-6, 1e6);
  if (spec.high_frequency_factor <= spec.low_frequency_factor)
    f.reject("high_freq_factor",
             fmt::format("more than low_freq_factor = {}", spec.low_frequency_factor));
  constexpr const char* original = "original_max_position_embeddings";
  const json_fields* at = s.with(original);
  spec.original_positions = (at ? at : &f)->number(original, 1.0, 1e12);
}

}  // namespace

kernels::rotary_spec read_rotary(const json_fields& fields, model_config& c) {
  const spellings s = spellings_of(fields);
  kernels::rotary_spec spec;

  const json_fields* theta = s.with("rope_theta");
  if (!theta)
    fields.reject("rope_theta",
                  "a number there or in rope_parameters: rotary frequencies have no default");
  spec.theta = theta->number("rope_theta", 1.0, 1e30);

  std::string type = "default";
  if (s.inner) {
    const char* spelled = s.inner->has("rope_type") ? "rope_type" : "type";
    type = s.inner->text(spelled, "default");
    if (type == "llama3")
      read_llama3(spec, s);
    else if (type != "default")
      s.inner->reject(spelled, "default or llama3: other rotary scalings are not supported");
  }

  double share = c.arch == architecture::qwen3_5 ? 0.25 : 1.0;
  if (const json_fields* at = s.with("partial_rotary_factor"))
    share = at->number("partial_rotary_factor", 1e-6, 1.0);
  else if (c.arch == architecture::qwen3_5)
    c.notices.push_back("partial_rotary_factor is absent: 0.25, the architecture's own");
  spec.width = static_cast<index>(static_cast<double>(c.head_dim) * share);
  if (spec.width < 2 || spec.width % 2 != 0)
    fail(errc::bad_input,
         "{}: head_dim = {} times partial_rotary_factor = {} turns {} components; expected an even "
         "number of at least 2",
         fields.file(), c.head_dim, share, spec.width);
  return spec;
}

}  // namespace longstraw::models
