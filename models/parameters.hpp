#pragma once
// All trained tensors of a model: where each lies in one flat array of floats, and the arrays themselves (weights,
// gradients, moments), which share that layout. Tensors that one product can use together (q, k, v; gate, up) follow
// each other without a gap, so that a stacked view of them is a plain matrix. All others begin on a cache line: products
// that read rows across two lines a vector are a fifth slower.

#include <longstraw/memory/arena.hpp>
#include <longstraw/models/config.hpp>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace longstraw::models {

struct parameter {
  std::string name;          ///< as in the checkpoint on disk
  std::vector<index> shape;  ///< as in the checkpoint on disk
  index offset = 0;          ///< in floats
  index count = 0;
};

/// Where a tensor begins: on a cache line, or right behind the tensor before it.
enum class placed { on_a_line, behind };

/// Names, shapes and offsets; no memory.
class parameter_layout {
 public:
  /// Appends a tensor. Declaring a name twice is a bug.
  void add(std::string name, std::vector<index> shape, placed where = placed::on_a_line);

  std::span<const parameter> all() const { return parameters_; }
  /// Naming a tensor that was not declared is a bug.
  const parameter& at(const std::string& name) const;
  const parameter* find(const std::string& name) const;
  /// Floats of an array of this layout, those between tensors with them: they are zero and stay so.
  index total() const { return total_; }
  /// Elements of all tensors.
  index parameter_count() const { return parameter_count_; }

 private:
  std::vector<parameter> parameters_;
  std::unordered_map<std::string, std::size_t> by_name_;
  index total_ = 0;
  index parameter_count_ = 0;
};

/// The tensors of a model of that configuration, in the order of its layers.
parameter_layout layout_of(const model_config& config);

/// Which arrays a store has.
enum class parameter_use {
  forward,  ///< weights only: a reference model, scoring, generation
  train_once,  ///< weights and gradients: a single update, whose moments begin at zero and are not kept
  train,       ///< weights, gradients and two moments
};

class parameter_store {
 public:
  /// Weights come from the arena "parameters", gradients from "gradients", moments from "moments", each with `prefix`
  /// in front ("reference " for a reference model). All zero at first.
  parameter_store(parameter_layout layout, parameter_use use, memory::budget& budget,
                  const std::string& prefix = "");

  const parameter_layout& layout() const { return layout_; }
  bool trains() const { return static_cast<bool>(gradients_); }
  /// No: first_moments() and second_moments() are empty.
  bool keeps_moments() const { return static_cast<bool>(first_moments_); }

  std::span<float> weights() const { return weights_.floats(); }
  std::span<float> gradients() const { return gradients_.floats(); }
  std::span<float> first_moments() const { return first_moments_.floats(); }
  std::span<float> second_moments() const { return second_moments_.floats(); }

  std::span<float> weights(const parameter& p) const { return part(weights_, p); }
  std::span<float> gradients(const parameter& p) const { return part(gradients_, p); }

 private:
  static std::span<float> part(const memory::buffer& b, const parameter& p) {
    if (!b) return {};
    return b.floats().subspan(static_cast<std::size_t>(p.offset),
                              static_cast<std::size_t>(p.count));
  }

  parameter_layout layout_;
  memory::buffer weights_, gradients_, first_moments_, second_moments_;
};

/// A weight, and where it lies in an array of the store's layout: gradients are added to the array that a pass brings,
/// since every rank has its own.
struct matrix_parameter {
  cmat w;
  index offset = 0;
  mat d(std::span<float> gradients) const {
    return {gradients.data() + offset, w.rows, w.cols, w.stride};
  }
};
struct vector_parameter {
  std::span<const float> w;
  index offset = 0;
  std::span<float> d(std::span<float> gradients) const {
    return gradients.subspan(static_cast<std::size_t>(offset), w.size());
  }
};

/// The tensors `first` .. `last` (neighbours in the layout, same row length) as one matrix [sum of rows, row length].
matrix_parameter stacked(const parameter_store& store, const std::string& first,
                         const std::string& last);
/// One tensor as a matrix: its first dimension as rows, the product of the others as columns.
matrix_parameter matrix_of(const parameter_store& store, const std::string& name);
vector_parameter vector_of(const parameter_store& store, const std::string& name);

}  // namespace longstraw::models
