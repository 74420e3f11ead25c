#pragma once
// Every message of the protocol, by conversation. Requests and their answers stand next to each
// other; interfaces.hpp lists who receives what. Large data never travels: messages carry handles
// to passes, pages and operations.
//
//   program -> supervisor   run_job ................ job_done
//   supervisor -> rank      run_phase .............. phase_done, response_replayed
//   supervisor -> rank      rewind_job ............. job_rewound
//   rank -> layer           run_entry .............. entry_done
//   layer -> page store     reserve_pages, lease_pages, return_pages, drop_pages
//   * -> lane               submit_operation ....... operation_done | operation_failed
//   * -> collective         contribute ............. exchanged | exchange_missed
//   supervisor -> optimizer begin_step, prepare_step (vote), commit_step, abort_step
//   * -> supervisor         fault

// What belongs to a job or attempt that is over is ignored. Messages of one sender to one receiver keep their order, and
// that is why entry_done, operation_done, phase_done and the like carry no attempt: a rank answers rewind_job only after
// its lane, then its layers, then its lane once more have answered, so all that they had to say of the attempt before lies
// ahead of that answer. Only what comes from another direction carries it: exchanges, faults, step_begun.

#include <longstraw/kernels/executor.hpp>
#include <longstraw/messages/caf.hpp>
#include <longstraw/messages/job.hpp>
#include <longstraw/messages/timeline.hpp>

namespace longstraw::messages {

using rank_id = index;
using page_id = std::int64_t;

// ---- job: program <-> supervisor

/// supervisor -> program.  The job is over: results are complete, or `failed` says why; nothing of
/// a failed job is committed.
struct job_done {
  trace_ctx ctx;
  job_ptr what;
  phase_seconds seconds;
  bool failed = false;
  errc code = errc::internal;
  std::string sentence;
  /// An actor ended or did not answer: the runtime runs no further job and is torn down by its owner.
  bool runtime_ended = false;
};

using job_listener = typed_actor<caf::result<void>(job_done)>;
/// program -> supervisor.  Run all phases of the job and, if it commits, the transaction.
/// answer:  job_done, exactly once.
/// order:   one job at a time; a second is answered with errc::bad_input.
struct run_job {
  trace_ctx ctx;
  job_ptr what;
  job_listener reply_to;
};

/// program -> supervisor.  Stop the running job; it ends in job_done with errc::cancelled.
struct cancel_job {
  trace_ctx ctx;
};

/// supervisor -> itself.  Has an operation finished since the last look?
struct watchdog_tick {
  trace_ctx ctx;
};

// ---- fault: any actor -> supervisor

/// Something failed that the sender cannot mend. The supervisor ends the job; the cause travels
/// unchanged.
struct fault {
  trace_ctx ctx;
  index job_number = 0;
  index attempt = 0;
  errc code = errc::actor_lost;
  std::string sentence;
};

// ---- phase: supervisor <-> rank

/// rank -> supervisor.
struct phase_done {
  trace_ctx ctx;
  rank_id rank = 0;
  index job_number = 0;
  phase which = phase::capture;
};
/// rank -> supervisor.  This rank's part of that response's gradient is complete: an entry of the
/// ledger.
/// repeat:  a second one for the same (response, rank) is a fault.
struct response_replayed {
  trace_ctx ctx;
  rank_id rank = 0;
  index job_number = 0;
  index response = 0;
};
using phase_listener = typed_actor<caf::result<void>(phase_done),
                                   caf::result<void>(response_replayed), caf::result<void>(fault)>;
/// supervisor -> rank.  Run the schedule entries of one phase.
/// answer:  phase_done, or fault.
/// order:   phases of a job in sequence.
struct run_phase {
  trace_ctx ctx;
  job_ptr what;
  index attempt = 0;
  phase which = phase::capture;
  phase_listener reply_to;
};
/// supervisor -> rank -> layers.  The job is over, well or not: drop its passes, queues and
/// captured state.
/// answer:  job_released, when nothing of the job is in memory any more.
/// repeat:  safe.
struct release_job {
  trace_ctx ctx;
  index job_number = 0;
};
struct job_released {
  trace_ctx ctx;
  index job_number = 0;
};
/// supervisor -> rank -> layers.  The attempt is void: drop its passes and the gradients of the state, keep the captured
/// state, which is valid as long as the parameters are those that it was computed with.
/// answer:  job_rewound, when nothing of the attempt runs or will be heard of any more.
struct rewind_job {
  trace_ctx ctx;
  index job_number = 0;
  index attempt = 0;  ///< the one that follows
};
struct job_rewound {
  trace_ctx ctx;
  rank_id rank = 0;
  index job_number = 0;
  index attempt = 0;
};

// ---- entry: rank <-> layer

/// layer -> rank.
struct entry_done {
  trace_ctx ctx;
  index job_number = 0;
  index number = 0;
};
/// layer -> rank.  The rank reports it to the supervisor as a fault, cause unchanged.
struct entry_failed {
  trace_ctx ctx;
  index job_number = 0;
  index number = 0;
  errc code = errc::actor_lost;
  std::string sentence;
};

using entry_listener = typed_actor<caf::result<void>(entry_done), caf::result<void>(entry_failed)>;

/// rank -> layer.  Run one schedule entry of this layer: get its pages, submit its operations to
/// the lane.
/// answer:  entry_done or entry_failed.
/// order:   entries in order of number; the next may arrive while this one waits.
struct run_entry {
  trace_ctx ctx;
  index attempt = 0;
  index number = 0;
  schedule_entry entry;
  token_pass_ptr pass;
  entry_listener reply_to;
};
// ---- page: layer <-> page store

/// What pages hold: keys and values (or what else a layer keeps of a token), or the gradient of the loss by them.
enum class page_use : std::uint8_t { state, gradient };

/// Whose pages: a prompt's captured state (sample = -1) or the tokens of one generated sample. Pages are what some
/// version of the parameters made of the tokens: an owner of another version is another owner.
struct page_owner {
  index policy_version = 0;
  index job_number = 0;
  index layer = 0;
  index sample = -1;
  page_use use = page_use::state;
  auto operator<=>(const page_owner&) const = default;
};
/// layer -> page store.  Make room for `tokens` tokens, all zero.
/// answer:  pages_reserved, or errc::over_budget.
/// repeat:  not allowed for the same owner.
struct reserve_pages {
  trace_ctx ctx;
  page_owner owner;
  index tokens = 0;
  index page_tokens = 0;
  index floats_per_token = 0;
};
struct pages_reserved {
  trace_ctx ctx;
  page_owner owner;
};
/// layer -> page store.  Right to read and write an owner's pages until returned; the store keeps
/// them where they are.
/// answer:  pages_leased, or errc::bad_input if the owner has no pages (dropped, or of an older
///          policy version).
struct lease_pages {
  trace_ctx ctx;
  page_owner owner;
};
struct pages_leased {
  trace_ctx ctx;
  page_owner owner;
  std::shared_ptr<const std::vector<float*>> data;  ///< one a page, in order of position; owns them
};
/// layer -> page store.
/// answer:  none.
struct return_pages {
  trace_ctx ctx;
  page_owner owner;
};
/// layer -> page store.  Free the pages of that job and layer, samples included, or those of its gradients alone. Ends
/// their leases, also those whose answer came too late for the layer; an operation that still uses the pages keeps their
/// memory.
/// answer:  pages_dropped.
struct drop_pages {
  trace_ctx ctx;
  index job_number = 0;
  index layer = 0;
  bool gradients_only = false;
};
struct pages_dropped {
  trace_ctx ctx;
};

// ---- operation: layer, rank, optimizer -> lane

/// lane -> whoever submitted.  A part that `answers` is done; if `last`, so is the entry.
struct operation_done {
  trace_ctx ctx;
  index job_number = 0;
  index entry = 0;
  index part = 0;
  bool last = true;
};
/// lane -> whoever submitted.  The operation threw; the lane goes on with nothing of this job.
struct operation_failed {
  trace_ctx ctx;
  index job_number = 0;
  index entry = 0;
  errc code = errc::actor_lost;
  std::string sentence;
};
using operation_listener =
    typed_actor<caf::result<void>(operation_done), caf::result<void>(operation_failed)>;

/// What the lane runs. `run` is called once, on the lane's thread.
struct operation {
  const char* name = "";    ///< for the timeline; a literal
  const char* detail = "";  ///< verb of its schedule entry; a literal
  schedule_entry entry;
  std::function<void(kernels::executor&)> run;
};
/// layer, rank, optimizer -> lane.  Run it when it is next: operations of a job run in order of
/// (entry, part), `last` says that the entry has no further part. entry = -1: outside the schedule,
/// run at once.
/// answer:  to reply_to, operation_done after the last part and after one that `answers`, or operation_failed.
struct submit_operation {
  trace_ctx ctx;
  index job_number = 0;
  index entry = 0;
  index part = 0;
  bool last = true;
  bool answers = false;
  std::shared_ptr<operation> what;
  job_ptr of;
  operation_listener reply_to;
};
/// rank -> lane.  What was submitted so far is dropped, and operations of another job from now on; `first_entry` is
/// next. Job 0 is no job.
/// answer:  lane_ready: no operation submitted before runs or will run.
struct begin_lane_job {
  trace_ctx ctx;
  index job_number = 0;
  index first_entry = 0;
};
struct lane_ready {
  trace_ctx ctx;
  index job_number = 0;
};
/// lane -> itself.  Run the next operation if it is there; messages that came meanwhile are handled
/// in between.
struct run_next_operation {
  trace_ctx ctx;
};

// ---- exchange: layer, rank, optimizer <-> collective

/// The number of an exchange: the same on every rank, because schedule and programs are.
struct exchange_key {
  index job_number = 0;
  index attempt = 0;
  index entry =
      0;  ///< of the schedule; after its last: the sum of the gradients, that of their squares
  index part = 0;  ///< of the entry: the part whose result is exchanged
  auto operator<=>(const exchange_key&) const = default;
};

/// What one rank gives: memory that stays as it is while anybody holds `keep`, but for the gradients of a transaction: of
/// those each rank writes its own shard, which no other reads.
struct given_data {
  std::shared_ptr<const void> keep;
  std::span<const std::byte> bytes;
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

/// collective -> every rank that gave.
struct exchanged {
  trace_ctx ctx;
  exchange_key key;
  std::shared_ptr<const std::vector<given_data>> given;  ///< by rank
};
/// collective -> every rank that gave.  Others did not in time; the sentence names them.
struct exchange_missed {
  trace_ctx ctx;
  exchange_key key;
  std::string sentence;
};
using exchange_listener =
    typed_actor<caf::result<void>(exchanged), caf::result<void>(exchange_missed)>;

/// layer, rank, optimizer -> collective.  What this rank gives to an exchange.
/// answer:  to reply_to, exchanged when all ranks have given, or exchange_missed after the deadline.
/// repeat:  a second one of the same rank and key is a bug.
struct contribute {
  trace_ctx ctx;
  exchange_key key;
  rank_id rank = 0;
  const char* what = "";    ///< name of the exchange; a literal
  const char* detail = "";  ///< direction, or what else tells two of that name apart; a literal
  index layer = -1;
  given_data given;
  exchange_listener reply_to;
};
/// supervisor -> collective.  Exchanges of another job or attempt are dropped from now on. Job 0 is no job.
/// answer:  none.
struct begin_exchanges {
  trace_ctx ctx;
  index job_number = 0;
  index attempt = 0;
};
/// collective -> itself.  Does somebody wait too long?
struct exchange_tick {
  trace_ctx ctx;
};

// ---- commit: supervisor <-> optimizer

/// optimizer -> supervisor.  Gradients are zero.
struct step_begun {
  trace_ctx ctx;
  rank_id rank = 0;
  index job_number = 0;
  index attempt = 0;
};
/// optimizer -> supervisor.  A no names the first parameter whose gradient is not finite.
struct vote {
  trace_ctx ctx;
  rank_id rank = 0;
  index job_number = 0;
  bool yes = false;
  errc code = errc::not_finite;
  std::string sentence;
};
/// optimizer -> supervisor.  Parameters and moments of the shard are those of the new version.
struct step_committed {
  trace_ctx ctx;
  rank_id rank = 0;
  index job_number = 0;
};
using commit_listener = typed_actor<caf::result<void>(step_begun), caf::result<void>(vote),
                                    caf::result<void>(step_committed), caf::result<void>(fault)>;
/// supervisor -> optimizer.  Clear the gradients of an earlier step or attempt.
/// answer:  step_begun.
struct begin_step {
  trace_ctx ctx;
  job_ptr what;
  index attempt = 0;
  commit_listener reply_to;
};
/// supervisor -> optimizer.  Sum the gradients of all ranks, check that they are finite, compute the norm; each rank its
/// shard.
/// answer:  vote.
struct prepare_step {
  trace_ctx ctx;
  index job_number = 0;
};
/// supervisor -> optimizer.  All voted yes: update parameters and moments of the rank's shard.
/// answer:  step_committed.
struct commit_step {
  trace_ctx ctx;
  index job_number = 0;
};
/// supervisor -> optimizer.  The step is void; its gradients are cleared before the next.
/// answer:  step_aborted: the optimizer submits nothing more of it. What it has submitted ends before the lane answers
///          a begin_lane_job that follows: a sum that came later would add to gradients of the next step.
struct abort_step {
  trace_ctx ctx;
  index job_number = 0;
};
struct step_aborted {
  trace_ctx ctx;
  rank_id rank = 0;
  index job_number = 0;
};

// ---- timeline: tracer <-> itself and program

/// tracer -> itself.  Move records from the timeline's buffer to the file.
struct flush_timeline {
  trace_ctx ctx;
};
/// program -> tracer.  Write what is left and complete the file.
/// answer:  timeline_closed, or errc::io_failed.
struct close_timeline {
  trace_ctx ctx;
};
struct timeline_closed {
  trace_ctx ctx;
  std::uint64_t records = 0;
  std::uint64_t dropped = 0;
};

}  // namespace longstraw::messages

// CAF must not try to serialize these: they hold handles to memory of this process.
#define LONGSTRAW_MESSAGES(apply)                                                                  \
  apply(run_job) apply(job_done) apply(cancel_job) apply(watchdog_tick) apply(run_phase)           \
      apply(phase_done) apply(response_replayed) apply(release_job) apply(job_released)            \
          apply(rewind_job) apply(job_rewound) apply(contribute) apply(exchanged)                  \
              apply(exchange_missed) apply(begin_exchanges) apply(exchange_tick) apply(run_entry)  \
                  apply(entry_done) apply(entry_failed) apply(reserve_pages) apply(pages_reserved) \
                      apply(lease_pages) apply(pages_leased) apply(return_pages) apply(drop_pages) \
                          apply(pages_dropped) apply(operation_done) apply(operation_failed)       \
                              apply(submit_operation) apply(begin_lane_job) apply(lane_ready)      \
                                  apply(run_next_operation) apply(begin_step) apply(step_begun)    \
                                      apply(prepare_step) apply(vote) apply(commit_step)           \
                                          apply(step_committed) apply(abort_step)                  \
                                              apply(step_aborted) apply(fault)                     \
                                                  apply(flush_timeline) apply(close_timeline)      \
                                                      apply(timeline_closed)

#define LONGSTRAW_UNSAFE(name) CAF_ALLOW_UNSAFE_MESSAGE_TYPE(longstraw::messages::name)
LONGSTRAW_MESSAGES(LONGSTRAW_UNSAFE)
#undef LONGSTRAW_UNSAFE

CAF_BEGIN_TYPE_ID_BLOCK(longstraw, caf::first_custom_type_id)
#define LONGSTRAW_TYPE_ID(name) CAF_ADD_TYPE_ID(longstraw, (longstraw::messages::name))
LONGSTRAW_MESSAGES(LONGSTRAW_TYPE_ID)
#undef LONGSTRAW_TYPE_ID
CAF_END_TYPE_ID_BLOCK(longstraw)

namespace longstraw::messages {

/// The name of a message type, for the timeline.
template <class Message>
constexpr const char* name_of();
#define LONGSTRAW_NAME(name)              \
  template <>                             \
  constexpr const char* name_of<name>() { \
    return #name;                         \
  }
LONGSTRAW_MESSAGES(LONGSTRAW_NAME)
#undef LONGSTRAW_NAME

}  // namespace longstraw::messages
