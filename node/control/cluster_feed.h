// The cluster's newest state for those that look once, and for those that watch: a thread fetches
// it once a second while anybody watches, and never else. Each watcher gets a stream of
// server-sent events: "cluster" and "models", whole, when more than ages has changed, "problem"
// while there is no state, and what happened (event_log.h), with ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "nlohmann/json.hpp"
#include "node/control/event_log.h"
#include "node/http/http_server.h"
#include "proto/coordinator.pb.h"
#include "transport/base/steady_time.h"

namespace strata {

inline constexpr size_t kWatchersMax = 256;
// Calls that wait for one look.
inline constexpr size_t kLooksWaitingMax = 256;
// A state's bytes that each watcher is sent in a second, about: a larger state is sent less often.
inline constexpr size_t kWatchBytesPerSecond = 64 * 1024;

struct ClusterState {
  ClusterSnapshot report;
  absl::StatusOr<std::vector<wire::ModelStatus>> models;
};

// Thread-safe. No call blocks but the destructor.
class ClusterFeed {
 public:
  struct Options {
    std::string origin;  // EventLog's
    // Blocks; called on the feed's thread.
    std::function<absl::StatusOr<ClusterState>()> fetch;
    absl::Duration every = absl::Seconds(1);
  };
  struct StateJson {
    nlohmann::json cluster;                 // StatusJson()
    absl::StatusOr<nlohmann::json> models;  // {"models":[…]}
  };
  explicit ClusterFeed(Options options);
  // REQUIRES: no response is open any more. Blocks until a fetch in progress has ended.
  ~ClusterFeed();

  // Calls `then` with the state as of now, on the feed's thread. kResourceExhausted: too many wait.
  using OnState = absl::AnyInvocable<void(const absl::StatusOr<StateJson>&) &&>;
  absl::Status Look(OnState then);

  // Streams events until the client goes, the kept ones behind `last_id` first.
  // kResourceExhausted: too many watch.
  absl::Status Watch(absl::string_view last_id, HttpResponse head,
                     const std::shared_ptr<HttpResponder>& responder);

 private:
  struct Watcher {
    std::shared_ptr<HttpResponder> responder;  // shared with the connection
    bool is_new = true;                        // has no state yet
  };
  // The state that watchers were sent last.
  struct Published {
    nlohmann::json json;
    std::string event;
    bool has_changed = false;
  };
  static void Update(nlohmann::json now, const char* type, bool any_is_new, Published* published);
  void Run();
  void Publish(const absl::StatusOr<ClusterState>& state, const absl::StatusOr<StateJson>& json)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  EventLog log_ ABSL_GUARDED_BY(mu_);

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<OnState> waiting_ ABSL_GUARDED_BY(mu_);
  std::list<Watcher> watchers_ ABSL_GUARDED_BY(mu_);
  SteadyTime next_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  bool is_new_ ABSL_GUARDED_BY(mu_) = false;  // a watcher has no state yet
  Published cluster_ ABSL_GUARDED_BY(mu_), models_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace strata
