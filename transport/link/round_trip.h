// Measures how long a frame of 16 KiB takes over an open link, until its credit is back: the same
// over every transport, so that transports can be compared. 16 KiB is a token's activations at
// n_embd 4096.
//
// Such links are marked in their Hello (`probe`), and no stage sees them: RoundTripSink accepts
// them.
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

// Links that one sink accepts at the same time; as many closed ones may wait for
// ReclaimClosedLinks().
inline constexpr size_t kRoundTripLinksMax = 8;

// The dialler's end: its link's receiver.
class RoundTripTimer final : public Link::Receiver {
 public:
  // The median of several round trips. Blocks, for about 30 ms over a fast link. Errors: the
  // link's, and kDeadlineExceeded after three seconds.
  absl::StatusOr<absl::Duration> Measure(Link* link);

  void OnFrame(Frame) override {}
  void OnWritable() override;
  void OnClosed(absl::Status status) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  // Waits for credit until `give_up`. Returns the time of sending.
  absl::StatusOr<Time> Send(Link* link, const Frame& frame, Time give_up);

  Mutex mu_;
  CondVar changed_;
  bool writable_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
};

// The acceptor's end of any number of such links. Must outlive their transports, or be emptied
// before.
class RoundTripSink {
 public:
  RoundTripSink();
  // Closes them.
  ~RoundTripSink();

  // The result of an AcceptLinkFn for a Hello with `probe`. kResourceExhausted: too many links are
  // open, or have closed since ReclaimClosedLinks().
  absl::StatusOr<AcceptedLink> Accept();
  // Destroy the closed links; all links. Not from a link's thread.
  void ReclaimClosedLinks();
  void Clear();

 private:
  class End;
  Mutex mu_;
  std::vector<std::shared_ptr<End>> ends_ ABSL_GUARDED_BY(mu_);  // shared with PromisedLink
};

}  // namespace strata
