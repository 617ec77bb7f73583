#include "transport/ucx/ucx_wire.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace strata {
namespace {

// Smaller data is copied, so that UCX gets its buffer back at once.
constexpr size_t kLendBytesMin = 4096;

// Called for success and failure alike: a broken connection is reported by OnError().
void OnSent(void* request, ucs_status_t, void* self) {
  std::unique_ptr<UcxOutgoing> outgoing(static_cast<UcxOutgoing*>(self));
  Ucx().ucp_request_free(request);
  UcxCore* const core = outgoing->core;
  core->AssertHeld();
  core->sent.push_back(std::move(outgoing));
}

}  // namespace

// A received message, in order.
struct UcxWire::Message {
  absl::string_view sum() const { return absl::string_view(header).substr(0, kUcxSumBytes); }
  absl::string_view front() const { return absl::string_view(header).substr(kUcxSumBytes); }

  UcxKind kind;
  std::string header;
  absl::Status bad;  // not OK: the error of its size
  Payload data;
  bool counts = true;         // towards the limit of unread messages
  bool complete = true;       // its data is here
  void* announced = nullptr;  // UCX's handle of data that is to be fetched
  std::shared_ptr<char> fetched;
  size_t fetched_bytes = 0;
};

// One fetch in progress; outlives its wire where UCX is slow to report a failure.
struct UcxFetch {
  static void Done(void* request, ucs_status_t status, size_t, void* self) {
    std::unique_ptr<UcxFetch> fetch(static_cast<UcxFetch*>(self));
    Ucx().ucp_request_free(request);
    if (auto wire = fetch->wire.lock()) {
      wire->core_->AssertHeld();
      wire->OnFetched(fetch->message.get(), status);
    }
  }
  std::weak_ptr<UcxWire> wire;
  std::shared_ptr<UcxWire::Message> message;  // shared with the wire's inbox
};

UcxWire::UcxWire(std::shared_ptr<UcxCore> core, std::string peer, std::thread::id thread)
    : core_(std::move(core)), peer_(std::move(peer)), thread_(thread) {}

void UcxWire::StartDialling(absl::string_view key, std::shared_ptr<LinkSession> session,
                            BreakFn on_break) {
  session_ = std::move(session);
  on_break_ = std::move(on_break);
  open_seen_ = true;
  seal_in_ = std::make_unique<UcxSeal>(key, UcxSeal::Direction::kFromAcceptor);
  {
    MutexLock lock(&send_mu_);
    seal_out_ = std::make_unique<UcxSeal>(key, UcxSeal::Direction::kFromDialler);
  }
  MutexLock lock(&core_->mu);
  proven_ = greeted_ = true;
  last_heard_ = Time::max();  // until the acceptor's first message, the dialler's timeout counts
}

void UcxWire::StartAccepting(ProveFn prove, Time prove_by) {
  core_->AssertHeld();
  prove_ = std::move(prove);
  prove_by_ = prove_by;
}

void UcxWire::SetEndpoint(ucp_ep_h ep) {
  core_->AssertHeld();
  ep_ = ep;
}

bool UcxWire::proven() const {
  core_->AssertHeld();
  return proven_;
}

bool UcxWire::greeted() const {
  core_->AssertHeld();
  return greeted_;
}

bool UcxWire::over() const {
  core_->AssertHeld();
  return over_;
}

bool UcxWire::in_order() const {
  core_->AssertHeld();
  return !broken_;
}

std::string UcxWire::name() const {
  ucp_transport_entry_t entries[8];
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports = {entries, std::size(entries), sizeof(ucp_transport_entry_t)};
  std::string name = "UCX";
  MutexLock lock(&core_->mu);
  if (broken_ || over_ || Ucx().ucp_ep_query(ep_, &attributes) != UCS_OK) return name;
  for (const ucp_transport_entry_t& entry :
       absl::MakeSpan(entries, attributes.transports.num_entries)) {
    if (!absl::StrContains(name, entry.transport_name)) {
      absl::StrAppend(&name, name == "UCX" ? " " : "+", entry.transport_name);
    }
  }
  return name;
}

// --- out
// ------------------------------------------------------------------------------------------

void UcxWire::SendOpen(absl::string_view token) { Send(UcxKind::kOpen, token, "", Payload()); }

bool UcxWire::Write(Frame frame) {
  UcxFrameParts parts = SplitFrame(std::move(frame));
  const auto piece = [&](uint64_t begin) {
    const uint64_t size = std::min(parts.payload.size() - begin, kUcxPieceBytes);
    return Payload::Share(parts.payload.owner(), parts.payload.data() + begin, size);
  };
  Send(parts.kind, parts.front, std::move(parts.long_header), piece(0));
  for (uint64_t at = kUcxPieceBytes; at < parts.payload.size(); at += kUcxPieceBytes) {
    Send(UcxKind::kMore, "", "", piece(at));
  }
  return true;
}

void UcxWire::Send(UcxKind kind, absl::string_view front, std::string long_header,
                   Payload payload) {
  auto outgoing = std::make_unique<UcxOutgoing>();
  outgoing->core = core_.get();
  outgoing->long_header = std::move(long_header);
  outgoing->payload = std::move(payload);
  MutexLock send_lock(&send_mu_);
  const absl::string_view parts[] = {front, outgoing->long_header, outgoing->payload.bytes()};
  const UcxSum sum = seal_out_->Next(static_cast<uint8_t>(kind), parts);
  outgoing->header.reserve(sum.size() + front.size());
  outgoing->header.append(sum.data(), sum.size());
  outgoing->header.append(front.data(), front.size());

  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = OnSent;
  param.user_data = outgoing.get();
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  const void* data = outgoing->payload.data();
  size_t count = outgoing->payload.size();
  if (!outgoing->long_header.empty()) {
    outgoing->pieces[0] = {outgoing->long_header.data(), outgoing->long_header.size()};
    outgoing->pieces[1] = {const_cast<void*>(data), count};
    data = outgoing->pieces;
    count = count == 0 ? 1 : 2;
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_iov();
  }

  MutexLock lock(&core_->mu);
  if (broken_ || over_) return;
  last_sent_ = std::chrono::steady_clock::now();
  // From now on the thread must poll often, for the answer.
  if (kind != UcxKind::kPing && EndQuiet(last_sent_) && CanWait()) core_->Wake();
  UcxOutgoing* const given = outgoing.release();  // OnSent() owns it, unless it is done at once
  ucs_status_ptr_t request =
      Ucx().ucp_am_send_nbx(ep_, static_cast<unsigned>(kind), given->header.data(),
                            given->header.size(), data, count, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) outgoing.reset(given);
  if (request == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) {
    Break(FromUcx(UCS_PTR_STATUS(request), absl::StrCat("the link to ", peer_, " broke")));
  }
  // The thread that calls ucp_worker_progress() does the rest.
  if (CanWait()) core_->Wake();
}

void UcxWire::End(const absl::Status& why) {
  if (!session_->opened() && hello_timeout_ms_ > 0) {
    LogRefusal(why);
  }
  Send(UcxKind::kEnd, "", "", Payload());
  MutexLock lock(&core_->mu);
  ended_ = true;
  core_->Ready(shared_from_this());
  if (CanWait()) core_->Wake();
}

void UcxWire::ExpectEnd() {
  MutexLock lock(&core_->mu);
  const Time now = std::chrono::steady_clock::now();
  // Else the peer, which has pinged rarely, would have been silent for too long at once.
  if (EndQuiet(now) && CanWait()) core_->Wake();
  end_by_ = now + std::chrono::milliseconds(kLinkCloseMs);
}

void UcxWire::Cancel() {
  MutexLock lock(&core_->mu);
  Break(absl::UnavailableError(absl::StrCat("the link to ", peer_, " was cut")));
  if (CanWait()) core_->Wake();
}

// --- in
// -------------------------------------------------------------------------------------------

void UcxWire::Read() {
  MutexLock lock(&core_->mu);
  reading_ = true;
  core_->Ready(shared_from_this());
  if (CanWait()) core_->Wake();
}

ucs_status_t UcxWire::OnMessage(UcxKind kind, absl::string_view header, void* data, size_t size,
                                uint64_t attributes) {
  core_->AssertHeld();
  if (broken_ || over_) return UCS_OK;
  last_heard_ = std::chrono::steady_clock::now();
  if (kind != UcxKind::kPing) EndQuiet(last_heard_);
  auto message = std::make_shared<Message>();
  message->bad = CheckMessageSize(kind, header, size, &rest_);
  message->counts = kind != UcxKind::kMore || !message->bad.ok() || !proven_;
  unread_ += message->counts ? 1 : 0;
  if (unread_ > (proven_ ? kUcxInboxMax : kUcxUnprovenInboxMax)) {
    Break(absl::ResourceExhaustedError(
        absl::StrCat("the peer at ", peer_, " sends more messages than allowed")));
    return UCS_OK;
  }
  message->kind = kind;
  message->header = std::string(header);
  ucs_status_t keep = UCS_OK;
  if (message->bad.ok() && size > 0) {
    if ((attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
      message->complete = false;
      message->announced = data;
      message->fetched_bytes = size;
      keep = UCS_INPROGRESS;
    } else if ((attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0 && size >= kLendBytesMin) {
      message->data = core_->Lend(data, size);
      keep = UCS_INPROGRESS;
    } else if (std::shared_ptr<char> copy = core_->buffers().Get(size)) {
      std::copy_n(static_cast<const char*>(data), size, copy.get());
      message->data = Payload::Share(copy, copy.get(), size);
    } else {
      Break(absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes")));
      return UCS_OK;
    }
  }
  inbox_.push_back(std::move(message));
  core_->Ready(shared_from_this());
  return keep;
}

void UcxWire::OnError(ucs_status_t status) {
  core_->AssertHeld();
  Break(FromUcx(status, absl::StrCat("the link to ", peer_, " broke")));
}

void UcxWire::Break(const absl::Status& status) {
  core_->AssertHeld();
  if (std::exchange(broken_, true)) return;
  why_ = absl::Status(status.code(), status.message());
  // Messages before the first incomplete one are still delivered; the others never will be.
  auto incomplete =
      std::find_if(inbox_.begin(), inbox_.end(), [](const auto& m) { return !m->complete; });
  for (auto it = incomplete; it != inbox_.end(); ++it) {
    void* const announced = std::exchange((*it)->announced, nullptr);
    if (announced != nullptr) Ucx().ucp_am_data_release(core_->worker(), announced);
  }
  inbox_.erase(incomplete, inbox_.end());
  core_->Ready(shared_from_this());
}

void UcxWire::Fetch() {
  // Fetch nothing from a peer without a valid token, and only kUcxFetchBytesMax ahead.
  if (!proven_) return;
  // A fetch that fails at once breaks the wire inside the call, which changes the inbox.
  for (size_t i = 0; !broken_ && i < inbox_.size(); ++i) {
    const std::shared_ptr<Message> message = inbox_[i];
    if (message->announced == nullptr) continue;
    const size_t size = message->fetched_bytes;
    if (fetching_bytes_ > 0 && fetching_bytes_ + size > kUcxFetchBytesMax) return;
    message->fetched = core_->buffers().Get(size);
    if (message->fetched == nullptr) {
      Break(absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes")));
      return;
    }
    auto fetch = std::make_unique<UcxFetch>();
    fetch->wire = weak_from_this();
    fetch->message = message;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.recv_am = UcxFetch::Done;
    param.user_data = fetch.get();
    fetching_bytes_ += size;
    void* const announced = std::exchange(message->announced, nullptr);
    // UcxFetch::Done() owns it, and may run before this call returns; unless there is no request.
    UcxFetch* const given = fetch.release();
    ucs_status_ptr_t request = Ucx().ucp_am_recv_data_nbx(core_->worker(), announced,
                                                          message->fetched.get(), size, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) {
      fetch.reset(given);
      OnFetched(message.get(), request == nullptr ? UCS_OK : UCS_PTR_STATUS(request));
    }
  }
}

void UcxWire::OnFetched(Message* message, ucs_status_t status) {
  fetching_bytes_ -= message->fetched_bytes;
  last_heard_ = std::chrono::steady_clock::now();
  if (status != UCS_OK) {
    Break(FromUcx(status, absl::StrCat("a payload from ", peer_, " could not be fetched")));
    return;
  }
  message->data = Payload::Share(message->fetched, message->fetched.get(), message->fetched_bytes);
  message->complete = true;
  core_->Ready(shared_from_this());
}

// --- the thread of UcxLinks
// -----------------------------------------------------------------------

bool UcxWire::Step() {
  std::shared_ptr<Message> message;
  absl::Status ended;
  bool report_end = false;
  {
    MutexLock lock(&core_->mu);
    if (over_) return false;
    Fetch();
    if (broken_ && session_ == nullptr) {
      over_ = true;
      inbox_.clear();
      return false;
    }
    if (!inbox_.empty() && inbox_.front()->complete && (reading_ || !open_seen_)) {
      message = std::move(inbox_.front());
      inbox_.pop_front();
      unread_ -= message->counts ? 1 : 0;
    } else if (reading_ && inbox_.empty() && (broken_ || peer_ended_)) {
      reading_ = false;
      read_over_ = true;
    } else if (ended_ && read_over_) {
      over_ = report_end = true;
      // A peer that has sent its kEnd may disconnect before this side has sent its own.
      if (broken_ && !peer_ended_) ended = why_;
    } else {
      return false;
    }
  }
  if (message != nullptr) {
    Handle(*message);
  } else if (report_end) {
    if (!ended.ok() && on_break_ != nullptr) std::move(on_break_)(ended);
    session_->OnEnded(std::move(ended));
  } else {
    session_->OnRead(absl::UnavailableError("the connection has ended"));
  }
  return true;
}

void UcxWire::Handle(const Message& message) {
  if (!open_seen_) return HandleOpen(message);
  absl::Status status = message.bad;
  if (status.ok() && message.kind == UcxKind::kOpen) {
    status = absl::InvalidArgumentError("the peer sent a second token");
  }
  if (status.ok()) status = CheckSum(message);
  if (status.ok() && message.kind == UcxKind::kPing) return;
  if (status.ok() && message.kind == UcxKind::kEnd) {
    MutexLock lock(&core_->mu);
    peer_ended_ = true;
    return;
  }
  if (!status.ok()) joiner_.Forget();
  absl::StatusOr<std::optional<Frame>> frame =
      status.ok() ? joiner_.Take(message.kind, message.front(), message.data, &core_->buffers())
                  : status;
  if (frame.ok() && !frame->has_value()) return;  // more pieces are to come
  {
    MutexLock lock(&core_->mu);
    if (absl::IsResourceExhausted(frame.status())) return Break(frame.status());
    reading_ = false;
    greeted_ = true;  // by a Hello; the session closes the link for any other frame
    hello_by_ = Time::max();
  }
  if (frame.ok()) {
    session_->OnRead(**std::move(frame));
  } else {
    session_->OnRead(frame.status());
  }
}

absl::Status UcxWire::CheckSum(const Message& message) {
  const absl::string_view parts[] = {message.front(), message.data.bytes()};
  const UcxSum sum = seal_in_->Next(static_cast<uint8_t>(message.kind), parts);
  if (UcxSecretsEqual(absl::string_view(sum.data(), sum.size()), message.sum())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "a message's checksum does not match this link's key: the message was changed, or another "
      "sender made it");
}

void UcxWire::HandleOpen(const Message& message) {
  open_seen_ = true;
  if (!message.bad.ok()) return Refuse(message.bad);
  if (message.kind != UcxKind::kOpen) {
    return Refuse(absl::UnauthenticatedError("the peer sent no token"));
  }
  absl::StatusOr<Proof> proof = std::move(prove_)(this, message.front());
  if (!proof.ok()) return Refuse(proof.status());
  seal_in_ = std::make_unique<UcxSeal>(proof->key, UcxSeal::Direction::kFromDialler);
  const absl::Status status = CheckSum(message);
  if (!status.ok()) return Refuse(status);
  session_ = std::move(proof->session);
  hello_timeout_ms_ = proof->hello_timeout_ms;
  {
    MutexLock lock(&send_mu_);
    seal_out_ = std::make_unique<UcxSeal>(proof->key, UcxSeal::Direction::kFromAcceptor);
  }
  {
    MutexLock lock(&core_->mu);
    proven_ = true;
    hello_by_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(hello_timeout_ms_);
  }
  session_->Start();
}

// One line a second at most: a peer that is refused thousands of times must not fill the disk.
void UcxWire::LogRefusal(const absl::Status& why) const {
  LOG_EVERY_N_SEC(WARNING, 1) << "refused a link over UCX from " << peer_ << ": " << why << " ("
                              << COUNTER << " refused so far)";
}

void UcxWire::Refuse(const absl::Status& status) {
  LogRefusal(status);
  MutexLock lock(&core_->mu);
  Break(status);
}

bool UcxWire::quiet(Time now) const {
  core_->AssertHeld();
  return proven_ && greeted_ && now - last_used_ >= std::chrono::milliseconds(kUcxQuietAfterMs);
}

bool UcxWire::EndQuiet(Time now) {
  const bool was_quiet = quiet(now);
  if (was_quiet) used_since_ = now;
  last_used_ = now;
  return was_quiet;
}

void UcxWire::Tick(Time now, Time last_tick) {
  bool ping = false;
  bool hello_missing = false;
  {
    MutexLock lock(&core_->mu);
    if (over_ || broken_) return;
    const bool is_quiet = quiet(now);
    const int64_t silence_ms = is_quiet ? kUcxQuietSilenceMs : kUcxSilenceMs;
    // While this side did not run (stopped, or on a busy machine) it could not receive: most of
    // that time is not the peer's silence.
    const auto unheard = now - last_tick - std::chrono::milliseconds(kUcxSilenceMs / 4);
    if (unheard > Time::duration(0) && last_heard_ < now) {
      // A suspended machine, or programs stopped together: the peer may just have resumed, too.
      const bool was_stopped = unheard > std::chrono::milliseconds(kUcxSilenceMs);
      last_heard_ = was_stopped ? now : std::min(last_heard_ + unheard, now);
    }
    if (!proven_ && now >= prove_by_) {
      Break(absl::DeadlineExceededError("the peer sent no token in time"));
    } else if (now >= end_by_) {
      Break(absl::UnavailableError(absl::StrCat(peer_, " did not end the link in time")));
    } else if (proven_ && last_heard_ != Time::max() &&
               now - std::max(last_heard_, used_since_) > std::chrono::milliseconds(silence_ms)) {
      Break(
          absl::UnavailableError(absl::StrCat(peer_, " has been silent for ", silence_ms, " ms")));
    }
    const auto ping_ms = std::chrono::milliseconds(is_quiet ? kUcxQuietPingMs : kUcxPingMs);
    ping =
        proven_ && !ended_ && !broken_ && last_heard_ != Time::max() && now - last_sent_ >= ping_ms;
    hello_missing = now >= hello_by_;
    if (hello_missing) hello_by_ = Time::max();
  }
  if (ping) Send(UcxKind::kPing, "", "", Payload());
  if (hello_missing) {
    session_->CloseUnlessOpen(absl::DeadlineExceededError(
        absl::StrCat("the peer sent no Hello within ", hello_timeout_ms_, " ms")));
  }
}

}  // namespace strata
