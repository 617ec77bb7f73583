// The part of a link that is the same over every transport: Hello first, credit, and closing
// exactly once. A Wire (gRPC in grpc_link.cc, memory in tests/support/) only carries whole frames,
// in order.
//
//   dialler                         acceptor
//      | -------- Hello -------------> |   versions checked, AcceptLinkFn called
//      | <------- Hello(credits) ----- |   or Close(status): refused
//      | -------- Step … ------------> |   at most `credits` not yet released
//      | <------- Credit(frames) ----- |
//      | <------- Close(status) -----> |   either side, once; then both end the wire
//
// Threads: Link's methods are called on any thread, On…() on the wire's threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "transport/base/mutex.h"
#include "transport/base/version.h"
#include "transport/link/frame.h"
#include "transport/link/link.h"

namespace strata {

// Most frames that a receiver may grant: bounds a sender's queue for a peer that does not read.
inline constexpr uint32_t kLinkCreditsMax = 1024;

// The limit of a Hello, which both ends keep: larger than any valid one.
inline constexpr size_t kHelloBytesMax = 64 << 10;

// How long a closing link waits for its peer before the wire is cancelled.
inline constexpr int64_t kLinkCloseMs = 1000;

class LinkSession : public std::enable_shared_from_this<LinkSession> {
 public:
  // One end of a wire. Read() and Write() may complete on any thread, but not inside the call;
  // there is at most one of each at a time.
  class Wire {
   public:
    virtual ~Wire() = default;
    // Completes with LinkSession::OnRead().
    virtual void Read() = 0;
    // False: completes with LinkSession::OnWritten(). True: done already, or the wire has broken
    // and a read will report it; OnWritten() is not called.
    virtual bool Write(Frame frame) = 0;
    // The link starts to close: if the wire has not ended kLinkCloseMs later, cancel it. At most
    // once. Must not block or call back.
    virtual void ExpectEnd() = 0;
    // Ends this side: no write is in flight and none follows. Completes with
    // LinkSession::OnEnded(), once the peer has ended too. `why` is for peers that got no kClose.
    virtual void End(const absl::Status& why) = 0;
    // Makes pending reads and writes fail. Must not block or call back.
    virtual void Cancel() = 0;
    // Whether this thread may wait for OnEnded(). False where the wire runs on this very thread.
    virtual bool CanWait() const { return true; }
    // As Link::wire(). Called once, in OnRead(), when the peer's Hello has come.
    virtual std::string name() const = 0;
  };

  // The side that sends the first Hello. `receiver` must outlive the link.
  static std::shared_ptr<LinkSession> Dialler(Wire* wire, wire::Hello hello, VersionPolicy policy,
                                              Link::Receiver* receiver);
  // The side that answers it. `accept` is called at most once, in OnRead().
  static std::shared_ptr<LinkSession> Acceptor(Wire* wire, VersionPolicy policy,
                                               AcceptLinkFn accept);

  // Begins to read, and sends the Hello if this side dialled. `wire` stays valid until OnEnded()
  // returns.
  void Start();

  // Dialler: waits for the peer's Hello. A status: the link never opened and no Receiver call
  // comes. At most once.
  absl::StatusOr<std::unique_ptr<Link>> AwaitOpen(int64_t timeout_ms);

  // Closes with `status` unless the link is open already.
  void CloseUnlessOpen(const absl::Status& status);

  // Called by the wire. One OnRead() and one OnWritten() at a time, perhaps concurrent with each
  // other. OnRead()'s status is kInvalidArgument when the bytes were no frame and reading may go
  // on, any other when the wire has broken or ended.
  void OnRead(absl::StatusOr<Frame> frame);
  void OnWritten(bool ok);
  // Last, after all other calls have returned. `status` says how the wire ended: OK if the peer
  // ended it in order, kUnavailable when it broke.
  void OnEnded(absl::Status status);
  // Cancels a wire that has not ended yet. Any thread, any time.
  void Cancel();

  // Whether the link has been open. Otherwise its end is only logged.
  bool opened();

 private:
  friend class SessionLink;
  enum class Role { kDialler, kAcceptor };

  LinkSession(Role role, Wire* wire, VersionPolicy policy)
      : role_(role), policy_(policy), wire_(wire) {}

  // Link's methods.
  absl::Status Send(Frame frame);
  void Release(uint32_t frames);
  void Close(const absl::Status& status);
  void Detach();

  // Starts the next write, or ends the wire when there is nothing left to write.
  void Pump();
  bool NextFrame(Frame* frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Each returns a status when the peer broke the protocol.
  absl::Status Handle(Frame frame);
  absl::Status HandleHello(const Frame& frame);
  absl::Status HandleCredit(const Frame& frame);
  absl::Status HandleClose(const Frame& frame);
  absl::Status HandleData(Frame frame);
  absl::Status Answer(const wire::Hello& peer);

  // Decides how the link ends; only the first call counts.
  void Finish(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartClose(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Break() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpectEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ClosedStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Bracket a call of the receiver. Null: don't call.
  Link::Receiver* EnterReceiver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveReceiver();

  // Constant after construction.
  const Role role_;
  const VersionPolicy policy_;
  Wire* const wire_;
  AcceptLinkFn accept_;  // called in OnRead() only

  // Written before the link opens, constant afterwards.
  wire::Hello local_;
  wire::Hello peer_;
  std::string wire_name_;

  Mutex mu_;
  CondVar changed_;
  Link::Receiver* receiver_ ABSL_GUARDED_BY(mu_) = nullptr;  // null once detached
  std::thread::id in_receiver_ ABSL_GUARDED_BY(mu_);         // the thread that is calling it
  std::thread::id in_on_open_ ABSL_GUARDED_BY(mu_);

  bool hello_seen_ ABSL_GUARDED_BY(mu_) = false;
  bool open_ ABSL_GUARDED_BY(mu_) = false;         // stays true when the link closes
  bool broken_ ABSL_GUARDED_BY(mu_) = false;       // a read or write has failed
  bool peer_closed_ ABSL_GUARDED_BY(mu_) = false;  // its kClose was read
  bool close_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool close_written_ ABSL_GUARDED_BY(mu_) = false;  // or being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool end_expected_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;          // Wire::End() is due or done
  bool ended_ ABSL_GUARDED_BY(mu_) = false;           // OnEnded() came
  bool close_reported_ ABSL_GUARDED_BY(mu_) = false;  // OnClosed() is due or done
  // How the link closed; unset while it is open, or broke and the wire has not reported how.
  std::optional<absl::Status> final_ ABSL_GUARDED_BY(mu_);

  std::deque<Frame> queue_ ABSL_GUARDED_BY(mu_);  // at most a Hello and `credits` frames
  uint32_t credit_ ABSL_GUARDED_BY(mu_) = 0;      // dialler: frames that may be sent
  bool wants_writable_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t held_ ABSL_GUARDED_BY(mu_) = 0;        // acceptor: frames received, not released
  uint32_t credit_due_ ABSL_GUARDED_BY(mu_) = 0;  // acceptor: released, credit not yet sent
};

}  // namespace strata
