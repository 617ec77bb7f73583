// The time for which loaded models stay: it says which model has had no request for as long as it
// is to be kept, and which goes first where another one needs room. A state machine without I/O,
// thread or clock. Not thread-safe, but for the end of what BeginRequest() returns.
//
// A model is in use while a request for it is under way, from the moment that the coordinator gets
// the request until its end, and while a caller holds a lease on it. It is idle since it was in use
// when Observe() last looked, or since its last request began or it was loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/models/model_table.h"
#include "transport/base/steady_time.h"

namespace strata {

class ModelRetention {
 public:
  using DeploymentPtr = ModelTable::DeploymentPtr;

  // A model that was in use a moment ago is left alone: its client may be about to go on.
  static constexpr absl::Duration kSettles = absl::Seconds(1);

  // A request for the model with that id is under way until the returned object is destroyed, which
  // may be at any time and on any thread.
  std::shared_ptr<void> BeginRequest(const std::string& id, SteadyTime now);
  // Now and then: which models there are, and which are in use.
  void Observe(const ModelTable& models, SteadyTime now);

  // One that is to be unloaded now, since it has been idle for its keep-alive; null: none is.
  // Models that are being loaded, moved or recovered are left alone.
  DeploymentPtr NextExpired(const ModelTable& models, SteadyTime now);
  // When NextExpired() may have one, if no request comes.
  SteadyTime next_at(const ModelTable& models) const;

  // Those that may be unloaded to make room, the one first that has been idle for longest: neither
  // pinned nor in use. For a load that a person asked for (`by_hand`), only models with a
  // keep-alive: what a person loaded to stay goes for a request, which its pin can prevent, and not
  // for another person's load.
  std::vector<DeploymentPtr> Evictable(const ModelTable& models, bool by_hand, SteadyTime now);

  // Whether Evictable() may have some once they are no longer in use.
  static bool AnyMayBeEvicted(const ModelTable& models, bool by_hand);

  bool IsInUse(const ModelTable& models, const std::string& id) const;
  // Zero: it is in use.
  absl::Duration IdleFor(const ModelTable& models, const std::string& id, SteadyTime now) const;

 private:
  struct Use {
    // Requests under way; shared with them.
    std::shared_ptr<std::atomic<int64_t>> requests = std::make_shared<std::atomic<int64_t>>(0);
    SteadyTime idle_since;
  };

  std::map<std::string, Use> uses_;  // by model id
};

}  // namespace strata
