#pragma once
// The matrix as a table for terminals, as JSON and as a page.

#include "matrix.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace longstraw::audit {

/// At most 100 columns wide; ranks side by side, then the reasons of what failed and of what was
/// not run.
std::string as_text(const matrix& m, const circumstances& about);
nlohmann::ordered_json as_json(const matrix& m, const circumstances& about);
/// One self-contained page of well-formed XHTML.
std::string as_html(const matrix& m, const circumstances& about);

}  // namespace longstraw::audit
