#pragma once
// Where ranks meet: gathers what each gives to an exchange and hands all of it to each.
//
// receives  contribute (layers, ranks, optimizers); begin_exchanges (supervisor); exchange_tick (itself)
// sends     exchanged or exchange_missed to those who gave
// owns      nothing but the rendezvous: data stays with its giver, handles travel
//
//   CO-1  exchanged is sent when all ranks have given, to each of them once.
//   CO-2  An exchange that is not complete within the deadline ends in exchange_missed for those who gave, with the ranks
//         that did not, the exchange and the layer. While the whole process is stopped no time passes.
//   CO-3  What belongs to another job or attempt is dropped.

#include <longstraw/actors/actor_base.hpp>

#include <chrono>
#include <map>
#include <vector>

namespace longstraw::actors {

class collective : public actor_base<messages::collective_actor> {
 public:
  collective(caf::actor_config& config, environment e, std::string name, index ranks);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  struct meeting {
    std::vector<messages::contribute> given;  // in order of arrival
    std::chrono::steady_clock::time_point first;
  };

  void gather(const messages::contribute& m);
  void begin(const messages::begin_exchanges& m);
  void look(const messages::exchange_tick& m);
  std::string missing(const meeting& m) const;
  std::chrono::milliseconds interval() const;
  void look_later();

  const index ranks_;
  index job_number_ = 0, attempt_ = 0;
  std::map<messages::exchange_key, meeting> open_;
  bool ticking_ = false;  // an exchange_tick is under way
  std::chrono::steady_clock::time_point looked_at_;
};

}  // namespace longstraw::actors
