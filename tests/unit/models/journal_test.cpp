#include "support/files.hpp"

#include <longstraw/models/checksum.hpp>
#include <longstraw/models/journal.hpp>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;

/// A line as the journal writes it.
std::string line(const std::string& fields) {
  return "{" + fields + ",\"checksum\":\"" + checksum_of("{" + fields) + "\"}\n";
}

const std::string open = line(R"("line":1,"record":"open","version":1)");
const std::string begin4 = line(R"("line":2,"record":"begin","step":4,"parts":2)");
const std::string first = line(R"("line":3,"record":"prepared","step":4,"part":1,"content":"a")");
const std::string second = line(R"("line":4,"record":"prepared","step":4,"part":2,"content":"b")");
const std::string commit4 = line(R"("line":5,"record":"commit","step":4,"manifest":"m")");
const std::string saved = open + begin4 + first + second + commit4;

std::string fault_of(const std::string& text) {
  return failure_of([&] { read_journal(text, "journal.jsonl"); });
}

}  // namespace

TEST_CASE("the last commit decides", "[unit]") {
  const temporary_folder folder;
  const auto file = write_file(folder / "journal.jsonl", journal::opening());
  {
    journal j(file);
    CHECK_FALSE(j.last_commit());
    j.begin(4, 2);
    j.prepared(4, 2, "b");
    j.prepared(4, 1, "a");
    CHECK_FALSE(j.last_commit());
    j.commit(4, "m4");
    j.begin(5, 1);  // a save that failed, and another attempt
    j.begin(5, 1);
    j.prepared(5, 1, "c");
  }
  {
    journal j(file);
    REQUIRE(j.last_commit());
    CHECK(j.last_commit()->step == 4);
    CHECK(j.last_commit()->parts == 2);
    CHECK(j.last_commit()->manifest == "m4");
    j.begin(6, 3);
    for (index part : {1, 3, 2}) j.prepared(6, part, "d");
    j.commit(6, "m6");
  }
  CHECK(journal(file).last_commit()->step == 6);
}

TEST_CASE("a last line without its newline is ignored and cut, wherever it is torn", "[unit]") {
  const temporary_folder folder;
  for (std::size_t bytes = open.size(); bytes < saved.size(); ++bytes) {
    const auto file = write_file(folder / "journal.jsonl", saved.substr(0, bytes));
    journal j(file);
    CHECK_FALSE(j.last_commit());
    const std::string whole = read_file(file);
    CHECK(whole == saved.substr(0, saved.substr(0, bytes).rfind('\n') + 1));
    j.begin(4, 1);
    j.prepared(4, 1, "a");
    j.commit(4, "again");
    CHECK(journal(file).last_commit()->manifest == "again");
  }
}

TEST_CASE("any other damage names the line and what was expected", "[unit][negative]") {
  CHECK(read_journal(saved, "journal.jsonl").last->step == 4);
  // Every byte but the newlines, which join two lines or tear the last one.
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (saved[i] == '\n') continue;
    std::string damaged = saved;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    if (damaged[i] == '\n') damaged[i] = '\0';
    const auto number = 1 + std::count(saved.begin(), saved.begin() + static_cast<long>(i), '\n');
    const std::string sentence = fault_of(damaged);
    CHECK_THAT(sentence, ContainsSubstring("journal.jsonl line " + std::to_string(number)));
    CHECK_THAT(sentence, ContainsSubstring("expected"));
  }
  CHECK_THAT(fault_of(""), ContainsSubstring("no whole line"));
  CHECK_THAT(fault_of(saved + "\n"), ContainsSubstring("line 6"));
  CHECK_THAT(fault_of(saved + std::string(100, '\0') + "\n"), ContainsSubstring("line 6"));
}

TEST_CASE("lines that are whole but not in their order are refused", "[unit][negative]") {
  CHECK_THAT(fault_of(begin4), ContainsSubstring("line 1"));
  CHECK_THAT(fault_of(open + first), ContainsSubstring("no line before it missing"));
  CHECK_THAT(fault_of(open + begin4 + first + second + second),
             ContainsSubstring("no line before it missing"));
  const auto at = [&](const std::string& before, const std::string& fields) {
    const auto number = 1 + std::count(before.begin(), before.end(), '\n');
    return fault_of(before + line("\"line\":" + std::to_string(number) + "," + fields));
  };
  CHECK_THAT(at(open, R"("record":"commit","step":4,"manifest":"m")"), ContainsSubstring("begins"));
  CHECK_THAT(at(open + begin4 + first, R"("record":"commit","step":4,"manifest":"m")"),
             ContainsSubstring("part 2"));
  CHECK_THAT(at(open + begin4 + first, R"("record":"prepared","step":4,"part":1,"content":"a")"),
             ContainsSubstring("again"));
  CHECK_THAT(at(open + begin4, R"("record":"prepared","step":4,"part":3,"content":"a")"),
             ContainsSubstring("from 1 to 2"));
  CHECK_THAT(at(open + begin4, R"("record":"prepared","step":5,"part":1,"content":"a")"),
             ContainsSubstring("expected step 4"));
  CHECK_THAT(at(saved, R"("record":"begin","step":4,"parts":1)"), ContainsSubstring("after 4"));
  CHECK_THAT(at(saved, R"("record":"begin","step":5,"parts":0)"), ContainsSubstring("parts"));
  CHECK_THAT(at(saved, R"("record":"erase","step":5)"), ContainsSubstring("\"erase\""));
  CHECK_THAT(at("", R"("record":"open","version":2)"), ContainsSubstring("version"));
}

TEST_CASE("a journal that is no readable file is named", "[unit][negative]") {
  const temporary_folder folder;
  CHECK_THAT(failure_of([&] { journal j(folder / "absent"); }, errc::io_failed),
             ContainsSubstring("absent"));
  CHECK_THAT(failure_of([&] { journal j(folder.path()); }), ContainsSubstring("folder"));
}

}  // namespace longstraw::models
