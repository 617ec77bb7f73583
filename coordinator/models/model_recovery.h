// Decides when models that lost a stage are placed again, and how: a worker or a node has died, or
// a link broke. A state machine without I/O, thread or clock; README.md says what follows from
// which loss. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/models/deployment.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/models/model_table.h"
#include "coordinator/models/reload_queue.h"
#include "transport/base/steady_time.h"

namespace strata {

// When lost models are recovered, and those of the queue tried: when something has changed that may
// help, and else more and more rarely; lost models so where they lacked nothing but room.
class RecoverySchedule {
 public:
  void OnLost() { lost_ = true; }             // a model may have lost a stage
  void OnMembersChanged() { retry_ = true; }  // or there are models that were never tried
  void OnRoomMade() { room_ = true; }         // memory that models of the queue may find
  bool is_due() const { return lost_ || retry_ || room_; }
  SteadyTime next_at() const;  // the latest to begin the next round; is_due(): at once

  struct Round {
    std::vector<std::shared_ptr<Deployment>> recover;  // shared with the table
    std::vector<std::string> reload;                   // ids
  };
  // `may_act` as LeaderRole's.
  Round Begin(const ModelTable& models, const ReloadQueue& reloads, bool may_act, SteadyTime now);
  // `deferred`: something was to be reloaded, but a model that serves lost a stage, which comes
  // first. `is_leader` as LeaderRole's.
  void End(const ModelTable& models, const ReloadQueue& reloads, bool is_leader, bool deferred,
           SteadyTime now);

 private:
  // Room may also come from elsewhere, and a node that starts may not answer yet: tried again after
  // the first time, which then doubles.
  static constexpr absl::Duration kRetryAfter = absl::Seconds(10),
                                  kRetryAfterMax = absl::Minutes(1);
  static constexpr absl::Duration kDeferredFor = absl::Milliseconds(50);

  bool lost_ = false, retry_ = false, room_ = false;
  SteadyTime retry_at_ = SteadyTime::InfiniteFuture();
  absl::Duration retry_after_ = kRetryAfter;
  SteadyTime deferred_until_ = SteadyTime::InfiniteFuture();
  SteadyTime paused_until_ = SteadyTime::InfiniteFuture();
};

// How the layers of `lost` are placed again.
struct RecoveryDecision {
  absl::Status give_up;               // not OK: they are not
  bool is_healthy = false;            // it served for long, or lost nothing since it was recovered
  uint32_t in_a_row = 0;              // recoveries that led to this loss, each soon after the other
  uint32_t next_in_a_row = 0;         // the same of the next deployment
  std::vector<CapacityLimit> limits;  // to plan with
  bool is_of_wrong_numbers = false;   // a device computed them: the loss's own words come first
};
RecoveryDecision DecideRecovery(const Deployment& lost);

// A recovery has failed with `why`. True: its requests wait on, for what does not answer now may be
// back in a moment, and its memory with it. `lost_a_node`: and not only a stage.
bool WaitsForReturn(const Deployment& lost, bool was_recovering, bool lost_a_node,
                    const absl::Status& why);

}  // namespace strata
