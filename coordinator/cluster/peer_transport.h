// How a node's cluster runtime talks to other nodes: unary calls of wire.Cluster, each over the
// address it names. The seam behind which tests put networks that lose and partition. Loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "transport/base/event_loop.h"

namespace strata {

class PeerTransport {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  // Over gRPC, a connection for each address. Channels are made by MakeChannel (grpc_link.h), where
  // credentials have their place. `loop` outlives it.
  static std::unique_ptr<PeerTransport> Grpc(EventLoop* loop);

  // Cancels what is under way; its `done` is destroyed without being called. After the loop has run
  // or on it; blocks only until gRPC has let go of what was cancelled.
  virtual ~PeerTransport() = default;

  // `done` is called on the loop, never from inside this call. kUnavailable: nobody there;
  // kDeadlineExceeded: no answer in time; else the peer's own words.
  virtual void Exchange(const std::string& address, const wire::Heartbeat& request,
                        int64_t timeout_ms, Done<wire::Heartbeat> done) = 0;
  virtual void Identify(const std::string& address, int64_t timeout_ms,
                        Done<wire::IdentifyResponse> done) = 0;

  // Whether the system of the machine at the address refuses a fresh connection: nobody listens
  // there. Not known (false) where the host is a name, or nothing comes back in time. `done` as
  // above.
  virtual void IsRefused(const std::string& address, int64_t timeout_ms,
                         absl::AnyInvocable<void(bool) &&> done) = 0;

  // From now on calls `fn` on the loop whenever a connection breaks, at once, also where nothing
  // goes over it: perhaps the process at that address has ended.
  virtual void OnBroken(std::function<void(const std::string& address)> fn) { (void)fn; }

  // Closes the connection to an address that is not used any more.
  virtual void Forget(const std::string& address) = 0;
};

}  // namespace strata
