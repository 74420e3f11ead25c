#pragma once
// One layer on one rank: its program, its conditional state, and the passes that run through it.
//
// receives  run_entry, release_job (rank); operation_done, operation_failed (lane)
// sends     reserve_pages, lease_pages, return_pages, drop_pages (page store);
//           submit_operation (lane); entry_done, entry_failed (rank)
// owns      the recurrent state of the captured prompt and of each sample; pages lie with the page
//           store
//
//   LY-1  An operation that touches pages runs only under a lease, returned when the entry's last one
//         is done.
//   LY-2  A backward entry reuses the pass, and the lease, of its forward entry.
//   LY-3  The captured state is changed by capture entries only.

#include <longstraw/actors/actor_base.hpp>

#include <map>
#include <memory>
#include <set>
#include <vector>

namespace longstraw::actors {

class layer : public actor_base<messages::layer_actor> {
 public:
  layer(caf::actor_config& config, environment e, std::string name, index number,
        messages::lane_actor lane, messages::page_store_actor pages,
        std::shared_ptr<memory::arena> state_arena);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  // One entry from run_entry to entry_done.
  struct work {
    messages::run_entry request;
    models::layer_pass pass;
    std::vector<models::state_page> pages;  // what pass.pages points to
    std::vector<std::shared_ptr<const std::vector<float*>>> page_memory;  // PP-4: until it has run
    std::vector<messages::page_owner> to_lease;                           // still to ask for
    std::vector<messages::page_owner> leased;
    std::shared_ptr<memory::buffer> recurrent;  // what pass.recurrent_before points to
    std::shared_ptr<memory::buffer>
        copy_from;                  // first token of a sample: its state starts as a copy of this
    std::shared_ptr<work> forward;  // of a backward entry: whose pass and leases it uses
  };
  using work_ptr = std::shared_ptr<work>;

  void run(const messages::run_entry& m);
  caf::result<messages::job_released> release(const messages::release_job& m);
  void operation_finished(const messages::operation_done& m);
  void operation_broke(const messages::operation_failed& m);

  void start_job(const messages::run_entry& m);
  void start_entry(const messages::run_entry& m);
  void reserve(const work_ptr& w, const messages::page_owner& owner, index tokens);
  void lease_next(const work_ptr& w);
  void add_pages(work& w, const messages::page_owner& owner, const std::vector<float*>& data);
  void prepare(work& w);
  void submit_forward(const work_ptr& w);
  void submit_backward(const work_ptr& w);
  void submit(const work_ptr& w, index part, bool last, const char* name,
              std::function<void(work&)> body);
  void give_back_leases(work& w);
  void report(const work& w, const error& e);

  const index number_;
  messages::lane_actor lane_;
  messages::page_store_actor page_store_;
  const std::shared_ptr<memory::arena> state_arena_;

  index job_number_ = 0;
  index prompt_tokens_ = 0;
  bool failed_ = false;  // an entry of this job failed here: the others are not started
  messages::entry_listener rank_;
  std::shared_ptr<memory::buffer> captured_;  // recurrent state after the prompt
  std::map<index, std::shared_ptr<memory::buffer>>
      samples_;                          // recurrent state of each generated sample
  std::map<index, work_ptr> in_flight_;  // by entry number
  std::map<index, work_ptr> kept_;       // by response: forward issued, backward to come
  std::set<messages::page_owner> reserved_;
};

}  // namespace longstraw::actors
