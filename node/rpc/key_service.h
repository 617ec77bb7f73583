// The gRPC service wire.Key of every node: changes the cluster's key while its nodes run and serve
// requests. The node that receives ChangeKey leads the change:
//
//   1. It makes a new key and asks each live node to trust it, too (PREPARE). If one node cannot,
//      all forget the new key, and nothing has changed.
//   2. When all have read the new key, each stores it and shows its certificates (COMMIT).
//   3. When all have read those, every node stops trusting the old key (FINISH).
//
// So at each moment every node trusts the certificates that any other shows. Open connections are
// not cut: servers end them within a minute (process_security.h), links end when their model is
// unloaded. A node that is to be removed is left out, and refused from COMMIT on.
//
// If the leading node dies during the change, all nodes trust both keys and go on; the next change
// repairs that. The new key is sent under the protection of the old one: an active attacker in the
// middle (not a mere listener) who has the old key could get the new one, too.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "node/keys/node_security.h"
#include "proto/key.grpc.pb.h"
#include "transport/base/event_loop.h"

namespace strata {

// After this time a change counts as abandoned. Of two changes that begin together either both
// fail, or one follows the other.
inline constexpr int64_t kKeyChangeMs = 30'000;

class KeyService final : public wire::Key::Service {
 public:
  // REQUIRES: the pointers outlive the service, and the loop runs until the server with it has shut
  // down. `security` is null in a cluster without a key.
  KeyService(EventLoop* loop, ClusterRuntime* cluster, NodeSecurity* security)
      : loop_(loop), cluster_(cluster), security_(security) {}

  grpc::Status ChangeKey(grpc::ServerContext* context, const wire::ChangeKeyRequest* request,
                         wire::ChangeKeyResponse* response) override;
  grpc::Status TakeStep(grpc::ServerContext* context, const wire::KeyStep* request,
                        wire::KeyStepResponse* response) override;

 private:
  struct Member {
    std::string name;
    std::string address;  // empty: this node
  };
  struct Members {
    std::vector<Member> here;
    std::vector<std::string> away;  // their names
  };
  Members FindMembers(const std::string& remove);
  absl::Status Lead(const Members& members, const wire::ChangeKeyRequest& request,
                    wire::ChangeKeyResponse* response);
  absl::Status Ask(const Member& member, const wire::KeyStep& step);
  absl::Status Take(const wire::KeyStep& step);  // on the loop
  absl::Status Prepare(const wire::KeyStep& step);

  EventLoop* const loop_;
  ClusterRuntime* const cluster_;
  NodeSecurity* const security_;
  std::atomic<bool> leads_{false};

  // The change that this node takes part in; loop thread.
  std::string changing_to_;  // empty: none
  int64_t changing_since_ms_ = 0;
};

}  // namespace strata
