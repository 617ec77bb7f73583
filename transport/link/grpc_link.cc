#include "transport/link/grpc_link.h"

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "transport/base/mutex.h"
#include "transport/link/grpc_message.h"
#include "transport/link/link_session.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

constexpr char kMethod[] = "/strata.wire.Link/Stream";

static_assert(kGrpcMessageBytesMax > kFramePrefixBytes + kFrameHeaderBytesMax + kGrpcPieceBytes);

// One line a second at most: a peer that is refused thousands of times must not fill the disk.
void LogRefusal(const std::string& peer, const absl::Status& why) {
  LOG_EVERY_N_SEC(WARNING, 1) << "refused a link from " << peer << ": " << why << " (" << COUNTER
                              << " refused so far)";
}

gpr_timespec InMs(int64_t ms) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

// The part of a wire over one gRPC call that both ends have in common. The call's reactor derives
// from it, and deletes itself in OnDone(), gRPC's last callback.
class GrpcWire : public LinkSession::Wire {
 public:
  void ExpectEnd() final {
    end_alarm_.Set(InMs(kLinkCloseMs), [weak = std::weak_ptr(session_)](bool expired) {
      if (!expired) return;
      if (auto session = weak.lock()) session->Cancel();
    });
  }
  std::string name() const final { return "gRPC"; }
  bool Write(Frame frame) final {
    outgoing_ = GrpcOutgoing(std::move(frame));
    outgoing_.Next(&written_);
    WriteNext();
    return false;
  }

 protected:
  void Received(bool ok) {
    if (!ok) {
      session_->OnRead(absl::UnavailableError("the call has ended"));
      return;
    }
    grpc::ByteBuffer message;
    message.Swap(&read_);
    absl::StatusOr<std::optional<Frame>> frame = incoming_.Take(message);
    message.Clear();
    if (!frame.ok()) {
      session_->OnRead(frame.status());
    } else if (frame->has_value()) {
      session_->OnRead(**std::move(frame));
    } else {
      Read();
    }
  }

  void Written(bool ok) {
    written_.Clear();
    if (ok && outgoing_.Next(&written_)) return WriteNext();
    outgoing_ = GrpcOutgoing();
    session_->OnWritten(ok);
  }

  // Starts to write `written_`.
  virtual void WriteNext() = 0;

  // Shared with the Link and timers, so it may outlive the wire.
  std::shared_ptr<LinkSession> session_;
  grpc::ByteBuffer read_;     // owned by gRPC from StartRead() to OnReadDone()
  grpc::ByteBuffer written_;  // owned by gRPC from StartWrite() to OnWriteDone()

 private:
  GrpcIncoming incoming_;
  GrpcOutgoing outgoing_;
  grpc::Alarm end_alarm_;
};

class DialledWire final : public GrpcWire,
                          public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Deletes itself when the call is done.
  static std::shared_ptr<LinkSession> Dial(DialOptions options, Link::Receiver* receiver) {
    auto* wire = new DialledWire(options.address, options.keepalive_ms);
    VersionPolicy policy;
    policy.allow_mixed = options.allow_mixed_versions;
    std::shared_ptr<LinkSession> session =
        LinkSession::Dialler(wire, std::move(options.hello), policy, receiver);
    wire->session_ = session;
    wire->stub_.PrepareBidiStreamingCall(&wire->context_, kMethod, {}, wire);
    wire->AddHold();  // until End(): writes start on any thread
    wire->StartCall();
    session->Start();
    return session;
  }

  void Read() override { StartRead(&read_); }
  void End(const absl::Status&) override { RemoveHold(); }
  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override { Received(ok); }
  void OnWriteDone(bool ok) override { Written(ok); }
  void OnDone(const grpc::Status& status) override {
    session_->OnEnded(FromCall(status));
    delete this;
  }

 private:
  void WriteNext() override { StartWrite(&written_); }

  DialledWire(const std::string& address, int keepalive_ms)
      : stub_(MakeQuietChannel(address, keepalive_ms)) {}

  // Peers send their own status in a kClose, so the call's status is about the connection.
  static absl::Status FromCall(const grpc::Status& status) {
    switch (status.error_code()) {
      case grpc::StatusCode::OK:
        return absl::OkStatus();
      case grpc::StatusCode::UNIMPLEMENTED:
        return absl::FailedPreconditionError("the server there takes no links");
      case grpc::StatusCode::CANCELLED:
      case grpc::StatusCode::INTERNAL:
      case grpc::StatusCode::UNKNOWN:
        return absl::UnavailableError(absl::StrCat("the link broke: ", status.error_message()));
      default:
        return FromGrpc(status);
    }
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
};

// Counts the calls of each host whose Hello has not come yet: a host that opens links without a
// Hello must leave room for the others. Thread-safe.
class SilentPeers {
 public:
  // Returns the host's count, with this call.
  int Enter(const std::string& host) {
    MutexLock lock(&mu_);
    return ++by_host_[host];
  }
  void Leave(const std::string& host) {
    MutexLock lock(&mu_);
    if (--by_host_[host] == 0) by_host_.erase(host);
  }

 private:
  Mutex mu_;
  std::map<std::string, int> by_host_ ABSL_GUARDED_BY(mu_);  // at least 1 each
};

// One such call, until its Hello comes or it ends.
class SilentPeer {
 public:
  // `peer` in gRPC's form, "ipv4:10.0.0.7:4242"; `all` is shared by an acceptor's calls.
  SilentPeer(const std::string& peer, std::shared_ptr<SilentPeers> all)
      : host_(peer.substr(0, peer.rfind(':'))), all_(std::move(all)), place_(all_->Enter(host_)) {}
  ~SilentPeer() { OnHello(); }
  SilentPeer(const SilentPeer&) = delete;
  SilentPeer& operator=(const SilentPeer&) = delete;

  int place() const { return place_; }  // among its host's calls when it came, from 1
  void OnHello() {
    if (!left_.exchange(true)) all_->Leave(host_);
  }

 private:
  const std::string host_;
  const std::shared_ptr<SilentPeers> all_;
  const int place_;
  std::atomic<bool> left_{false};
};

class AcceptedWire final : public GrpcWire, public grpc::ServerGenericBidiReactor {
 public:
  // Deletes itself and `peer` when the call is done.
  static AcceptedWire* Accept(grpc::GenericCallbackServerContext* context,
                              const GrpcLinkAcceptor::Options& options,
                              std::shared_ptr<SilentPeer> peer, AcceptLinkFn accept) {
    auto* wire = new AcceptedWire(context, std::move(peer));
    VersionPolicy policy;
    policy.allow_mixed = options.allow_mixed_versions;
    wire->session_ = LinkSession::Acceptor(wire, policy, std::move(accept));
    const int64_t timeout_ms = options.hello_timeout_ms;
    wire->hello_alarm_.Set(
        InMs(timeout_ms), [weak = std::weak_ptr(wire->session_), timeout_ms](bool expired) {
          if (!expired) return;
          if (auto session = weak.lock()) {
            session->CloseUnlessOpen(absl::DeadlineExceededError(
                absl::StrCat("the peer sent no Hello within ", timeout_ms, " ms")));
          }
        });
    wire->session_->Start();
    return wire;
  }

  void Read() override { StartRead(&read_); }
  void End(const absl::Status& why) override {
    if (!session_->opened()) LogRefusal(peer_, why);
    grpc::ServerGenericBidiReactor::Finish(ToGrpc(why));
  }
  void Cancel() override { context_->TryCancel(); }

  void OnReadDone(bool ok) override { Received(ok); }
  void OnWriteDone(bool ok) override { Written(ok); }
  void OnDone() override {
    session_->OnEnded(
        absl::UnavailableError(absl::StrCat("the dialler at ", peer_, " disconnected")));
    delete this;
  }

 private:
  void WriteNext() override { StartWrite(&written_); }

  AcceptedWire(grpc::GenericCallbackServerContext* context, std::shared_ptr<SilentPeer> silent)
      : context_(context), peer_(context->peer()), silent_(std::move(silent)) {}

  grpc::GenericCallbackServerContext* const context_;  // owned by gRPC, until OnDone()
  const std::string peer_;
  const std::shared_ptr<SilentPeer> silent_;  // shared with the AcceptLinkFn
  grpc::Alarm hello_alarm_;
};

class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> DialGrpcLink(DialOptions options, Link::Receiver* receiver) {
  const std::string address = options.address;
  const int64_t timeout_ms = options.timeout_ms;
  absl::StatusOr<std::unique_ptr<Link>> link =
      DialledWire::Dial(std::move(options), receiver)->AwaitOpen(timeout_ms);
  if (link.ok()) return link;
  return absl::Status(link.status().code(),
                      absl::StrCat("link to ", address, ": ", link.status().message()));
}

class GrpcLinkAcceptor::Impl final : public grpc::CallbackGenericService {
 public:
  Impl(Options options, AcceptFn accept)
      : options_(options), accept_(std::make_shared<Serialized>(std::move(accept))) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (context->method() != kMethod) {
      return new RefusedCall(absl::UnimplementedError("no such method"));
    }
    // Shared by the wire and its AcceptLinkFn.
    auto silent = std::make_shared<SilentPeer>(context->peer(), silent_);
    if (silent->place() > options_.silent_max) {
      const absl::Status why = absl::ResourceExhaustedError(
          absl::StrCat(options_.silent_max, " links from this host have sent no Hello yet"));
      LogRefusal(context->peer(), why);
      return new RefusedCall(why);
    }
    return AcceptedWire::Accept(context, options_, silent,
                                [accept = accept_, silent](const wire::Hello& hello) {
                                  silent->OnHello();
                                  MutexLock lock(&accept->mu);
                                  return accept->fn(hello);
                                });
  }

 private:
  struct Serialized {
    explicit Serialized(AcceptFn f) : fn(std::move(f)) {}
    Mutex mu;
    AcceptFn fn ABSL_GUARDED_BY(mu);
  };

  const Options options_;
  const std::shared_ptr<Serialized> accept_;  // shared with calls that have not opened yet
  const std::shared_ptr<SilentPeers> silent_ = std::make_shared<SilentPeers>();  // with calls
};

GrpcLinkAcceptor::GrpcLinkAcceptor(Options options, AcceptFn accept)
    : impl_(std::make_unique<Impl>(options, std::move(accept))) {}

GrpcLinkAcceptor::~GrpcLinkAcceptor() = default;

grpc::CallbackGenericService* GrpcLinkAcceptor::service() { return impl_.get(); }

}  // namespace strata
