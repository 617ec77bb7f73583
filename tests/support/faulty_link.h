// Wraps any link and fails on command: frames are changed or held back, or the link breaks after a
// number of them. Order is kept: links never reorder.
//
//   FaultyLink::Faults faults;
//   faults.break_after_frames = 3;
//   auto faulty = std::make_unique<FaultyLink>(std::move(faults), &receiver);
//   auto inner = DialGrpcLink(options, faulty->inner_receiver());
//   faulty->SetInner(*std::move(inner));      // then use `faulty` as the link
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "transport/base/mutex.h"
#include "transport/link/link.h"

namespace strata {

class FaultyLink final : public Link, private Link::Receiver {
 public:
  struct Faults {
    // After so many frames have passed, in either role, the link closes with `break_status`. -1:
    // never.
    int64_t break_after_frames = -1;
    absl::Status break_status = absl::UnavailableError("the wire was cut");
    // The status that the receiver gets instead of the one with which the link really closed.
    std::optional<absl::Status> closed_status;
    // May change each frame that passes. Called one frame at a time.
    absl::AnyInvocable<void(Frame*)> tamper;
  };

  FaultyLink(Faults faults, Link::Receiver* receiver);
  ~FaultyLink() override;

  // The receiver of the inner link.
  Link::Receiver* inner_receiver() { return this; }
  // REQUIRES: called once, before anything else but receiver calls.
  void SetInner(std::unique_ptr<Link> inner);

  // After Hold(), Send() keeps frames; LetGo() sends them in their order.
  void Hold();
  void LetGo();

  absl::Status Send(Frame frame) override;
  void Release(uint32_t frames) override { inner_->Release(frames); }
  void Close(absl::Status status) override;
  const wire::Hello& peer() const override { return inner_->peer(); }
  std::string wire() const override { return inner_->wire(); }

 private:
  void OnFrame(Frame frame) override;
  void OnWritable() override { receiver_->OnWritable(); }
  void OnClosed(absl::Status status) override;

  // Counts and tampers; false when the link breaks instead of passing this frame.
  bool Pass(Frame* frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Link::Receiver* const receiver_;
  std::unique_ptr<Link> inner_;  // set once

  Mutex mu_;
  Faults faults_ ABSL_GUARDED_BY(mu_);
  int64_t passed_ ABSL_GUARDED_BY(mu_) = 0;
  bool holding_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Frame> held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
