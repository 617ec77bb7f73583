// One end of a link over UCX: messages in order, each with its checksum, what arrived and is not
// read yet, and how the wire ends. See ucx_link.h for the link and link_session.h for what it
// needs.
//
// Threads: the methods of Wire are called by any. On… come from UCX, on the thread of UcxLinks, and
// need the core's lock held, as do those that say "locked". The rest is that thread's.
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

// A peer that sends nothing, not even pings, for this long while it could be heard is gone: as long
// as gRPC's keepalive where a call waits.
inline constexpr int64_t kUcxPingMs = 400;
inline constexpr int64_t kUcxSilenceMs = 1000;
// The same on a wire on which nothing but pings has gone for kUcxQuietAfterMs: membership notices
// sooner whose machine has gone.
inline constexpr int64_t kUcxQuietAfterMs = 5'000;
inline constexpr int64_t kUcxQuietPingMs = 10'000;
inline constexpr int64_t kUcxQuietSilenceMs = 30'000;
// Messages received and not read: more than a sender with all its credit can have under way.
// A frame's pieces count as one: they are what it said that they would be.
inline constexpr size_t kUcxInboxMax = kLinkCreditsMax + 16;
// Before the peer has shown its token: that, and its Hello.
inline constexpr size_t kUcxUnprovenInboxMax = 4;
// Where UCX has messages' data fetched from where it lies: so much at a time, at least one's.
inline constexpr uint64_t kUcxFetchBytesMax = 4 * kUcxPieceBytes;

class UcxWire final : public LinkSession::Wire, public std::enable_shared_from_this<UcxWire> {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What a token stands for.
  struct Proof {
    std::string key;
    int64_t hello_timeout_ms = 0;
    std::shared_ptr<LinkSession> session;  // shared with the link
  };
  // Makes the session of who shows `token`. Called once, on the thread of UcxLinks.
  using ProveFn = absl::AnyInvocable<absl::StatusOr<Proof>(UcxWire*, absl::string_view token) &&>;

  // `peer` names it in messages. `thread` is that of UcxLinks.
  UcxWire(std::shared_ptr<UcxCore> core, std::string peer, std::thread::id thread);

  // After construction, one of these; and then SetEndpoint() before anything is sent.
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

  // A message has come. The bytes are UCX's; UCS_INPROGRESS keeps `data`.
  ucs_status_t OnMessage(UcxKind kind, absl::string_view header, void* data, size_t size,
                         uint64_t attributes);
  // UCX has given the peer up.
  void OnError(ucs_status_t status);

  // Does one thing of what is due; false when nothing is.
  bool Step();
  // Looks at the clock, now and then.
  void Tick(Time now, Time last_tick);
  // The token was right, or this side dialled. Locked.
  bool proven() const;
  // And, unless this side dialled, the peer's Hello has come. Locked.
  bool greeted() const;
  // Nothing will be read, written or told any more: the endpoint can go. Locked.
  bool over() const;
  // Nothing but pings goes over it, and nothing is due soon. Locked.
  bool quiet(Time now) const;
  // It went in order, so what was sent last should still reach the peer. Locked.
  bool in_order() const;
  // Breaks the wire; only the first status counts. Locked.
  void Break(const absl::Status& status);

  bool in_ready = false;  // UcxCore's, under its lock

 private:
  friend struct UcxFetch;
  struct Message;

  void Send(UcxKind kind, absl::string_view front, std::string long_header, Payload payload);
  // Begins to fetch what was announced, as far as allowed.
  void Fetch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Fetched(Message* message, ucs_status_t status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Takes a message that has its turn.
  void Handle(const Message& message);
  void HandleOpen(const Message& message);
  void Refuse(const absl::Status& status);
  void LogRefusal(const absl::Status& why) const;
  // Something that is no ping goes or comes. True: it was quiet.
  bool EndQuiet(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status CheckSum(const Message& message);

  // Constant after construction.
  const std::shared_ptr<UcxCore> core_;  // shared with its other wires and with what it lent
  const std::string peer_;
  const std::thread::id thread_;

  // Set before the first message, by an acceptor when the token was right; constant afterwards.
  std::shared_ptr<LinkSession> session_;  // shared with the link
  std::unique_ptr<UcxSeal> seal_in_;      // thread of UcxLinks only, once it is there

  // Thread of UcxLinks only.
  ProveFn prove_;
  BreakFn on_break_;  // dialler
  int64_t hello_timeout_ms_ = 0;
  bool open_seen_ = false;
  UcxJoiner joiner_;

  Mutex send_mu_;  // before the core's: messages leave in the order of their numbers
  std::unique_ptr<UcxSeal> seal_out_ ABSL_GUARDED_BY(send_mu_);

  ucp_ep_h ep_ ABSL_GUARDED_BY(core_->mu) = nullptr;
  std::deque<std::shared_ptr<Message>> inbox_ ABSL_GUARDED_BY(core_->mu);  // with their fetches
  size_t unread_ ABSL_GUARDED_BY(core_->mu) = 0;                           // of those, what counts
  uint64_t rest_ ABSL_GUARDED_BY(core_->mu) = 0;  // still to come of the payload that came last
  uint64_t fetching_bytes_ ABSL_GUARDED_BY(core_->mu) = 0;
  Time last_heard_ ABSL_GUARDED_BY(core_->mu);
  Time last_sent_ ABSL_GUARDED_BY(core_->mu);
  // Of what is no ping, either way; and since when that went without a quiet time between.
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
  bool told_ ABSL_GUARDED_BY(core_->mu) = false;
  bool broken_ ABSL_GUARDED_BY(core_->mu) = false;
  absl::Status why_ ABSL_GUARDED_BY(core_->mu);
};

}  // namespace strata
