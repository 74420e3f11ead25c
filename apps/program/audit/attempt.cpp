#include "claims.hpp"

namespace longstraw::audit {
namespace {

using clock = std::chrono::steady_clock;

double since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

}  // namespace

std::optional<std::string> failure_of(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const error& e) {
    if (e.code() == errc::cancelled) throw;
    return e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
}

void attempt(cell& c, const std::function<void()>& work) {
  const auto begin = clock::now();
  if (const auto failure = failure_of(work)) c.fail(*failure);
  c.add_seconds(since(begin));
}

shared_step::shared_step(const std::function<step_record()>& work) {
  const auto begin = clock::now();
  failure_ = failure_of([&] { record_ = work(); }).value_or("");
  seconds_ = since(begin);
}

const step_record& shared_step::get() const {
  if (!record_) throw error(errc::internal, failure_);
  return *record_;
}

}  // namespace longstraw::audit
