// Links between two ends of one process: the same protocol as every link
// (transport/link/link_session.h) over a transport that is a pair of queues, and that breaks,
// stalls or garbles on command.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "tests/support/fake_event_loop.h"
#include "transport/link/link.h"

namespace strata {

// The transport between two ends. Thread-safe.
class MemoryWire {
 public:
  virtual ~MemoryWire() = default;
  // Nothing passes any more, and both ends get kUnavailable, as with a peer that died.
  virtual void Break() = 0;
  // Nothing passes until Resume(), and neither end gets an error, as with a peer that hangs.
  virtual void Stall() = 0;
  virtual void Resume() = 0;
  // One bit of the next frame to the acceptor (or dialler) arrives flipped.
  virtual void FlipBitToAcceptor(size_t bit) = 0;
  virtual void FlipBitToDialler(size_t bit) = 0;
};

struct MemoryDialOptions {
  wire::Hello hello;                  // versions are filled in when unset
  bool allow_mixed_versions = false;  // dialler
  bool acceptor_allows_mixed_versions = false;
  int64_t timeout_ms = 10'000;
  // Null: each end calls its receiver on a thread of its own. Else both do on this loop, each frame
  // `delay_ms` after it was sent. Such links belong to the loop's thread; dialling moves `clock` by
  // the round trip of a Hello, and nothing waits for the clock when they are destroyed.
  FakeEventLoop* loop = nullptr;
  FakeClock* clock = nullptr;
  int64_t delay_ms = 0;
};

struct DialledMemoryLink {
  std::unique_ptr<Link> link;
  std::shared_ptr<MemoryWire> wire;  // shared with both ends
};

// Dials `accept` as if it were listening at an address. The same errors as DialGrpcLink().
absl::StatusOr<DialledMemoryLink> DialMemoryLink(MemoryDialOptions options, AcceptLinkFn accept,
                                                 Link::Receiver* receiver);

}  // namespace strata
