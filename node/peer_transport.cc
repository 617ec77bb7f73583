#include "node/peer_transport.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "node/gate.h"
#include "node/knock.h"
#include "proto/cluster.grpc.pb.h"
#include "transport/grpc_link.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

using Stub = wire::Cluster::Stub;

class GrpcPeerTransport final : public PeerTransport {
 public:
  explicit GrpcPeerTransport(EventLoop* loop) : loop_(loop) {}

  ~GrpcPeerTransport() override {
    for (const auto& context : calls_) context->TryCancel();
    gate_.Wait();
  }

  void Exchange(const std::string& address, const wire::Heartbeat& request, int64_t timeout_ms,
                Done<wire::Heartbeat> done) override {
    Start(address, request, timeout_ms, std::move(done),
          [](Stub* stub, auto... arguments) { stub->async()->Exchange(std::move(arguments)...); });
  }
  void Identify(const std::string& address, int64_t timeout_ms,
                Done<wire::IdentifyResponse> done) override {
    Start(address, wire::IdentifyRequest(), timeout_ms, std::move(done),
          [](Stub* stub, auto... arguments) { stub->async()->Identify(std::move(arguments)...); });
  }
  void IsRefused(const std::string& address, int64_t timeout_ms,
                 absl::AnyInvocable<void(bool) &&> done) override {
    const uint64_t number = ++knocks_made_;
    knocks_[number] = Knock::Start(
        loop_, address, timeout_ms, [this, number, done = std::move(done)](int error) mutable {
          const std::unique_ptr<Knock> knock = std::move(knocks_.extract(number).mapped());
          std::move(done)(error == ECONNREFUSED);
        });
  }
  void Forget(const std::string& address) override { stubs_.erase(address); }

 private:
  template <typename Request, typename Response>
  struct Call {
    std::string address;
    std::shared_ptr<Stub> stub;  // shared with stubs_, which may forget it before the call ends
    grpc::ClientContext context;
    Request request;
    Response response;
    Done<Response> done;
  };

  template <typename Request, typename Response, typename Method>
  void Start(const std::string& address, const Request& request, int64_t timeout_ms,
             Done<Response> done, Method method) {
    std::shared_ptr<Stub>& stub = stubs_[address];
    if (stub == nullptr) stub = std::make_shared<Stub>(MakeChannel(address));
    auto call = std::make_shared<Call<Request, Response>>();  // shared with gRPC's callback
    call->address = address;
    call->stub = stub;
    call->request = request;
    call->done = std::move(done);
    call->context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::milliseconds(timeout_ms));
    calls_.insert(std::shared_ptr<grpc::ClientContext>(call, &call->context));
    gate_.Enter();
    method(
        call->stub.get(), &call->context, &call->request, &call->response,
        [this, call, alive = std::weak_ptr(alive_)](const grpc::Status& status) mutable {
          // The loop may be gone already, and this with it right after Leave().
          loop_->Post([this, call = std::move(call), alive = std::move(alive), status]() mutable {
            if (!alive.expired()) End(call, status);
          });
          gate_.Leave();
        });
  }

  template <typename CallPtr>
  void End(const CallPtr& call, const grpc::Status& status) {
    calls_.erase(std::shared_ptr<grpc::ClientContext>(call, &call->context));
    if (!status.ok()) {
      // A fresh connection finds its way where an old one waits for its turn to try again.
      const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
      const auto it = stubs_.find(call->address);
      if (lost && it != stubs_.end() && it->second == call->stub) stubs_.erase(it);
      std::move(call->done)(FromGrpc(status));
      return;
    }
    std::move(call->done)(std::move(call->response));
  }

  EventLoop* const loop_;

  // Loop thread.
  std::map<std::string, std::shared_ptr<Stub>> stubs_;  // by address
  // Of the calls under way, which they keep.
  std::set<std::shared_ptr<grpc::ClientContext>> calls_;
  std::map<uint64_t, std::unique_ptr<Knock>> knocks_;
  uint64_t knocks_made_ = 0;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // watched by posted ends

  Gate gate_;  // for gRPC's callbacks
};

}  // namespace

std::unique_ptr<PeerTransport> PeerTransport::Grpc(EventLoop* loop) {
  return std::make_unique<GrpcPeerTransport>(loop);
}

}  // namespace strata
