#include "support/files.hpp"

#include <longstraw/models/manifest.hpp>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;

struct listed_folder {
  temporary_folder folder;
  std::string checksum;
  listed_folder() {
    write_file(folder / "state.json", "{}");
    write_file(folder.path() / "model" / "config.json", "some bytes");
    checksum = write_manifest(folder.path());
  }
  std::vector<manifest_entry> read() const {
    return read_manifest(folder.path(), checksum, "journal.jsonl");
  }
};

}  // namespace

TEST_CASE("a manifest lists every file of the folder but itself", "[unit]") {
  const listed_folder f;
  const auto entries = f.read();
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].name == "model/config.json");
  CHECK(entries[0].bytes == 10);
  CHECK(entries[1].name == "state.json");
  for (const manifest_entry& e : entries) check_file(f.folder.path(), e);
}

TEST_CASE("a file that is not as listed is named with what was expected and found",
          "[unit][negative]") {
  const listed_folder f;
  const manifest_entry e = f.read()[0];
  const auto file = f.folder.path() / e.name;
  const auto fault = [&] { return failure_of([&] { check_file(f.folder.path(), e); }); };
  write_file(file, "some bytez");
  CHECK_THAT(fault(), ContainsSubstring(file.string()));
  CHECK_THAT(fault(), ContainsSubstring(e.checksum));
  write_file(file, "some byte");
  CHECK_THAT(fault(), ContainsSubstring("has 9 bytes; manifest.json expects 10"));
  std::filesystem::remove(file);
  CHECK_THAT(fault(), ContainsSubstring("is missing"));
  std::filesystem::create_directory(file);
  CHECK_THAT(fault(), ContainsSubstring("a folder"));
}

TEST_CASE("a manifest is the committed one or is refused", "[unit][negative]") {
  const listed_folder f;
  const auto file = f.folder / "manifest.json";
  const std::string text = read_file(file);
  write_file(file, text + " ");
  CHECK_THAT(failure_of([&] { f.read(); }), ContainsSubstring("journal.jsonl expects"));
  std::filesystem::remove(file);
  CHECK_THAT(failure_of([&] { f.read(); }), ContainsSubstring("is missing"));
}

}  // namespace longstraw::models
