#include "tests/support/faulty_link.h"

#include <utility>

#include "absl/log/check.h"

namespace strata {

FaultyLink::FaultyLink(Faults faults, Link::Receiver* receiver)
    : receiver_(receiver), faults_(std::move(faults)) {}

FaultyLink::~FaultyLink() { inner_.reset(); }  // before the members that its last calls use

void FaultyLink::SetInner(std::unique_ptr<Link> inner) {
  CHECK(inner_ == nullptr);
  inner_ = std::move(inner);
}

void FaultyLink::Hold() {
  MutexLock lock(&mu_);
  holding_ = true;
}

void FaultyLink::LetGo() {
  std::deque<Frame> frames;
  {
    MutexLock lock(&mu_);
    holding_ = false;
    frames.swap(held_);
  }
  for (Frame& frame : frames) CHECK_OK(Send(std::move(frame)));
}

absl::Status FaultyLink::Send(Frame frame) {
  absl::Status broken;
  {
    MutexLock lock(&mu_);
    if (holding_) {
      held_.push_back(std::move(frame));
      return absl::OkStatus();
    }
    if (!Pass(&frame)) broken = faults_.break_status;
  }
  if (broken.ok()) return inner_->Send(std::move(frame));
  inner_->Close(broken);
  return broken;
}

void FaultyLink::Close(absl::Status status) { inner_->Close(std::move(status)); }

void FaultyLink::OnFrame(Frame frame) {
  absl::Status broken;
  {
    MutexLock lock(&mu_);
    if (!Pass(&frame)) broken = faults_.break_status;
  }
  if (broken.ok()) {
    receiver_->OnFrame(std::move(frame));
  } else {
    inner_->Close(broken);
  }
}

void FaultyLink::OnClosed(absl::Status status) {
  {
    MutexLock lock(&mu_);
    if (faults_.closed_status.has_value()) status = *faults_.closed_status;
  }
  receiver_->OnClosed(std::move(status));
}

bool FaultyLink::Pass(Frame* frame) {
  if (faults_.break_after_frames >= 0 && passed_ >= faults_.break_after_frames) return false;
  ++passed_;
  if (faults_.tamper) faults_.tamper(frame);
  return true;
}

}  // namespace strata
