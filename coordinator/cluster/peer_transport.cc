#include "coordinator/cluster/peer_transport.h"

#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/cluster/connect_probe.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "proto/cluster.grpc.pb.h"
#include "transport/base/callback_gate.h"
#include "transport/base/thread_name.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using Stub = wire::Cluster::Stub;

// Reports when a connection of a channel breaks. Its thread sleeps until then, and ends when the
// last of the channels is gone, which may be after this object.
class ConnectionWatch {
 public:
  // `broken` is called on the thread, and never once this object is destroyed.
  explicit ConnectionWatch(std::function<void(const std::string& address)> broken) {
    state_->broken = std::move(broken);
    std::thread([state = state_] {
      NameThread("connections");
      Run(state.get());
    }).detach();
  }
  ~ConnectionWatch() {
    absl::MutexLock lock(state_->mu);
    state_->broken = nullptr;
    state_->queue.Shutdown();
  }

  void Add(const std::string& address, const std::shared_ptr<grpc::Channel>& channel) {
    absl::MutexLock lock(state_->mu);
    Await(new ChannelWatch{.address = address, .channel = channel, .seen = GRPC_CHANNEL_IDLE},
          channel, state_.get());
  }

 private:
  struct ChannelWatch {
    std::string address;
    std::weak_ptr<grpc::Channel> channel;  // owned by its user
    grpc_connectivity_state seen;
  };
  struct State {
    grpc::CompletionQueue queue;
    absl::Mutex mu;
    std::function<void(const std::string&)> broken ABSL_GUARDED_BY(mu);  // null: destroyed
  };

  static void Await(ChannelWatch* watched, const std::shared_ptr<grpc::Channel>& channel,
                    State* state) {
    channel->NotifyOnStateChange(watched->seen, gpr_inf_future(GPR_CLOCK_MONOTONIC), &state->queue,
                                 watched);
  }

  static void Run(State* state) {
    void* tag = nullptr;
    bool ok = false;
    while (state->queue.Next(&tag, &ok)) {
      std::unique_ptr<ChannelWatch> watched(static_cast<ChannelWatch*>(tag));
      const std::shared_ptr<grpc::Channel> channel = watched->channel.lock();
      if (channel == nullptr) continue;
      const grpc_connectivity_state now = channel->GetState(/*try_to_connect=*/false);
      const bool broke = watched->seen == GRPC_CHANNEL_READY && now != GRPC_CHANNEL_READY;
      watched->seen = now;
      absl::MutexLock lock(state->mu);
      if (state->broken == nullptr) continue;
      if (broke) state->broken(watched->address);
      Await(watched.release(), channel, state);
    }
  }

  const std::shared_ptr<State> state_ = std::make_shared<State>();  // shared with the thread
};

class GrpcPeerTransport final : public PeerTransport {
 public:
  explicit GrpcPeerTransport(EventLoop* loop)
      : loop_(loop), watch_([this, alive = std::weak_ptr(alive_)](const std::string& address) {
          loop_->Post([this, alive, address] {
            if (!alive.expired() && on_broken_) on_broken_(address);
          });
        }) {}

  ~GrpcPeerTransport() override {
    for (const auto& context : calls_) context->TryCancel();
    gate_.Wait();
  }

  void OnBroken(std::function<void(const std::string& address)> fn) override {
    on_broken_ = std::move(fn);
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
    const uint64_t number = ++connect_probes_made_;
    connect_probes_[number] = ConnectProbe::Start(
        loop_, address, timeout_ms, [this, number, done = std::move(done)](int error) mutable {
          const std::unique_ptr<ConnectProbe> connect_probe =
              std::move(connect_probes_.extract(number).mapped());
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
    if (stub == nullptr) {
      const std::shared_ptr<grpc::Channel> channel = MakeQuietChannel(address);
      watch_.Add(address, channel);
      stub = std::make_shared<Stub>(channel);
    }
    auto call = std::make_shared<Call<Request, Response>>();  // shared with gRPC's callback
    call->address = address;
    call->stub = stub;
    call->request = request;
    call->done = std::move(done);
    call->context.set_deadline(DeadlineIn(absl::Milliseconds(timeout_ms)));
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
      // A new connection tries at once, where the old one waits out its back-off.
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
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // watched by posted ends
  ConnectionWatch watch_;

  // Loop thread.
  std::function<void(const std::string& address)> on_broken_;
  std::map<std::string, std::shared_ptr<Stub>> stubs_;  // by address
  // The contexts of the calls in flight; each keeps its call alive.
  std::set<std::shared_ptr<grpc::ClientContext>> calls_;
  std::map<uint64_t, std::unique_ptr<ConnectProbe>> connect_probes_;
  uint64_t connect_probes_made_ = 0;

  CallbackGate gate_;  // for gRPC's callbacks
};

}  // namespace

std::unique_ptr<PeerTransport> PeerTransport::Grpc(EventLoop* loop) {
  return std::make_unique<GrpcPeerTransport>(loop);
}

}  // namespace strata
