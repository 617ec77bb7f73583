// How a node's cluster runtime calls other nodes: unary calls of wire.Cluster, each to the address
// given. Tests replace it by networks that lose messages and partition. Loop thread.
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

  // Over gRPC, a connection for each address. Channels are made by MakeQuietChannel
  // (transport/rpc/grpc_channel.h), which sets the credentials. `loop` outlives it.
  static std::unique_ptr<PeerTransport> Grpc(EventLoop* loop);

  // Cancels the calls in flight; their `done` is destroyed without being called. After the loop has
  // run or on it; blocks only until gRPC has released the cancelled calls.
  virtual ~PeerTransport() = default;

  // `done` is called on the loop, never from inside this call. kUnavailable: no process
  // there; kDeadlineExceeded: no answer in time; else the peer's own status.
  virtual void Exchange(const std::string& address, const wire::Heartbeat& request,
                        int64_t timeout_ms, Done<wire::Heartbeat> done) = 0;
  virtual void Identify(const std::string& address, int64_t timeout_ms,
                        Done<wire::IdentifyResponse> done) = 0;

  // Whether the machine at the address refuses a new connection: no process listens there. Unknown
  // (false) where the host is a name, or there is no reply in time. `done` as above.
  virtual void IsRefused(const std::string& address, int64_t timeout_ms,
                         absl::AnyInvocable<void(bool) &&> done) = 0;

  // From now on calls `fn` on the loop as soon as a connection breaks, also an idle one: the
  // process at that address may have ended.
  virtual void OnBroken(std::function<void(const std::string& address)> fn) { (void)fn; }

  // Closes the connection to an address that is not used any more.
  virtual void Forget(const std::string& address) = 0;
};

}  // namespace strata
