// Calls on a stage, forwarded to its worker.
#include <functional>
#include <memory>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "node/workers/stage_host_impl.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

using Async = wire::Worker::StubInterface::async_interface;

template <typename Request, typename Response>
void StageHost::Send(WorkerProcess* worker, const Request* request, Response* response,
                     const Context& context, Method<Request, Response> method, Done ended) {
  const uint64_t id = next_id_++;
  calls_[id] = context;
  gate_.Enter();
  const auto end = std::make_shared<Done>(std::move(ended));  // gRPC copies its callbacks
  (worker->stub()->async()->*method)(context.get(), request, response,
                                     [this, id, end](const grpc::Status& status) {
                                       loop_->Post([this, id, end, status = FromGrpc(status)] {
                                         calls_.erase(id);
                                         std::move (*end)(status);
                                       });
                                       gate_.Leave();
                                     });
}

template <typename Request, typename Response>
void StageHost::Forward(const StageKey& key, const Request* request, Response* response,
                        const Context& context, Method<Request, Response> method, Done done) {
  const auto found = stages_.find(key);
  if (found == stages_.end()) {
    std::move(done)(absl::NotFoundError(
        absl::StrCat("no stage ", key.stage, " of this plan on ", options_.node_name)));
    return;
  }
  const Stage& stage = found->second;
  if (stage.state == State::kFailed) {
    std::move(done)(At(stage, stage.status));
    return;
  }
  if (stage.state == State::kFetching || stage.state == State::kWaiting ||
      stage.state == State::kLoading) {
    std::move(done)(At(stage, absl::UnavailableError("it is still loading")));
    return;
  }
  auto call = std::make_shared<Call>();
  call->stage_id = stage.id;
  call->stage = key;
  call->done = std::move(done);
  Send(stage.device->worker.get(), request, response, context, method,
       [this, call](const absl::Status& status) { FinishCall(call, status); });
}

void StageHost::FinishCall(const std::shared_ptr<Call>& call, const absl::Status& status) {
  Stage* stage = FindById(call->stage, call->stage_id);
  if (stage == nullptr || status.ok()) {
    std::move(call->done)(status);
    return;
  }
  if (stage->state == State::kFailed) {
    std::move(call->done)(At(*stage, stage->status));
    return;
  }
  if (!absl::IsUnavailable(status)) {
    std::move(call->done)(At(*stage, status));
    return;
  }
  stage->device->worker->CheckAlive([this, call, status](bool) {
    Stage* still = FindById(call->stage, call->stage_id);
    if (still == nullptr) {
      std::move(call->done)(status);
    } else {
      std::move(call->done)(At(*still, still->state == State::kFailed ? still->status : status));
    }
  });
}

void StageHost::Connect(const wire::ConnectStageRequest* request,
                        wire::ConnectStageResponse* response, const Context& context, Done done) {
  DCHECK(loop_->InLoopThread());
  if (absl::Status status = Newest(request->epoch()); !status.ok()) {
    std::move(done)(status);
    return;
  }
  const StageKey key = StageKeyOf(request->epoch(), request->stage());
  // The coordinator links a stage only after it has accepted the stage's self-test.
  const auto found = stages_.find(key);
  if (options_.self_tests != nullptr && found != stages_.end()) {
    options_.self_tests->Keep(found->second.info.self_test());
  }
  Forward(key, request, response, context, &Async::ConnectStage, std::move(done));
}

void StageHost::MoveCaches(const wire::MoveCachesRequest* request,
                           wire::MoveCachesResponse* response, const Context& context, Done done) {
  DCHECK(loop_->InLoopThread());
  if (absl::Status status = Newest(request->epoch()); !status.ok()) {
    std::move(done)(status);
    return;
  }
  Forward(StageKeyOf(request->epoch(), request->stage()), request, response, context,
          &Async::MoveCaches, std::move(done));
}

void StageHost::SetReplicaTargets(const wire::SetReplicaTargetsRequest* request,
                                  wire::SetReplicaTargetsResponse* response, const Context& context,
                                  Done done) {
  DCHECK(loop_->InLoopThread());
  if (absl::Status status = Newest(request->epoch()); !status.ok()) {
    std::move(done)(status);
    return;
  }
  Forward(StageKeyOf(request->epoch(), request->stage()), request, response, context,
          &Async::SetReplicaTargets, std::move(done));
}

void StageHost::Tokenize(const wire::TokenizeRequest* request, wire::TokenizeResponse* response,
                         const Context& context, Done done) {
  DCHECK(loop_->InLoopThread());
  Forward(StageKeyOf(request->epoch(), request->stage()), request, response, context,
          &Async::Tokenize, std::move(done));
}

void StageHost::Detokenize(const wire::DetokenizeRequest* request,
                           wire::DetokenizeResponse* response, const Context& context, Done done) {
  DCHECK(loop_->InLoopThread());
  Forward(StageKeyOf(request->epoch(), request->stage()), request, response, context,
          &Async::Detokenize, std::move(done));
}

void StageHost::Unload(const wire::UnloadStageRequest* request, wire::UnloadStageResponse* response,
                       const Context& context, Done done) {
  DCHECK(loop_->InLoopThread());
  const StageKey key = StageKeyOf(request->epoch(), request->stage());
  const auto found = stages_.find(key);
  if (found == stages_.end()) {
    std::move(done)(absl::OkStatus());
    return;
  }
  Stage& stage = found->second;
  Device* const device = stage.device;
  if (stage.state == State::kFetching || stage.state == State::kWaiting ||
      stage.state == State::kLoading) {
    const bool with_worker = stage.state == State::kLoading;
    stage.context->TryCancel();
    EndLoad(&stage, absl::CancelledError("it was unloaded while it loaded"));
    // A worker that other stages keep running has to unload it too.
    if (with_worker && !device->worker->stopping()) stage.state = State::kUnloading;
  }
  if (stage.state == State::kFailed) {
    Forget(key);
    std::move(done)(absl::OkStatus());
    return;
  }
  const State before = std::exchange(stage.state, State::kUnloading);
  Forward(key, request, response, context, &Async::UnloadStage,
          [this, device, before, key, id = stage.id,
           done = std::move(done)](absl::Status status) mutable {
            Stage* still = FindById(key, id);
            if (still != nullptr) {
              // Its worker has died, and the stage with it.
              if (still->state == State::kFailed) status = absl::OkStatus();
              if (status.ok()) {
                Forget(key);
                StopWorkerIfIdle(device);
              } else if (!absl::IsDeadlineExceeded(status) && !absl::IsCancelled(status)) {
                still->state = before;  // else the worker may have begun to unload
              }
            }
            std::move(done)(status);
          });
}

void StageHost::UnloadUnknownStages(Device* device) {
  if (device->worker->stopping()) return;
  for (const auto& [key, stage] : stages_) {
    const bool settled = stage.state == State::kServing || stage.state == State::kFailed;
    if (stage.device == device && !settled) return;  // the report may be older
  }
  struct Unload {
    StageKey key;
    grpc::ClientContext context;
    wire::UnloadStageRequest request;
    wire::UnloadStageResponse response;
  };
  for (const wire::StageWork& work : device->worker->report().stages()) {
    const StageKey key = StageKeyOf(work.epoch(), work.stage());
    const auto found = stages_.find(key);
    const bool known = found != stages_.end() && found->second.device == device &&
                       found->second.state != State::kFailed;
    if (known || !unloading_.insert(key).second) continue;
    auto call = std::make_shared<Unload>();
    call->key = key;
    *call->request.mutable_epoch() = work.epoch();
    call->request.set_stage(work.stage());
    Send(device->worker.get(), &call->request, &call->response, Context(call, &call->context),
         &Async::UnloadStage, [this, call](const absl::Status&) { unloading_.erase(call->key); });
  }
}

}  // namespace strata
