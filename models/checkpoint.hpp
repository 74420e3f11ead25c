#pragma once
// Hugging Face checkpoint folders in and out: config.json with model.safetensors, or shards with their index.

#include <longstraw/models/config.hpp>
#include <longstraw/models/parameters.hpp>
#include <longstraw/models/replace.hpp>
#include <longstraw/models/safetensors.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace longstraw::models {

/// An open checkpoint folder: headers checked, no weight read yet.
class checkpoint {
 public:
  /// errc::bad_input: not a folder, config.json missing or wrong, missing or broken shard, a tensor that the model needs
  /// missing or of another shape (both shapes named) or of a dtype that is no float.
  explicit checkpoint(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const model_config& config() const { return config_; }
  /// Layout of the trained tensors, under their names on disk.
  const parameter_layout& layout() const { return layout_; }
  /// Tensors on disk that the model does not use (vision tower, mtp.*): kept as they are.
  const std::vector<std::string>& left_aside() const { return left_aside_; }
  bool has_tokenizer() const;
  /// Whether every trained tensor is F32 on disk: a checkpoint of the same dtypes then holds the weights exactly.
  bool holds_float32() const;

  /// Fills store.weights(). The store's layout must be layout().
  void read_weights(const parameter_store& store) const;

  /// Writes a complete checkpoint into `folder`: same files, names, shapes, dtypes and shards as this one, trained tensors from
  /// `store`, all others copied. Written beside the target and renamed when complete and synced: `folder` is there whole
  /// or as before. errc::io_failed names file and reason.
  /// errc::bad_input if `folder` holds files but no config.json: it is no older checkpoint to be replaced.
  void write(const std::filesystem::path& folder, const parameter_store& store) const;
  /// Writes the same files into an existing folder that the caller replaces as a whole, with files of its own.
  void write_files(const std::filesystem::path& folder, const parameter_store& store) const;

 private:
  std::filesystem::path folder_;
  model_config config_;
  parameter_layout layout_;
  std::vector<std::string> left_aside_;
  std::vector<safetensors_file> files_;
  std::map<std::string, std::size_t> file_of_;
};

/// errc::bad_input if `folder` holds files but is no checkpoint: replacing it would delete what somebody else put there.
void check_replaceable(const std::filesystem::path& folder);

/// Sizes for `new-model`: a complete config.json text. errc::bad_input lists the names.
std::string preset_config(std::string_view size);
std::vector<std::string> preset_names();

/// Writes a random checkpoint of that config.json text: normal weights with standard deviation 0.02 (initializer_range),
/// neutral norms, and for the gated delta net the initialisation of its paper, A uniform in [0, 16] and dt log-uniform
/// in [0.001, 0.1], so that the state remembers. Same seed, same bits.
void write_random_checkpoint(const std::filesystem::path& folder, const std::string& config_text,
                             std::uint64_t seed);

}  // namespace longstraw::models
