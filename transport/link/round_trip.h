// How long a frame of 16 KiB takes over an open link, until its credit is back: the same over every
// wire, so that wires can be compared. What a token's activations take at n_embd 4096.
//
// Such links are marked in their Hello (`probe`), and no stage sees them: RoundTripSink takes them.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/base/mutex.h"
#include "transport/link/link.h"

namespace strata {

// Links that one sink takes at the same time; as many that have closed may wait for
// ReclaimClosedLinks().
inline constexpr size_t kRoundTripLinksMax = 8;

// The dialler's end: its link's receiver.
class RoundTripTimer final : public Link::Receiver {
 public:
  // The median of some. Blocks, for about 30 ms over a good wire. Errors: the link's, and
  // kDeadlineExceeded after three seconds.
  absl::StatusOr<absl::Duration> Measure(Link* link);

  void OnFrame(Frame) override {}
  void OnWritable() override;
  void OnClosed(absl::Status status) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  // Waits for credit until then. When it went.
  absl::StatusOr<Time> Send(Link* link, const Frame& frame, Time give_up);

  Mutex mu_;
  CondVar changed_;
  bool writable_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
};

// The acceptor's end of any number of such links. Outlives what they go over, or is emptied before.
class RoundTripSink {
 public:
  RoundTripSink();
  // Closes them.
  ~RoundTripSink();

  // What an AcceptLinkFn answers to a Hello with `probe`. kResourceExhausted: too many are open, or
  // have closed since ReclaimClosedLinks().
  absl::StatusOr<AcceptedLink> Accept();
  // Lets go of those that have closed; of all. Not from a link's thread.
  void ReclaimClosedLinks();
  void Clear();

 private:
  class End;
  Mutex mu_;
  std::vector<std::shared_ptr<End>> ends_ ABSL_GUARDED_BY(mu_);  // with their link's acceptor
};

}  // namespace strata
