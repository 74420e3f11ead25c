#pragma once
// The rotary settings of a config.json, in their newer and older spellings.

#include <longstraw/models/config.hpp>
#include <longstraw/models/json_text.hpp>

namespace longstraw::models {

/// From `rope_parameters`, or `rope_scaling` with `rope_theta` and `partial_rotary_factor` beside
/// it. Needs c.arch and c.head_dim; adds to c.notices what it assumed. errc::bad_input for a type
/// other than default and llama3.
kernels::rotary_spec read_rotary(const json_fields& fields, model_config& c);

}  // namespace longstraw::models
