#include "tests/support/recorder.h"

#include <chrono>
#include <utility>

namespace strata {
namespace {

std::chrono::steady_clock::time_point Patience() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

}  // namespace

// Two short locks rather than one long, so that calls that overlap are seen.
class Recorder::Call {
 public:
  explicit Call(Recorder* recorder) : recorder_(recorder) {
    MutexLock lock(&recorder_->mu_);
    if (recorder_->in_call_ || recorder_->n_closed_ > 0) ++recorder_->n_wrong_;
    recorder_->in_call_ = true;
  }
  ~Call() {
    MutexLock lock(&recorder_->mu_);
    recorder_->in_call_ = false;
    recorder_->changed_.NotifyAll();
  }

 private:
  Recorder* const recorder_;
};

void Recorder::OnFrame(Frame frame) {
  Call call(this);
  MutexLock lock(&mu_);
  frames_.push_back(std::move(frame));
}

void Recorder::OnWritable() {
  Call call(this);
  MutexLock lock(&mu_);
  ++n_writable_;
}

void Recorder::OnClosed(absl::Status status) {
  Call call(this);
  MutexLock lock(&mu_);
  ++n_closed_;
  closed_ = std::move(status);
}

bool Recorder::WaitForFrames(size_t n) {
  const auto patience = Patience();
  MutexLock lock(&mu_);
  while (frames_.size() < n) {
    if (!changed_.WaitUntil(&mu_, patience)) return false;
  }
  return true;
}

bool Recorder::WaitForWritable(size_t n) {
  const auto patience = Patience();
  MutexLock lock(&mu_);
  while (n_writable_ < n) {
    if (!changed_.WaitUntil(&mu_, patience)) return false;
  }
  return true;
}

absl::Status Recorder::WaitForClosed() {
  const auto patience = Patience();
  MutexLock lock(&mu_);
  while (n_closed_ == 0) {
    if (!changed_.WaitUntil(&mu_, patience)) {
      return absl::DeadlineExceededError("the link has not closed");
    }
  }
  return closed_;
}

std::vector<Frame> Recorder::frames() const {
  MutexLock lock(&mu_);
  return frames_;
}

size_t Recorder::n_frames() const {
  MutexLock lock(&mu_);
  return frames_.size();
}

size_t Recorder::n_writable() const {
  MutexLock lock(&mu_);
  return n_writable_;
}

size_t Recorder::n_closed() const {
  MutexLock lock(&mu_);
  return n_closed_;
}

size_t Recorder::n_wrong() const {
  MutexLock lock(&mu_);
  return n_wrong_;
}

}  // namespace strata
