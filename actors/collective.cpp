#include <longstraw/actors/collective.hpp>

#include <algorithm>

namespace longstraw::actors {

using namespace messages;

collective::collective(caf::actor_config& config, environment e, std::string name, index ranks)
    : actor_base(config, std::move(e), std::move(name)), ranks_(ranks) {}

collective::behavior_type collective::make_behavior() {
  return {
      on(&collective::gather),  // -> exchanged | exchange_missed, later
      on(&collective::begin),   //
      on(&collective::look),    // from itself
  };
}

void collective::on_exit() { open_.clear(); }

void collective::begin(const begin_exchanges& m) {
  job_number_ = m.job_number;
  attempt_ = m.attempt;
  open_.clear();  // CO-3
}

void collective::gather(const contribute& m) {
  if (m.key.job_number != job_number_ || m.key.attempt != attempt_) return;  // CO-3
  meeting& here = open_[m.key];
  if (here.given.empty()) here.first = this->clock().now();
  const auto same = [&](const contribute& other) { return other.rank == m.rank; };
  LS_ASSERT(std::ranges::none_of(here.given, same), "a rank gives once to an exchange");
  here.given.push_back(m);
  if (static_cast<index>(here.given.size()) < ranks_) {
    if (!ticking_) look_later();
    return;
  }
  auto all = std::make_shared<std::vector<given_data>>(here.given.size());
  for (const contribute& c : here.given) (*all)[static_cast<std::size_t>(c.rank)] = c.given;
  for (const contribute& c : here.given) tell(c.reply_to, exchanged{{}, m.key, all});  // CO-1
  open_.erase(m.key);
}

std::chrono::milliseconds collective::interval() const {
  return std::max(env.limits.collective / 4, std::chrono::milliseconds{1});
}

void collective::look_later() {
  ticking_ = true;
  looked_at_ = this->clock().now();
  send_after(this, self_as<collective_actor>(), interval(), exchange_tick{});
}

void collective::look(const exchange_tick&) {
  ticking_ = false;
  const auto now = this->clock().now();
  // A stopped terminal job, a machine that slept: nobody could give meanwhile.
  const auto pause = now - looked_at_ - interval();
  if (pause > 4 * interval())
    for (auto& [key, here] : open_) here.first += pause;
  for (auto it = open_.begin(); it != open_.end();) {
    if (now - it->second.first < env.limits.collective) {
      ++it;
      continue;
    }
    const std::string sentence = missing(it->second);
    env.log->warn("exchange_missed job={} attempt={} entry={} part={} cause=\"{}\"",
                  it->first.job_number, it->first.attempt, it->first.entry, it->first.part,
                  sentence);
    for (const contribute& c : it->second.given)
      tell(c.reply_to, exchange_missed{{}, it->first, sentence});  // CO-2
    it = open_.erase(it);
  }
  if (!open_.empty()) look_later();
}

std::string collective::missing(const meeting& m) const {
  std::vector<rank_id> absent;
  for (rank_id r = 0; r < ranks_; ++r)
    if (std::ranges::find(m.given, r, &contribute::rank) == m.given.end()) absent.push_back(r);
  const contribute& c = m.given.front();
  const double limit = std::chrono::duration<double>(env.limits.collective).count();
  return fmt::format("{} {} did not reach exchange {} ({}){} within {} s",
                     absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "), c.what,
                     c.detail, c.layer < 0 ? "" : fmt::format(" of layer {}", c.layer), limit);
}

}  // namespace longstraw::actors
