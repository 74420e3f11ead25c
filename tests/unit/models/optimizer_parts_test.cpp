#include "support/files.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/optimizer_parts.hpp>

#include <cstring>
#include <random>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;

/// Sizes that no rank count divides, and parameters smaller than a shard and larger than one.
parameter_layout uneven_layout() {
  parameter_layout layout;
  layout.add("embed.weight", {13, 7});
  layout.add("norm", {3});
  layout.add("scale", {1});
  layout.add("proj.weight", {5, 2, 3});
  layout.add("bias", {2});
  return layout;
}

struct optimizer_state {
  explicit optimizer_state(parameter_layout layout)
      : budget(memory::budget::make(0)), store(std::move(layout), parameter_use::train, *budget) {}
  std::vector<std::span<float>> arrays() const {
    return {store.first_moments(), store.second_moments(), store.weights()};
  }
  void fill_with_any_bits(unsigned seed) const {
    std::mt19937 random(seed);
    for (const std::span<float> a : arrays())
      for (const parameter& p : store.layout().all())
        for (float& f :
             a.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count))) {
          const auto bits = static_cast<std::uint32_t>(random());
          std::memcpy(&f, &bits, sizeof f);
        }
  }
  std::shared_ptr<memory::budget> budget;
  parameter_store store;
};

bool same_bits(const optimizer_state& a, const optimizer_state& b) {
  for (std::size_t i = 0; i < 3; ++i)
    if (std::memcmp(a.arrays()[i].data(), b.arrays()[i].data(), a.arrays()[i].size_bytes()) != 0)
      return false;
  return true;
}

void save(const std::filesystem::path& folder, const parameter_store& store, index ranks) {
  const index total = store.layout().total();
  for (index r = 0; r < ranks; ++r)
    write_optimizer_part(folder, store.layout(),
                         shard_in(store, rank_share{r, ranks}.part(total), true), {r, ranks});
}

}  // namespace

TEST_CASE("what any number of ranks saved, any number reads back with the same bits",
          "[unit][parity]") {
  const auto layout = [](bool model) {
    return model ? layout_of(parse_config(preset_config("tiny"), "tiny")) : uneven_layout();
  };
  for (const bool model : {false, true})
    for (const index saving : {1, 2, 3, 4, 8, 16}) {
      const temporary_folder folder;
      const optimizer_state written(layout(model));
      written.fill_with_any_bits(static_cast<unsigned>(saving));
      save(folder.path(), written.store, saving);
      CHECK(names_in(folder.path()).size() == static_cast<std::size_t>(saving));
      for (const index reading : {1, 2, 3, 4, 8, 16}) {
        const optimizer_state read(layout(model));
        const index total = read.store.layout().total();
        for (index r = 0; r < reading; ++r)  // each rank opens the parts for itself
          optimizer_parts(folder.path(), read.store.layout(), saving)
              .read(shard_in(read.store, rank_share{r, reading}.part(total), true));
        INFO(saving << " ranks saved, " << reading << " read");
        CHECK(same_bits(written, read));
      }
    }
}

TEST_CASE("a part names what it holds of a parameter that its border cuts", "[unit]") {
  const temporary_folder folder;
  const optimizer_state state(uneven_layout());  // 91, 3, 1, 30, 2 on lines of 16: 162
  save(folder.path(), state.store, 2);
  const safetensors_file first(folder / "optimizer-00001-of-00002.safetensors"),
      last(folder / "optimizer-00002-of-00002.safetensors");
  REQUIRE(first.find("first_moment.embed.weight[0:81]"));
  CHECK(first.find("first_moment.embed.weight[0:81]")->shape == std::vector<index>{81});
  CHECK(last.find("master.embed.weight[81:91]"));
  REQUIRE(last.find("second_moment.proj.weight"));
  CHECK(last.find("second_moment.proj.weight")->shape == std::vector<index>{5, 2, 3});
}

TEST_CASE("a part that is missing or not what the layout expects is named", "[unit][negative]") {
  const temporary_folder folder;
  const optimizer_state state(uneven_layout());
  save(folder.path(), state.store, 2);
  const auto read = [&](const parameter_layout& layout, const parameter_store& store) {
    optimizer_parts(folder.path(), layout, 2).read(shard_in(store, {0, layout.total()}, true));
  };
  parameter_layout other;
  other.add("embed.weight", {7, 13});
  other.add("norm", {66});  // as long as the other layout
  const optimizer_state wrong(other);
  CHECK_THAT(failure_of([&] { read(wrong.store.layout(), wrong.store); }),
             ContainsSubstring("optimizer-00002-of-00002"));
  std::filesystem::remove(folder / "optimizer-00002-of-00002.safetensors");
  CHECK_THAT(failure_of([&] { read(state.store.layout(), state.store); }, errc::io_failed),
             ContainsSubstring("optimizer-00002-of-00002.safetensors"));
}

}  // namespace longstraw::models
