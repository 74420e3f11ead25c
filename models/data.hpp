#pragma once
// Groups of prompt and responses from files: JSON lines, or the batch.safetensors of a golden case.
//
// A line of JSON:
//   {"prompt": text | "prompt_ids": [..], "responses": [text..] | "response_ids": [[..]..],
//    "rewards": [..],
//    optional "advantages": [..], "old_logprobs": [[..]..], "ref_logprobs": [[..]..]}
// Text becomes bytes (token = byte value) when the checkpoint has no tokenizer.

#include <longstraw/models/config.hpp>
#include <longstraw/models/grpo.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace longstraw::models {

struct data_rules {
  index vocabulary = 0;
  std::vector<token_id> end_of_sequence;
  bool has_tokenizer = false;  ///< then text is an error that names scripts/tokenize
  reward_scale scale = reward_scale::group;
  bool needs_responses = true;  ///< false: a prompt alone is enough (generate)
  bool needs_rewards = true;    ///< false: without rewards they count as 0 (score)
};

/// One line; `name` ("data.jsonl line 3") goes into sentences. errc::bad_input names the field, the
/// value and what was expected.
group parse_group(std::string_view line, const std::string& name, const data_rules& rules);

/// prompt_ids [P], response_ids [G, Rmax], response_lens [G], rewards [G], optional advantages,
/// old_logps, ref_logps.
group read_batch(const std::filesystem::path& file, const data_rules& rules);

/// A file of groups; JSON lines are indexed once and parsed one at a time, so that a long file is
/// never held whole.
class group_file {
 public:
  /// By name: *.safetensors is one group, anything else is JSON lines. errc::bad_input if it is
  /// empty, io_failed if it cannot be read.
  group_file(const std::filesystem::path& path, data_rules rules);
  index size() const;
  /// Group number i, from 0. errc::bad_input if there is none.
  group read(index i) const;

 private:
  std::filesystem::path path_;
  data_rules rules_;
  std::vector<std::uint64_t> line_begin_;  ///< byte offsets of non-empty lines, and the end
  std::vector<index> line_number_;
  bool is_batch_ = false;
};

/// The bytes of a text as ids.
std::vector<token_id> byte_tokens(std::string_view text);
/// Ids below 256 as bytes; others as U+FFFD.
std::string byte_text(std::span<const token_id> ids);

}  // namespace longstraw::models
