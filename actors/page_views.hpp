#pragma once
// Where the tokens of a rank lie in its pages: packed one after the other in order of position, so that pages fill up
// evenly whatever the chunks are.

#include <longstraw/models/layer_program.hpp>

#include <span>
#include <vector>

namespace longstraw::actors {

/// How many of the tokens in `chunks` fall to that rank.
index tokens_of_rank(std::span<const token_range> chunks, const models::rank_share& at);

/// Appends the rank's tokens of `chunks`, in order of position. pages: one pointer a page of `page_tokens` tokens. Runs
/// that follow each other in position and place are one view: on one rank that is one view a page.
void add_page_views(std::vector<models::state_page>& views, std::span<float* const> pages,
                    index page_tokens, std::span<const token_range> chunks,
                    const models::rank_share& at);

}  // namespace longstraw::actors
