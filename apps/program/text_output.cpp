#include "text_output.hpp"

#include "output.hpp"

#include <cerrno>
#include <cstdio>
#include <unistd.h>

namespace longstraw::program {

text_output::text_output(const std::filesystem::path& target) : target_(target) {
  if (target_.empty()) return;
  check_output_file(target_, "--out");
  const auto whole = std::filesystem::absolute(target_);
  std::filesystem::create_directories(whole.parent_path());
  partial_ =
      whole.parent_path() / fmt::format(".{}.partial-{}", whole.filename().string(), ::getpid());
  file_ = models::open_for_writing(partial_);
}

text_output::~text_output() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void text_output::write(const std::string& text) {
  if (target_.empty())
    models::write_all(STDOUT_FILENO, "standard output", text);
  else
    models::write_all(file_.get(), target_, text);
}

void text_output::finish() {
  if (partial_.empty()) return;
  models::sync_file(file_.get(), target_);
  if (::rename(partial_.c_str(), target_.c_str()) != 0)
    fail(errc::io_failed, "{} cannot be written: {}", target_.string(),
         models::system_reason(errno));
  partial_.clear();
}

}  // namespace longstraw::program
