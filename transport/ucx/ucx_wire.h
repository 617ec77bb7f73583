// One end of a link over UCX: sends messages in order, each with its checksum, queues received
// messages until they are read, and ends the wire. See ucx_link.h for the link and link_session.h
// for the Wire interface.
//
// Threads: Wire's methods may be called on any thread. UCX calls On…() on the thread of UcxLinks;
// these and the methods marked "locked" require the core's lock. All other methods belong to the
// thread of UcxLinks.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/base/mutex.h"
#include "transport/link/link_session.h"
#include "transport/ucx/ucx_core.h"
#include "transport/ucx/ucx_message.h"
#include "transport/ucx/ucx_seal.h"

namespace strata {

// A peer that sends nothing, not even pings, for kUcxSilenceMs while this side could receive is
// dead: the same time as gRPC's keepalive where a call waits.
inline constexpr int64_t kUcxPingMs = 400;
inline constexpr int64_t kUcxSilenceMs = 1000;
// The same on a wire that has carried only pings for kUcxQuietAfterMs: membership notices a dead
// machine sooner.
inline constexpr int64_t kUcxQuietAfterMs = 5'000;
inline constexpr int64_t kUcxQuietPingMs = 10'000;
inline constexpr int64_t kUcxQuietSilenceMs = 30'000;
// Messages received and not read: more than a sender with all its credit can have in flight. A
// frame's pieces count as one: the frame's prefix announces them.
inline constexpr size_t kUcxInboxMax = kLinkCreditsMax + 16;
// The same before the peer has shown its token: enough for the token and the Hello.
inline constexpr size_t kUcxUnprovenInboxMax = 4;
// Bytes fetched at a time where UCX leaves messages' data with the sender; at least one message.
inline constexpr uint64_t kUcxFetchBytesMax = 4 * kUcxPieceBytes;

class UcxWire final : public LinkSession::Wire, public std::enable_shared_from_this<UcxWire> {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The ticket's data that belongs to a valid token.
  struct Proof {
    std::string key;
    int64_t hello_timeout_ms = 0;
    std::shared_ptr<LinkSession> session;  // shared with the link
  };
  // Makes the session for the peer that shows `token`. Called once, on the thread of UcxLinks.
  using ProveFn = absl::AnyInvocable<absl::StatusOr<Proof>(UcxWire*, absl::string_view token) &&>;

  // `peer` is the peer's name for error messages. `thread` is that of UcxLinks.
  UcxWire(std::shared_ptr<UcxCore> core, std::string peer, std::thread::id thread);

  // After construction call StartDialling() or StartAccepting(), and then SetEndpoint() before
  // anything is sent.
  using BreakFn = absl::AnyInvocable<void(const absl::Status&) &&>;  // may be empty
  void StartDialling(absl::string_view key, std::shared_ptr<LinkSession> session, BreakFn on_break);
  void StartAccepting(ProveFn prove, Time prove_by);  // locked
  void SetEndpoint(ucp_ep_h ep);                      // locked

  // The dialler's first message.
  void SendOpen(absl::string_view token);

  void Read() override;
  bool Write(Frame frame) override;
  void ExpectEnd() override;
  void End(const absl::Status& why) override;
  void Cancel() override;
  bool CanWait() const override { return std::this_thread::get_id() != thread_; }
  std::string name() const override;

  // A message has come. UCX owns the bytes; UCS_INPROGRESS keeps `data`.
  ucs_status_t OnMessage(UcxKind kind, absl::string_view header, void* data, size_t size,
                         uint64_t attributes);
  // UCX reports an error of the connection to the peer.
  void OnError(ucs_status_t status);

  // Does one step that is due; false when none is.
  bool Step();
  // Checks the timeouts and sends pings; called about every kPollMs.
  void Tick(Time now, Time last_tick);
  // The peer's token was valid, or this side dialled. Locked.
  bool proven() const;
  // The peer's Hello has come as well, or this side dialled. Locked.
  bool greeted() const;
  // Nothing will be read, written or reported any more: the endpoint can be closed. Locked.
  bool over() const;
  // Only pings are sent and received, and no timeout is near. Locked.
  bool quiet(Time now) const;
  // Not broken, so the last messages sent should still reach the peer. Locked.
  bool in_order() const;
  // Breaks the wire; only the first status counts. Locked.
  void Break(const absl::Status& status);

  bool in_ready = false;  // used by UcxCore, under its lock

 private:
  friend struct UcxFetch;
  struct Message;

  void Send(UcxKind kind, absl::string_view front, std::string long_header, Payload payload);
  // Begins to fetch announced data, within the limit.
  void Fetch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void OnFetched(Message* message, ucs_status_t status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Processes the next message in order.
  void Handle(const Message& message);
  void HandleOpen(const Message& message);
  void Refuse(const absl::Status& status);
  void LogRefusal(const absl::Status& why) const;
  // A message other than a ping is sent or received. Returns whether the wire was quiet.
  bool EndQuiet(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status CheckSum(const Message& message);

  // Constant after construction.
  const std::shared_ptr<UcxCore> core_;  // shared with other wires and the payloads of Lend()
  const std::string peer_;
  const std::thread::id thread_;

  // Set before the first message, by an acceptor once the token is valid; constant afterwards.
  std::shared_ptr<LinkSession> session_;  // shared with the link
  std::unique_ptr<UcxSeal> seal_in_;      // thread of UcxLinks only, once set

  // Thread of UcxLinks only.
  ProveFn prove_;
  BreakFn on_break_;  // dialler
  int64_t hello_timeout_ms_ = 0;
  bool open_seen_ = false;
  UcxJoiner joiner_;

  Mutex send_mu_;  // taken before the core's: messages are sent in the order of their numbers
  std::unique_ptr<UcxSeal> seal_out_ ABSL_GUARDED_BY(send_mu_);

  ucp_ep_h ep_ ABSL_GUARDED_BY(core_->mu) = nullptr;
  std::deque<std::shared_ptr<Message>> inbox_ ABSL_GUARDED_BY(core_->mu);  // shared with fetches
  size_t unread_ ABSL_GUARDED_BY(core_->mu) = 0;  // messages in the inbox that count
  uint64_t rest_ ABSL_GUARDED_BY(core_->mu) = 0;  // bytes still to come of the last payload
  uint64_t fetching_bytes_ ABSL_GUARDED_BY(core_->mu) = 0;
  Time last_heard_ ABSL_GUARDED_BY(core_->mu);
  Time last_sent_ ABSL_GUARDED_BY(core_->mu);
  // The last message other than a ping, sent or received; and the start of that activity, without a
  // quiet time in between.
  Time last_used_ ABSL_GUARDED_BY(core_->mu) = std::chrono::steady_clock::now();
  Time used_since_ ABSL_GUARDED_BY(core_->mu) = last_used_;
  Time prove_by_ ABSL_GUARDED_BY(core_->mu) = Time::max();
  Time hello_by_ ABSL_GUARDED_BY(core_->mu) = Time::max();
  Time end_by_ ABSL_GUARDED_BY(core_->mu) = Time::max();
  bool proven_ ABSL_GUARDED_BY(core_->mu) = false;
  bool greeted_ ABSL_GUARDED_BY(core_->mu) = false;
  bool reading_ ABSL_GUARDED_BY(core_->mu) = false;
  bool read_over_ ABSL_GUARDED_BY(core_->mu) = false;
  bool peer_ended_ ABSL_GUARDED_BY(core_->mu) = false;
  bool ended_ ABSL_GUARDED_BY(core_->mu) = false;  // this side
  bool over_ ABSL_GUARDED_BY(core_->mu) = false;   // the session's OnEnded() is due or done
  bool broken_ ABSL_GUARDED_BY(core_->mu) = false;
  absl::Status why_ ABSL_GUARDED_BY(core_->mu);
};

}  // namespace strata
