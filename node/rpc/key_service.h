// The gRPC service wire.Key of every node: the cluster's key changes while its nodes run, and texts
// are written. The node that a person asks leads:
//
//   1. It makes a new key and asks each node that is here to trust it, too (PREPARE). If one
//   cannot,
//      all forget it, and nothing has changed.
//   2. When all have read that, each keeps the new key and shows its certificates (COMMIT).
//   3. When all have read that, nobody trusts the key of before any more (FINISH).
//
// So at each moment whoever shows a certificate is trusted by whoever sees it. Connections that
// stand are used up: servers end them within a minute (process_security.h), links when their model
// is unloaded. A node that is to be removed is left out, and refused from COMMIT on.
//
// Where the node that leads dies on the way, all trust both keys and go on; the next change heals
// that. The new key travels under the protection of the old one: who has that, is on the way and
// takes part actively (not only listens) could get the new one, too.
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

// Two changes that begin together end with neither, or one after the other.
inline constexpr int64_t kKeyChangeMs = 30'000;

class KeyService final : public wire::Key::Service {
 public:
  // All outlive it; the loop runs until the server with this service has shut down. `security` is
  // null where everything is plain: then there is no key to change.
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

  // Of the change that this node takes part in; loop thread.
  std::string changing_to_;  // empty: none
  int64_t changing_since_ms_ = 0;
};

}  // namespace strata
