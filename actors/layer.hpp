#pragma once
// One layer on one rank: its conditional state, the gradient of that state, and the passes that run through it.
//
// receives  run_entry, rewind_job, release_job (rank); operation_done, operation_failed (lane);
//           exchanged, exchange_missed (collective)
// sends     reserve_pages, lease_pages, return_pages, drop_pages (page store); submit_operation (lane);
//           contribute (collective); entry_done, entry_failed (rank)
// owns      the recurrent state of the captured prompt and of each sample, its snapshots at chunk borders and its
//           gradient; pages lie with the page store
//
//   LY-1  An operation that touches pages runs only under a lease, returned when the entry's last one is done.
//   LY-2  A backward entry reuses the pass, and the leases, of its forward or rebuild entry.
//   LY-3  The captured state is changed by capture entries only (a swept chunk writes the same bits once more); the
//         gradient of the state by backward entries only.
//   LY-4  A segment that follows an exchange runs after all ranks have given.

#include <longstraw/actors/actor_base.hpp>
#include <longstraw/actors/rank_parts.hpp>

#include <map>
#include <memory>
#include <set>
#include <vector>

namespace longstraw::actors {

class layer : public actor_base<messages::layer_actor> {
 public:
  layer(caf::actor_config& config, environment e, std::string name, index number, rank_parts parts);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  using buffer_ptr = std::shared_ptr<memory::buffer>;
  struct work;  // one entry from run_entry to entry_done
  using work_ptr = std::shared_ptr<work>;

  void run(const messages::run_entry& m);
  caf::result<messages::job_rewound> rewind(const messages::rewind_job& m);
  caf::result<messages::job_released> release(const messages::release_job& m);
  void operation_finished(const messages::operation_done& m);
  void operation_broke(const messages::operation_failed& m);
  void take_exchanged(const messages::exchanged& m);
  void exchange_failed(const messages::exchange_missed& m);

  void start_job(const messages::run_entry& m);
  void start_entry(const messages::run_entry& m);
  void prepare_decode(const work_ptr& w);
  void reserve(const work_ptr& w, const messages::page_owner& owner, index tokens);
  void lease_next(const work_ptr& w);
  void add_views(work& w, const messages::page_owner& owner, const std::vector<float*>& data);
  void start_forward(const work_ptr& w);
  void start_backward(const work_ptr& w);
  void submit_parts(const work_ptr& w);
  void submit_part(const work_ptr& w, bool meets);
  void submit_nothing(const work_ptr& w);
  void finish(const work_ptr& w);
  void give_back_leases(work& w);
  void drop_works();
  void report(const work& w, const error& e);
  buffer_ptr allocate(const char* arena, index floats) const;

  const index number_;
  rank_parts parts_;

  index job_number_ = 0;
  index attempt_ = 0;
  index prompt_tokens_ = 0;
  bool failed_ = false;  // an entry of this job failed here: the others are not started
  messages::entry_listener rank_;
  buffer_ptr captured_;   // recurrent state after the prompt
  buffer_ptr snapshots_;  // full gradient: the state before each chunk
  buffer_ptr
      d_captured_;  // full gradient: of the captured state, summed over responses; in the sweep of the state
                    // after the chunk
  buffer_ptr d_suffix_;                  // full gradient: of one response
  std::map<index, buffer_ptr> samples_;  // recurrent state of each generated sample
  std::map<index, work_ptr> in_flight_;  // by entry number
  std::map<const messages::token_pass*, work_ptr>
      kept_;  // forward or rebuild issued, backward to come
  std::set<messages::page_owner> reserved_;
};

}  // namespace longstraw::actors
