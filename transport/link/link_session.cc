#include "transport/link/link_session.h"

#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// Added to kLinkCloseMs, for the wire to notice that it was cancelled.
constexpr int64_t kDetachSlackMs = 500;

bool NeedsCredit(FrameType type) {
  return type == FrameType::kStep || type == FrameType::kResult || type == FrameType::kError;
}

// A deep copy: statuses cross threads here as copies of their own. Sharing one would be safe, but
// its atomic reference count is inside the packaged Abseil, where ThreadSanitizer does not see it.
absl::Status Unshared(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

std::chrono::steady_clock::time_point In(int64_t ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

}  // namespace

class SessionLink : public Link {
 public:
  explicit SessionLink(std::shared_ptr<LinkSession> session) : session_(std::move(session)) {}
  ~SessionLink() override { session_->Detach(); }

  absl::Status Send(Frame frame) override { return session_->Send(std::move(frame)); }
  void Release(uint32_t frames) override { session_->Release(frames); }
  void Close(absl::Status status) override { session_->Close(status); }
  const wire::Hello& peer() const override { return session_->peer_; }
  std::string wire() const override { return session_->wire_name_; }

 private:
  const std::shared_ptr<LinkSession> session_;  // shared with its wire
};

std::shared_ptr<LinkSession> LinkSession::Dialler(Wire* wire, wire::Hello hello,
                                                  VersionPolicy policy, Link::Receiver* receiver) {
  std::shared_ptr<LinkSession> session(new LinkSession(Role::kDialler, wire, policy));
  if (!hello.has_versions()) *hello.mutable_versions() = LocalVersions();
  session->local_ = std::move(hello);
  MutexLock lock(&session->mu_);
  session->receiver_ = receiver;
  return session;
}

std::shared_ptr<LinkSession> LinkSession::Acceptor(Wire* wire, VersionPolicy policy,
                                                   AcceptLinkFn accept) {
  std::shared_ptr<LinkSession> session(new LinkSession(Role::kAcceptor, wire, policy));
  session->accept_ = std::move(accept);
  return session;
}

void LinkSession::Start() {
  if (role_ == Role::kDialler) {
    MutexLock lock(&mu_);
    queue_.push_back(MakeFrame(FrameType::kHello, local_));
  }
  wire_->Read();
  Pump();
}

absl::StatusOr<std::unique_ptr<Link>> LinkSession::AwaitOpen(int64_t timeout_ms) {
  const auto deadline = In(timeout_ms);
  {
    MutexLock lock(&mu_);
    while (!open_ && !final_.has_value()) {
      if (!changed_.WaitUntil(&mu_, deadline)) break;
    }
    if (open_) return std::make_unique<SessionLink>(shared_from_this());
    receiver_ = nullptr;
    if (final_.has_value()) {
      if (!final_->ok()) return Unshared(*final_);
      return absl::UnavailableError("the peer closed the link before it was open");
    }
    Finish(absl::DeadlineExceededError(
        absl::StrCat("the peer did not answer within ", timeout_ms, " ms")));
  }
  Cancel();
  MutexLock lock(&mu_);
  return Unshared(*final_);
}

void LinkSession::CloseUnlessOpen(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (open_) return;
    StartClose(status);
  }
  Pump();
}

absl::Status LinkSession::Send(Frame frame) {
  if (role_ != Role::kDialler) {
    return absl::FailedPreconditionError("only the side that dialled a link sends frames");
  }
  if (!NeedsCredit(frame.type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("only the link itself sends frames of type ", static_cast<int>(frame.type)));
  }
  if (frame.header.size() > kFrameHeaderBytesMax || frame.payload.size() > kFramePayloadBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", frame.header.size(), " + ", frame.payload.size(),
                     " bytes; at most ", kFrameHeaderBytesMax, " + ", kFramePayloadBytesMax));
  }
  {
    MutexLock lock(&mu_);
    if (final_.has_value() || broken_) return ClosedStatus();
    if (credit_ == 0) {
      wants_writable_ = true;
      return absl::ResourceExhaustedError("the peer has no room for more frames yet");
    }
    --credit_;
    queue_.push_back(std::move(frame));
  }
  Pump();
  return absl::OkStatus();
}

void LinkSession::Release(uint32_t frames) {
  CHECK(role_ == Role::kAcceptor);
  {
    MutexLock lock(&mu_);
    CHECK_LE(frames, held_) << "more frames released than received";
    held_ -= frames;
    credit_due_ += frames;
  }
  Pump();
}

void LinkSession::Close(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    StartClose(status);
  }
  Pump();
}

void LinkSession::Detach() {
  Close(absl::OkStatus());
  Link::Receiver* receiver = nullptr;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    CHECK(in_receiver_ != std::this_thread::get_id())
        << "a link must not be destroyed by a call of its receiver";
    // Give the wire time to send the close, except where this thread would wait for itself.
    if (!ended_ && wire_->CanWait() && in_on_open_ != std::this_thread::get_id()) {
      const auto deadline = In(kLinkCloseMs + kDetachSlackMs);
      while (!ended_) {
        if (!changed_.WaitUntil(&mu_, deadline)) break;
      }
    }
    while (in_receiver_ != std::thread::id()) changed_.Wait(&mu_);
    if (!close_reported_) {
      close_reported_ = true;
      receiver = receiver_;
      status = final_.has_value() ? Unshared(*final_) : absl::UnavailableError("the link broke");
    }
    receiver_ = nullptr;
  }
  if (receiver != nullptr) receiver->OnClosed(std::move(status));
}

void LinkSession::Pump() {
  while (true) {
    Frame frame;
    absl::Status why;
    bool end = false;
    {
      MutexLock lock(&mu_);
      if (writing_ || ending_) return;
      if (NextFrame(&frame)) {
        writing_ = true;
      } else if (MayEnd()) {
        end = ending_ = true;
        if (final_.has_value()) why = Unshared(*final_);
      } else {
        return;
      }
    }
    // Outside the lock, because a wire may do real work here. The wire stays valid: it does not end
    // while a write is in flight, nor before End().
    if (end) return wire_->End(why);
    if (!wire_->Write(std::move(frame))) return;
    MutexLock lock(&mu_);
    writing_ = false;
  }
}

bool LinkSession::NextFrame(Frame* frame) {
  if (broken_ || peer_closed_ || close_written_) return false;
  if (!queue_.empty()) {
    *frame = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }
  if (close_wanted_) {
    close_written_ = true;
    wire::Status status;
    ToWire(*final_, "", &status);
    *frame = MakeFrame(FrameType::kClose, status);
    return true;
  }
  if (credit_due_ > 0 && open_) {
    wire::Credit credit;
    credit.set_frames(std::exchange(credit_due_, 0));
    *frame = MakeFrame(FrameType::kCredit, credit);
    return true;
  }
  return false;
}

bool LinkSession::MayEnd() const {
  return in_on_open_ == std::thread::id() && (broken_ || peer_closed_ || close_written_);
}

void LinkSession::OnRead(absl::StatusOr<Frame> frame) {
  bool more = true;
  if (frame.ok()) {
    absl::Status status = Handle(*std::move(frame));
    if (!status.ok()) Close(status);
  } else if (absl::IsInvalidArgument(frame.status())) {
    Close(frame.status());
  } else {
    more = false;
    MutexLock lock(&mu_);
    Break();
  }
  Pump();
  // Also while closing: the peer only ends once its writes have been read.
  if (more) wire_->Read();
}

void LinkSession::OnWritten(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) Break();
  }
  Pump();
}

void LinkSession::OnEnded(absl::Status status) {
  Link::Receiver* receiver = nullptr;
  {
    MutexLock lock(&mu_);
    CHECK(ending_ && !ended_);
    ended_ = true;
    queue_.clear();
    if (status.ok()) status = absl::UnavailableError("the peer ended the link without a reason");
    if (!final_.has_value()) Finish(status);
    status = Unshared(*final_);
    if (open_ && !close_reported_) {
      close_reported_ = true;
      receiver = EnterReceiver();
    }
    changed_.NotifyAll();
  }
  if (receiver == nullptr) return;
  receiver->OnClosed(std::move(status));
  LeaveReceiver();
}

void LinkSession::Cancel() {
  MutexLock lock(&mu_);
  if (!ended_) wire_->Cancel();
}

bool LinkSession::opened() {
  MutexLock lock(&mu_);
  return open_;
}

absl::Status LinkSession::Handle(Frame frame) {
  if (!NeedsCredit(frame.type) && !frame.payload.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of type ", static_cast<int>(frame.type), " must not have a payload"));
  }
  {
    MutexLock lock(&mu_);
    // Frames that come after the link's end was decided are read and dropped, except the peer's
    // kClose, which this side waits for.
    if (final_.has_value() && frame.type != FrameType::kClose) return absl::OkStatus();
    if (!hello_seen_ && frame.type != FrameType::kHello && frame.type != FrameType::kClose) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a frame of type ", static_cast<int>(frame.type), " came before the peer's Hello"));
    }
  }
  switch (frame.type) {
    case FrameType::kHello:
      return HandleHello(frame);
    case FrameType::kCredit:
      return HandleCredit(frame);
    case FrameType::kClose:
      return HandleClose(frame);
    case FrameType::kStep:
    case FrameType::kResult:
    case FrameType::kError:
      return HandleData(std::move(frame));
  }
  return absl::InternalError("unreachable");
}

absl::Status LinkSession::HandleHello(const Frame& frame) {
  {
    MutexLock lock(&mu_);
    if (hello_seen_) return absl::InvalidArgumentError("the peer sent two Hellos");
    hello_seen_ = true;
  }
  if (frame.header.size() > kHelloBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a Hello of ", frame.header.size(), " bytes; at most ", kHelloBytesMax));
  }
  wire::Hello peer;
  absl::Status status = ParseHeader(frame, &peer);
  if (!status.ok()) return status;
  if (role_ == Role::kAcceptor) return Answer(peer);

  status = CheckVersions(local_.versions(), peer.versions(), policy_);
  if (!status.ok()) return status;
  if (peer.credits() == 0 || peer.credits() > kLinkCreditsMax) {
    return absl::InvalidArgumentError(absl::StrCat("the peer grants ", peer.credits(),
                                                   " frames; it must grant between 1 and ",
                                                   kLinkCreditsMax));
  }
  std::string name = wire_->name();
  MutexLock lock(&mu_);
  if (final_.has_value()) return absl::OkStatus();
  credit_ = peer.credits();
  peer_ = std::move(peer);
  wire_name_ = std::move(name);
  open_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status LinkSession::Answer(const wire::Hello& peer) {
  absl::Status status = CheckVersions(LocalVersions(), peer.versions(), policy_);
  if (!status.ok()) return status;
  absl::StatusOr<AcceptedLink> accepted = accept_(peer);
  if (!accepted.ok()) return accepted.status();
  CHECK(accepted->receiver != nullptr);
  CHECK(accepted->hello.credits() >= 1 && accepted->hello.credits() <= kLinkCreditsMax);

  local_ = std::move(accepted->hello);
  if (!local_.has_versions()) *local_.mutable_versions() = LocalVersions();
  peer_ = peer;
  wire_name_ = wire_->name();
  {
    MutexLock lock(&mu_);
    receiver_ = accepted->receiver;
    in_on_open_ = std::this_thread::get_id();
    open_ = true;
    if (!final_.has_value() && !broken_) queue_.push_front(MakeFrame(FrameType::kHello, local_));
  }
  std::move(accepted->on_open)(std::make_unique<SessionLink>(shared_from_this()));
  MutexLock lock(&mu_);
  in_on_open_ = std::thread::id();
  return absl::OkStatus();
}

absl::Status LinkSession::HandleCredit(const Frame& frame) {
  if (role_ == Role::kAcceptor) {
    return absl::InvalidArgumentError("the side that dialled must not grant credit");
  }
  wire::Credit credit;
  absl::Status status = ParseHeader(frame, &credit);
  if (!status.ok()) return status;
  Link::Receiver* receiver = nullptr;
  {
    MutexLock lock(&mu_);
    if (credit.frames() > peer_.credits() - credit_) {
      return absl::InvalidArgumentError("the peer gave back credit for more frames than were sent");
    }
    credit_ += credit.frames();
    if (credit_ > 0 && std::exchange(wants_writable_, false)) receiver = EnterReceiver();
  }
  if (receiver == nullptr) return absl::OkStatus();
  receiver->OnWritable();
  LeaveReceiver();
  return absl::OkStatus();
}

absl::Status LinkSession::HandleClose(const Frame& frame) {
  wire::Status words;
  absl::Status status = ParseHeader(frame, &words);
  if (!status.ok()) return status;
  status = FromWire(words);
  MutexLock lock(&mu_);
  peer_closed_ = true;
  queue_.clear();
  Finish(status);
  return absl::OkStatus();
}

absl::Status LinkSession::HandleData(Frame frame) {
  if (role_ == Role::kDialler) {
    return absl::InvalidArgumentError(
        absl::StrCat("the side that accepted a link must not send frames of type ",
                     static_cast<int>(frame.type)));
  }
  Link::Receiver* receiver = nullptr;
  {
    MutexLock lock(&mu_);
    if (held_ == local_.credits()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the peer sent more than the ", held_, " frames granted"));
    }
    ++held_;
    receiver = EnterReceiver();
  }
  if (receiver == nullptr) return absl::OkStatus();
  receiver->OnFrame(std::move(frame));
  LeaveReceiver();
  return absl::OkStatus();
}

void LinkSession::Finish(const absl::Status& status) {
  if (!final_.has_value()) final_ = Unshared(status);
  ExpectEnd();
  changed_.NotifyAll();
}

void LinkSession::Break() {
  broken_ = true;
  queue_.clear();
  ExpectEnd();
}

void LinkSession::ExpectEnd() {
  if (end_expected_ || ended_) return;
  end_expected_ = true;
  wire_->ExpectEnd();
}

void LinkSession::StartClose(const absl::Status& status) {
  if (final_.has_value() || broken_) return;
  close_wanted_ = true;
  Finish(status);
}

absl::Status LinkSession::ClosedStatus() const {
  if (!final_.has_value()) return absl::UnavailableError("the link broke");
  if (final_->ok()) return absl::FailedPreconditionError("the link is closed");
  return Unshared(*final_);
}

Link::Receiver* LinkSession::EnterReceiver() {
  if (receiver_ != nullptr) in_receiver_ = std::this_thread::get_id();
  return receiver_;
}

void LinkSession::LeaveReceiver() {
  MutexLock lock(&mu_);
  in_receiver_ = std::thread::id();
  changed_.NotifyAll();
}

}  // namespace strata
