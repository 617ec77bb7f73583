// Long calls to the coordinator, each on a thread of its own, through this node's own gRPC address:
// that node forwards them to the one that coordinates, as it does for commands.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "node/client/coordinator_client.h"

namespace strata {

inline constexpr size_t kControlCallsMax = 16;

// Thread-safe.
class ControlCalls {
 public:
  using NewClient = std::function<std::unique_ptr<CoordinatorClient>()>;
  explicit ControlCalls(NewClient new_client) : new_client_(std::move(new_client)) {}
  // Ends all calls with kCancelled, and waits for them.
  ~ControlCalls();

  // Runs `call`, which may block, on a thread. kResourceExhausted: kControlCallsMax run.
  absl::Status Start(absl::AnyInvocable<void(CoordinatorClient*) &&> call);

 private:
  struct Call {
    std::unique_ptr<CoordinatorClient> client;
    std::thread thread;
    bool has_ended = false;
  };
  void JoinEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const NewClient new_client_;
  absl::Mutex mu_;
  std::list<Call> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
