#pragma once
// Each actor's typed handle: what it receives and what it answers. The compiler checks every actor
// against this table.

#include <longstraw/messages/conversations.hpp>

namespace longstraw::messages {

using supervisor_actor = typed_actor<
    caf::result<void>(run_job), caf::result<void>(cancel_job), caf::result<void>(phase_done),
    caf::result<void>(response_replayed), caf::result<void>(step_begun), caf::result<void>(vote),
    caf::result<void>(step_committed), caf::result<void>(fault), caf::result<void>(watchdog_tick)>;

using rank_actor =
    typed_actor<caf::result<void>(run_phase), caf::result<job_rewound>(rewind_job),
                caf::result<job_released>(release_job), caf::result<void>(entry_done),
                caf::result<void>(entry_failed), caf::result<void>(operation_done),
                caf::result<void>(operation_failed), caf::result<void>(exchanged),
                caf::result<void>(exchange_missed)>;

using layer_actor =
    typed_actor<caf::result<void>(run_entry), caf::result<job_rewound>(rewind_job),
                caf::result<job_released>(release_job), caf::result<void>(operation_done),
                caf::result<void>(operation_failed), caf::result<void>(exchanged),
                caf::result<void>(exchange_missed)>;

using page_store_actor =
    typed_actor<caf::result<pages_reserved>(reserve_pages), caf::result<pages_leased>(lease_pages),
                caf::result<void>(return_pages), caf::result<pages_dropped>(drop_pages)>;

using lane_actor =
    typed_actor<caf::result<void>(submit_operation), caf::result<lane_ready>(begin_lane_job),
                caf::result<void>(run_next_operation)>;

using optimizer_actor =
    typed_actor<caf::result<void>(begin_step), caf::result<void>(prepare_step),
                caf::result<void>(commit_step), caf::result<step_aborted>(abort_step),
                caf::result<void>(operation_done), caf::result<void>(operation_failed),
                caf::result<void>(exchanged), caf::result<void>(exchange_missed)>;

using collective_actor =
    typed_actor<caf::result<void>(contribute), caf::result<void>(begin_exchanges),
                caf::result<void>(exchange_tick)>;

using tracer_actor =
    typed_actor<caf::result<void>(flush_timeline), caf::result<timeline_closed>(close_timeline)>;

}  // namespace longstraw::messages
