// One UCX context with one worker, and what must hold around every call of them: UCX is not
// thread-safe here, so whoever calls it holds `mu`. Part of links over UCX (ucx_link.h).
//
// Threads: any. UCX calls back inside ucp_worker_progress(), and where a receive fails at once
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

// A message on its way out: UCX reads these until it says that they have gone.
struct UcxOutgoing {
  UcxCore* core;            // outlives what UCX has
  std::string header;       // checksum and front
  std::string long_header;  // what did not fit there
  Payload payload;
  ucp_dt_iov_t pieces[2];
};

// What UCX says, as what the caller can do: kUnavailable for everything about peers and ways.
absl::Status FromUcx(ucs_status_t status, absl::string_view what);

class UcxCore : public std::enable_shared_from_this<UcxCore> {
 public:
  struct Options {
    std::string transports;  // as UCX names them, with commas between
    std::string devices;     // the network devices it may use and listen on
  };
  // kUnavailable when UCX does not start so.
  static absl::StatusOr<std::shared_ptr<UcxCore>> Make(const Options& options);
  // After the last message that it lent.
  ~UcxCore();

  ucp_worker_h worker() const { return worker_; }
  int event_fd() const { return event_fd_; }
  UcxBuffers& buffers() { return *buffers_; }
  // Ends a poll of event_fd(). Any thread, with or without `mu`.
  void Wake() { Ucx().ucp_worker_signal(worker_); }

  // Bytes that UCX gave for good, until the last copy of the payload goes: on any thread, with or
  // without `mu`.
  Payload Lend(void* data, size_t size);
  // Gives back to UCX what is not needed any more.
  void TakeBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // `wire` may have something to do outside `mu`.
  void Ready(std::shared_ptr<UcxWire> wire) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Tells the compiler what holds where UCX calls back and where a wire is asked by its owner.
  void AssertHeld() ABSL_ASSERT_EXCLUSIVE_LOCK(mu) {}

  Mutex mu;
  std::deque<std::shared_ptr<UcxWire>> ready ABSL_GUARDED_BY(mu);  // each at most once
  // Sent; to be destroyed outside `mu`, because a payload's owner may be anything.
  std::vector<std::unique_ptr<UcxOutgoing>> sent ABSL_GUARDED_BY(mu);
  int closing ABSL_GUARDED_BY(mu) = 0;  // endpoints that UCX has not let go yet

 private:
  struct Lent;
  UcxCore() = default;
  absl::Status Start(const Options& options);

  // Constant after Make().
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  const std::shared_ptr<UcxBuffers> buffers_ = UcxBuffers::Make();  // shared with what is in use

  Mutex lent_mu_;  // last of all locks
  std::vector<void*> unneeded_ ABSL_GUARDED_BY(lent_mu_);
};

}  // namespace strata
