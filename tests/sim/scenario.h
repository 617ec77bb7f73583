// One run of a simulated cluster: faults happen to it for a while, then none, and it has to come to
// rest in time. Equal scenarios give equal outcomes. tests/sim only; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace strata {

struct Scenario {
  uint64_t seed = 1;
  size_t nodes = 3;
  bool cliques = false;
  bool ignore_lease = false;
  bool through_wire = false;
  int64_t disturb_ms = 12'000;
  size_t disturb_every_ms = 1500;  // at most
  double loss = 0;                 // of messages, from beginning to end
  int64_t rest_ms = 5000;          // what the cluster has after the last change
  bool stays = true;               // what has come to rest stays as it is
  int64_t calm_after_ms = 5000;    // as of MembershipOptions
  bool until_moved = true;         // it is watched until all that should have moved
};

// Two hundred nodes, to which about eighty things happen.
Scenario LargeScenario(uint64_t seed);

struct Outcome {
  std::string wrong;    // the violation, and the last events; empty: none
  int64_t rest_ms = 0;  // how long rest took after the last change
  uint64_t messages = 0;
  uint64_t digest = 0;  // of all events, to compare runs
};

Outcome Play(const Scenario& scenario);

}  // namespace strata
