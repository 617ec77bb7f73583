// Links over gRPC: raw frames on the bidirectional method /strata.wire.Link/Stream, one per message
// except for large payloads (grpc_message.h), without protobuf (generic stub, Slice, ByteBuffer).
// See link.h for the contract.
//
// gRPC's threads call the Receiver. Sources: gRPC callback API (proposal L67), generic stub and
// CallbackGenericService headers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "transport/link/link.h"

namespace grpc {
class CallbackGenericService;
}  // namespace grpc

namespace strata {

struct DialOptions {
  std::string address;  // host:port
  wire::Hello hello;
  bool allow_mixed_versions = false;
  int64_t timeout_ms = 10'000;
  // How long a peer may be silent before gRPC sends a keepalive ping; 0: 60 s, since membership
  // notices a peer's death sooner, and the peer's own node notices when the peer hangs.
  int keepalive_ms = 0;
};

// Dials, exchanges Hellos and returns an open link. Blocks for at most `timeout_ms`; never call it
// on the loop thread. `receiver` must outlive the link, and may be called before this returns.
// `hello`'s versions are filled in when unset. Errors: kUnavailable when nothing answers there,
// kDeadlineExceeded, kFailedPrecondition for incompatible versions, or the acceptor's own status.
absl::StatusOr<std::unique_ptr<Link>> DialGrpcLink(DialOptions options, Link::Receiver* receiver);

// Accepts links. Register service() with the grpc::ServerBuilder of the control services.
class GrpcLinkAcceptor {
 public:
  using Accepted = AcceptedLink;
  using AcceptFn = AcceptLinkFn;  // one call at a time

  struct Options {
    bool allow_mixed_versions = false;
    int64_t hello_timeout_ms = 10'000;  // a link without a Hello is closed after this
    int silent_max = 64;  // such links at a time of one host; more are kResourceExhausted
  };
  GrpcLinkAcceptor(Options options, AcceptFn accept);
  // REQUIRES: the server has shut down. Its shutdown waits for the links: destroy them first, or
  // give Server::Shutdown() a deadline.
  ~GrpcLinkAcceptor();

  grpc::CallbackGenericService* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
