// One run of a simulated cluster that serves requests: faults happen to it for a while, then none,
// and every request has to end. Equal scenarios give equal outcomes. tests/sim only; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/sim/recovery_sim.h"

namespace strata {

struct RecoveryScenario {
  uint64_t seed = 1;
  size_t nodes = 0;  // 0: 3 to 6, by the seed
  // One fault at a time happens, and the rest of the nodes can hold the model: no request fails but
  // those whose own node dies.
  bool gentle = false;
  // Break the protocol, to show that it is noticed.
  bool plans_past_memory = false;
  bool forgets_pending_reloads = false;
  bool doubles_tokens = false;
  bool forgets_requests = false;
  bool ends_twice = false;
  bool forgets_bounds = false;
  bool takes_any_epoch = false;
  bool plans_on_drained_nodes = false;
  bool forgets_leases = false;
  bool forgets_stale_stages = false;
  bool forgets_to_write = false;
  bool forgets_unloads = false;
};

struct RecoveryOutcome {
  std::string wrong;  // the violation, and the last events; empty: none
  RecoverySim::Counts counts;
  uint64_t messages = 0;
  uint64_t digest = 0;  // of all events, to compare runs
};

RecoveryOutcome Play(const RecoveryScenario& scenario);

}  // namespace strata
