// The ordered, flow-controlled byte stream from one stage to the next, or between a stage and the
// coordinator. One narrow interface, so that gRPC (grpc_link.h), RDMA-capable transports and the
// in-memory and faulty links of the tests (tests/support/) look the same to a stage.
//
// A link is one-way for frames that need credit (kStep, kResult, kError): the dialler sends them,
// the acceptor receives them. Credit flows back. Each side may close.
//
// Flow control: the acceptor's Hello grants `credits` frames. Send() takes one credit; Release()
// gives it back once the receiver has room again. So a receiver never holds more frames than it
// granted, and a full stage pushes back on the stage before it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "transport/link/frame.h"

namespace strata {

class Link {
 public:
  // Called on the link's own thread, one call at a time, and never from inside Send(), Release() or
  // Close(). Must not block and must not destroy the link.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // Acceptor side. A frame of type kStep, kResult or kError, in the order sent. The receiver owes
    // one Release() for it.
    virtual void OnFrame(Frame frame) = 0;
    // Dialler side. Send() would succeed again, after it has returned kResourceExhausted.
    virtual void OnWritable() {}
    // Exactly once, last. The status of whichever Close() came first, this side's or the peer's;
    // kUnavailable when the connection broke. A link that is destroyed while open calls this before
    // ~Link returns. REQUIRES: the thread in ~Link holds no lock that OnClosed() takes.
    virtual void OnClosed(absl::Status status) = 0;
  };

  // Closes with OK, if still open, and waits until no Receiver call runs or can come: a second or
  // two at most when the peer does not answer. Not from a Receiver call.
  virtual ~Link() = default;

  // Dialler side, any thread, never blocks. kResourceExhausted: no credit; the frame was not taken,
  // wait for OnWritable(). kFailedPrecondition or the closing status: closed.
  virtual absl::Status Send(Frame frame) = 0;

  // Acceptor side, any thread. Gives back the credit of `frames` received frames.
  virtual void Release(uint32_t frames) = 0;

  // Any thread, any number of times; the first call counts. Frames already accepted by Send() are
  // sent before the close.
  virtual void Close(absl::Status status) = 0;

  // The peer's Hello.
  virtual const wire::Hello& peer() const = 0;

  // The name of its transport, for people: "gRPC", "UCX posix".
  virtual std::string wire() const = 0;
};

// An acceptor's decision to accept a dialler.
struct AcceptedLink {
  wire::Hello hello;         // the answer; its versions are filled in, its credits are not
  Link::Receiver* receiver;  // outlives the link
  // Called once, with the open link, before the first OnFrame(). On the link's thread: must not
  // block. OnClosed() does not come before it has returned, unless it destroys the link.
  absl::AnyInvocable<void(std::unique_ptr<Link>) &&> on_open;
};

// Called with a peer's Hello whose versions have been checked. A status refuses the link, and the
// dialler gets that status. On the link's thread: must not block.
using AcceptLinkFn = absl::AnyInvocable<absl::StatusOr<AcceptedLink>(const wire::Hello&)>;

}  // namespace strata
