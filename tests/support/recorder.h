// A receiver that records its calls, for tests of code that uses links.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "transport/base/mutex.h"
#include "transport/link/frame.h"
#include "transport/link/link.h"

namespace strata {

// Thread-safe. Waits give up after half a minute and then return false or the current state.
class Recorder : public Link::Receiver {
 public:
  void OnFrame(Frame frame) override;
  void OnWritable() override;
  void OnClosed(absl::Status status) override;

  bool WaitForFrames(size_t n);
  bool WaitForWritable(size_t n);
  // How the link closed; kDeadlineExceeded if it did not.
  absl::Status WaitForClosed();

  std::vector<Frame> frames() const;
  size_t n_frames() const;
  size_t n_writable() const;
  size_t n_closed() const;
  // Calls that came after OnClosed() or while another ran: always 0, or the link is wrong.
  size_t n_wrong() const;

 private:
  class Call;

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mu_);
  size_t n_writable_ ABSL_GUARDED_BY(mu_) = 0;
  size_t n_closed_ ABSL_GUARDED_BY(mu_) = 0;
  size_t n_wrong_ ABSL_GUARDED_BY(mu_) = 0;
  bool in_call_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
