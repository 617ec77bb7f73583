// Links over gRPC: raw frames on the bidirectional method /strata.wire.Link/Stream, one a message
// but for large payloads (grpc_message.h), without protobuf in between (generic stub, Slice,
// ByteBuffer). See link.h for the contract.
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
  // How long a peer may be silent before it is asked whether it still answers; 0: 60 s, since
  // membership notices sooner that it has gone, and its node that it hangs.
  int keepalive_ms = 0;
};

// Dials, exchanges Hellos and returns an open link. Blocks for at most `timeout_ms`; never call it
// on the loop thread. `receiver` must outlive the link, and may be called before this returns.
// `hello`'s versions are filled in when unset. Errors: kUnavailable nobody there,
// kDeadlineExceeded, kFailedPrecondition versions that do not fit, or the acceptor's own words.
absl::StatusOr<std::unique_ptr<Link>> DialGrpcLink(DialOptions options, Link::Receiver* receiver);

// Takes links. Register service() with the grpc::ServerBuilder that also has the control services.
class GrpcLinkAcceptor {
 public:
  using Accepted = AcceptedLink;
  using AcceptFn = AcceptLinkFn;  // one call at a time

  struct Options {
    bool allow_mixed_versions = false;
    int64_t hello_timeout_ms = 10'000;  // a peer that says nothing is closed after this
    int silent_max = 64;  // such peers at a time of one host; more are kResourceExhausted
  };
  GrpcLinkAcceptor(Options options, AcceptFn accept);
  // After the server has shut down, which waits for the links: destroy them first, or give
  // Server::Shutdown() a deadline.
  ~GrpcLinkAcceptor();

  grpc::CallbackGenericService* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
