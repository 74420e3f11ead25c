#include "support/files.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/replace.hpp>

#include <csignal>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;
namespace fs = std::filesystem;

/// Runs `act` in a child that may write at most `bytes_max` to a file, the way a full disk ends a
/// write. Returns the sentence of its failure, or an empty text.
template <class Act>
std::string failure_on_full_disk(const fs::path& report, rlim_t bytes_max, Act&& act) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string sentence;
    try {
      // Without the handler the limit would end the process instead of the write.
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{bytes_max, RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      act();
    } catch (const error& e) {
      sentence = e.code() == errc::io_failed ? e.what() : "another code";
    } catch (...) {
      sentence = "another exception";
    }
    const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &none);
    std::ofstream(report) << sentence;
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return read_file(report);
}

}  // namespace

TEST_CASE("a folder is replaced as a whole", "[unit]") {
  temporary_folder folder;
  const fs::path target = folder / "a" / "b";
  replace_folder(target, [](const fs::path& fresh) {
    write_file(fresh / "one", "1");
    write_file(fresh / "inner" / "two", "2");
  });
  CHECK(names_in(target) == std::vector<std::string>{"inner", "one"});
  replace_folder(target, [&](const fs::path& fresh) {
    CHECK(read_file(target / "one") == "1");
    write_file(fresh / "three", "3");
  });
  CHECK(names_in(target) == std::vector<std::string>{"three"});
  CHECK(names_in(folder / "a") == std::vector<std::string>{"b"});
}

TEST_CASE("what a process that has ended left half-written is removed by the next writer",
          "[unit]") {
  const temporary_folder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);  // a number that no process has
  const std::string dead = std::to_string(child), alive = std::to_string(::getppid());
  const std::vector<std::string> gone{".out.partial-" + dead + "-0", ".out.older-" + dead + "-3"};
  const std::vector<std::string> kept{".out.partial-" + alive + "-0",
                                      ".other.partial-" + dead + "-0", ".out.partial-notes",
                                      ".out.partial-" + dead};
  for (const auto* names : {&gone, &kept})
    for (const std::string& name : *names) fs::create_directory(folder / name);
  replace_folder(folder / "out", [](const fs::path&) {});
  for (const std::string& name : gone) CHECK_FALSE(fs::exists(folder / name));
  for (const std::string& name : kept) CHECK(fs::exists(folder / name));
}

TEST_CASE("a link to a folder stays a link, and its folder is replaced", "[unit]") {
  temporary_folder folder;
  write_file(folder / "real" / "old", "1");
  fs::create_directory_symlink(folder / "real", folder / "link");
  replace_folder(folder / "link", [](const fs::path& fresh) { write_file(fresh / "new", "2"); });
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(names_in(folder / "real") == std::vector<std::string>{"new"});
}

TEST_CASE("a failure while filling leaves the older folder and nothing else", "[unit][negative]") {
  temporary_folder folder;
  write_file(folder / "target" / "old", "1");
  for (const bool with_target : {true, false}) {
    const fs::path target = folder / (with_target ? "target" : "fresh");
    failure_of(
        [&] {
          replace_folder(target, [](const fs::path& fresh) {
            write_file(fresh / "half", "x");
            fail(errc::io_failed, "no more");
          });
        },
        errc::io_failed);
  }
  CHECK(names_in(folder.path()) == std::vector<std::string>{"target"});
  CHECK(names_in(folder / "target") == std::vector<std::string>{"old"});
}

TEST_CASE("a text file is replaced as a whole", "[unit]") {
  temporary_folder folder;
  replace_file(folder / "x" / "a.json", "one");
  replace_file(folder / "x" / "a.json", "two");
  CHECK(read_file(folder / "x" / "a.json") == "two");
  CHECK(names_in(folder / "x") == std::vector<std::string>{"a.json"});
}

TEST_CASE("a target that cannot be written is named", "[unit][negative]") {
  temporary_folder folder;
  write_file(folder / "file", "x");
  const auto nothing = [](const fs::path&) {};
  CHECK_THAT(failure_of([&] { replace_folder(folder / "file", nothing); }, errc::io_failed),
             ContainsSubstring("is not a folder"));
  CHECK_THAT(failure_of([&] { replace_folder(folder / "file" / "x", nothing); }, errc::io_failed),
             ContainsSubstring("file"));
  CHECK_THAT(failure_of([&] { replace_folder("/proc/longstraw/x", nothing); }, errc::io_failed),
             ContainsSubstring("/proc"));
  CHECK_THAT(failure_of([&] { replace_file("/proc/longstraw", "x"); }, errc::io_failed),
             ContainsSubstring("/proc"));
}

TEST_CASE("a folder without permission to write is named", "[unit][negative]") {
  if (::geteuid() == 0) SKIP("a folder's permissions do not bind the superuser");
  temporary_folder folder;
  const auto nothing = [](const fs::path&) {};
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  const auto denied = failure_of([&] { replace_folder(folder / "new", nothing); }, errc::io_failed);
  fs::permissions(folder.path(), fs::perms::owner_all);
  CHECK_THAT(denied, ContainsSubstring("Permission denied"));
}

TEST_CASE("a disk that is full at any point leaves the older checkpoint whole",
          "[unit][negative]") {
  temporary_folder folder;
  const fs::path target = folder / "model";
  write_random_checkpoint(target, preset_config("llama-tiny"), 1);
  const std::string before = read_file(target / "model.safetensors");
  const auto all = before.size();
  // In config.json, in the header, in the middle and just before the end of the weights.
  for (const std::size_t room :
       {std::size_t{0}, std::size_t{100}, std::size_t{2000}, all / 2, all - 1}) {
    CAPTURE(room);
    const std::string fresh = failure_on_full_disk(folder / "report", room, [&] {
      write_random_checkpoint(target, preset_config("llama-tiny"), 2);
    });
    CHECK_THAT(fresh, ContainsSubstring("cannot be written: File too large"));
    const std::string copied = failure_on_full_disk(folder / "report", room, [&] {
      const checkpoint opened(target);
      const auto budget = memory::budget::make(0);
      const parameter_store store(opened.layout(), parameter_use::forward, *budget);
      opened.write(target, store);
    });
    CHECK_THAT(copied, ContainsSubstring("File too large"));
    fs::remove(folder / "report");
    CHECK(names_in(folder.path()) == std::vector<std::string>{"model"});
    CHECK(names_in(target) == std::vector<std::string>{"config.json", "model.safetensors"});
    CHECK(read_file(target / "model.safetensors") == before);
  }
  const std::string enough = failure_on_full_disk(folder / "report", all, [&] {
    write_random_checkpoint(target, preset_config("llama-tiny"), 2);
  });
  CHECK(enough.empty());
  CHECK(read_file(target / "model.safetensors") != before);
}

TEST_CASE("a full file system gives its own reason", "[unit][negative]") {
  if (!std::filesystem::exists("/dev/full")) SKIP("this system has no /dev/full");
  temporary_folder folder;
  // The partial file of the write is a link to a device that is always full.
  fs::create_symlink("/dev/full", folder / "x.safetensors.partial");
  const std::vector<float> values(10, 1.0f);
  const std::vector tensors{from_floats("x", {10}, values)};
  CHECK_THAT(
      failure_of([&] { write_safetensors(folder / "x.safetensors", tensors); }, errc::io_failed),
      ContainsSubstring("No space left on device"));
  CHECK(names_in(folder.path()).empty());
}

}  // namespace longstraw::models
