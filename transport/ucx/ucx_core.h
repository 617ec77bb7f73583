// One UCX context with one worker, and the lock for every call of them: UCX is not thread-safe
// here, so its callers hold `mu`. Part of links over UCX (ucx_link.h).
//
// Threads: any. UCX calls back inside ucp_worker_progress(), and, where a receive fails at once,
// inside the call that begins it: so under `mu`, on the thread of UcxLinks.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/base/mutex.h"
#include "transport/link/payload.h"
#include "transport/ucx/ucx_buffers.h"
#include "transport/ucx/ucx_library.h"

namespace strata {

class UcxCore;
class UcxWire;

// A message being sent: UCX reads its members until it reports the message as sent.
struct UcxOutgoing {
  UcxCore* core;            // outlives all messages that UCX has
  std::string header;       // checksum and front
  std::string long_header;  // a frame header that does not fit there
  Payload payload;
  ucp_dt_iov_t pieces[2];
};

// UCX's status as ours: kUnavailable for every error of peers and connections.
absl::Status FromUcx(ucs_status_t status, absl::string_view what);

class UcxCore : public std::enable_shared_from_this<UcxCore> {
 public:
  struct Options {
    std::string transports;  // UCX's names, separated by commas
    std::string devices;     // the network devices it may use and listen on
  };
  // kUnavailable when UCX does not start with these options.
  static absl::StatusOr<std::shared_ptr<UcxCore>> Make(const Options& options);
  // Runs after the last payload of Lend() is gone: these share the core.
  ~UcxCore();

  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }
  UcxBuffers& buffers() { return *buffers_; }
  // Ends a poll of event_fd(). Any thread, with or without `mu`.
  void Wake() { Ucx().ucp_worker_signal(worker_); }

  // A payload of bytes that UCX leaves to us. The last copy of the payload marks them as unneeded,
  // on any thread, with or without `mu`.
  Payload Lend(void* data, size_t size);
  // Releases the unneeded bytes to UCX.
  void TakeBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // `wire` may have something to do outside `mu`.
  void Ready(std::shared_ptr<UcxWire> wire) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Asserts to the compiler that `mu` is held, where UCX calls back and where UcxLinks calls a
  // wire.
  void AssertHeld() ABSL_ASSERT_EXCLUSIVE_LOCK(mu) {}

  Mutex mu;
  std::deque<std::shared_ptr<UcxWire>> ready ABSL_GUARDED_BY(mu);  // each at most once
  // Sent messages, to be destroyed outside `mu`, because a payload's owner may do anything then.
  std::vector<std::unique_ptr<UcxOutgoing>> sent ABSL_GUARDED_BY(mu);
  int closing ABSL_GUARDED_BY(mu) = 0;  // endpoints that UCX has not closed yet

 private:
  struct Loan;
  UcxCore() = default;
  absl::Status Start(const Options& options);

  // Constant after Make().
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  const std::shared_ptr<UcxBuffers> buffers_ = UcxBuffers::Make();  // shared with buffers in use

  Mutex lent_mu_;  // taken last of all locks
  std::vector<void*> unneeded_ ABSL_GUARDED_BY(lent_mu_);
};

}  // namespace strata
