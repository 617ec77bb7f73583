#include "shard/worker/worker_service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_builder.h"
#include "proto/node.grpc.pb.h"
#include "shard/device/memory.h"
#include "shard/engine/self_test.h"
#include "shard/engine/stage.h"
#include "shard/engine/tokenize.h"
#include "shard/kv_store/kv_block.h"
#include "shard/kv_store/kv_store.h"
#include "shard/kv_transfer/cache_mover.h"
#include "shard/kv_transfer/cache_stream.h"
#include "shard/kv_transfer/kv_replicator.h"
#include "shard/model/stage_spec.h"
#include "shard/serving/link_selector.h"
#include "shard/serving/same_stage.h"
#include "shard/serving/stage_server.h"
#include "shard/worker/load_stream.h"
#include "transport/base/epoch.h"
#include "transport/link/grpc_link.h"
#include "transport/link/promised_link.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/listening_server.h"
#include "transport/rpc/printable_message.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

// Concurrent reads of caches; each holds a part of a slot, or a whole one, in memory.
constexpr int kCacheStreamsMax = 16;

// Finishes a unary call at once.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

class WorkerServerImpl final : public WorkerServer, public wire::Worker::CallbackService {
 public:
  WorkerServerImpl(WorkerOptions options, Clock* clock)
      : options_(std::move(options)),
        clock_(clock),
        selector_(options_.wires, [this](const wire::Hello& peer) { return AcceptLink(peer); }),
        links_({.allow_mixed_versions = options_.wires.allow_mixed_versions},
               [this](const wire::Hello& peer) { return selector_.Accept(peer); }),
        unloader_([this] { RunUnloads(); }) {}

  ~WorkerServerImpl() override {
    std::map<StageKey, std::shared_ptr<StageServer>> stages;
    {
      absl::MutexLock lock(mu_);
      stages.swap(stages_);
    }
    stages.clear();  // closes their links, so that the server does not wait for them
    selector_.Stop();
    {
      absl::MutexLock lock(mu_);
      stopping_ = true;
    }
    unloader_.join();
    if (server_ != nullptr) {
      server_->Shutdown(DeadlineIn(absl::Seconds(1)));
    }
  }

  absl::Status Listen() {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.RegisterService(this);
    builder.RegisterCallbackGenericService(links_.service());
    auto server = ListeningServer::Start(
        {.address = options_.listen, .credentials = ProcessServerCredentials()}, &builder);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    address_ =
        absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", server_->port());
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  grpc::ServerUnaryReactor* Ping(grpc::CallbackServerContext* context, const wire::PingRequest*,
                                 wire::PingResponse* response) override;
  grpc::ServerWriteReactor<wire::LoadStageEvent>* LoadStage(
      grpc::CallbackServerContext* context, const wire::LoadStageRequest* request) override;
  grpc::ServerUnaryReactor* ConnectStage(grpc::CallbackServerContext* context,
                                         const wire::ConnectStageRequest* request,
                                         wire::ConnectStageResponse* response) override;
  grpc::ServerUnaryReactor* UnloadStage(grpc::CallbackServerContext* context,
                                        const wire::UnloadStageRequest* request,
                                        wire::UnloadStageResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const wire::TokenizeRequest* request,
                                     wire::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const wire::DetokenizeRequest* request,
                                       wire::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* MoveCaches(grpc::CallbackServerContext* context,
                                       const wire::MoveCachesRequest* request,
                                       wire::MoveCachesResponse* response) override;
  grpc::ServerWriteReactor<wire::CachePiece>* ReadCaches(
      grpc::CallbackServerContext* context, const wire::ReadCachesRequest* request) override;
  grpc::ServerUnaryReactor* SetReplicaTargets(grpc::CallbackServerContext* context,
                                              const wire::SetReplicaTargetsRequest* request,
                                              wire::SetReplicaTargetsResponse* response) override;
  grpc::ServerUnaryReactor* OfferLink(grpc::CallbackServerContext* context,
                                      const wire::OfferLinkRequest* request,
                                      wire::OfferLinkResponse* response) override {
    *response = selector_.Offer(*request);
    return Answer(context, absl::OkStatus());
  }

 private:
  absl::StatusOr<GrpcLinkAcceptor::Accepted> AcceptLink(const wire::Hello& peer);

  // Dials the stage after `stage`. Compute thread.
  absl::Status Connect(StageServer* stage, const std::string& next_address);

  // kNotFound: no such stage here.
  absl::StatusOr<std::shared_ptr<StageServer>> FindStage(const wire::Epoch& epoch, uint32_t stage);
  // Answers with what `answers` makes of the loaded stage, on its compute thread.
  template <typename Request, typename Response, typename Answers>
  grpc::ServerUnaryReactor* WithVocabulary(grpc::CallbackServerContext* context,
                                           const Request* request, Response* response,
                                           Answers answers);
  // Removes and returns the loaded stage that `spec` reuses; null: there is no such stage.
  std::shared_ptr<StageServer> TakeReusedStage(const wire::StageSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MarkLeaving(const std::shared_ptr<StageServer>& stage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunUnloads();

  const WorkerOptions options_;
  Clock* const clock_;
  LinkSelector selector_;  // outlives links_, whose links it accepts
  GrpcLinkAcceptor links_;
  std::unique_ptr<ListeningServer> server_;
  std::string address_;

  absl::Mutex mu_;
  // Shared with running calls on a stage.
  std::map<StageKey, std::shared_ptr<StageServer>> stages_ ABSL_GUARDED_BY(mu_);
  // Removed from stages_, but perhaps still on a step.
  std::vector<std::weak_ptr<StageServer>> leaving_ ABSL_GUARDED_BY(mu_);
  // At most one for each stage, and one for each change of a stage's replicas.
  std::deque<absl::AnyInvocable<void() &&>> unloads_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Shared with the streams.
  const std::shared_ptr<std::atomic<int>> cache_streams_ = std::make_shared<std::atomic<int>>(0);
  std::thread unloader_;
};

void WorkerServerImpl::MarkLeaving(const std::shared_ptr<StageServer>& stage) {
  std::erase_if(leaving_, [](const auto& other) { return other.expired(); });
  leaving_.push_back(stage);
}

// Destroying a stage waits for its compute thread and for its links' callbacks, which gRPC's few
// threads run: if those all waited here, none would be left to run the callbacks.
void WorkerServerImpl::RunUnloads() {
  while (true) {
    absl::AnyInvocable<void() &&> unload;
    {
      absl::MutexLock lock(mu_);
      const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return !unloads_.empty() || stopping_;
      };
      mu_.Await(absl::Condition(&has_work));
      if (unloads_.empty()) return;
      unload = std::move(unloads_.front());
      unloads_.pop_front();
    }
    std::move(unload)();
  }
}

absl::StatusOr<std::shared_ptr<StageServer>> WorkerServerImpl::FindStage(const wire::Epoch& epoch,
                                                                         uint32_t stage) {
  absl::MutexLock lock(mu_);
  const auto found = stages_.find(StageKeyOf(epoch, stage));
  if (found == stages_.end()) {
    return absl::NotFoundError(
        absl::StrCat("stage ", stage, " of epoch ", EpochString(epoch), " is not on this device"));
  }
  return found->second;
}

std::shared_ptr<StageServer> WorkerServerImpl::TakeReusedStage(const wire::StageSpec& spec) {
  if (!spec.has_kept()) return nullptr;
  const auto found = stages_.find(StageKeyOf(spec.kept().epoch(), spec.kept().stage()));
  if (found == stages_.end() || !IsSameStage(found->second->spec(), spec)) return nullptr;
  std::shared_ptr<StageServer> kept = std::move(found->second);
  MarkLeaving(kept);
  stages_.erase(found);
  return kept;
}

absl::StatusOr<GrpcLinkAcceptor::Accepted> WorkerServerImpl::AcceptLink(const wire::Hello& peer) {
  auto stage = FindStage(peer.epoch(), peer.to_stage());
  if (!stage.ok()) return stage.status();
  auto incoming = (*stage)->Accept(peer);
  if (!incoming.ok()) return incoming.status();
  GrpcLinkAcceptor::Accepted accepted;
  accepted.hello = std::move(incoming->hello);
  accepted.receiver = incoming->receiver;
  accepted.on_open = PromisedLink(*std::move(stage));
  return accepted;
}

grpc::ServerUnaryReactor* WorkerServerImpl::Ping(grpc::CallbackServerContext* context,
                                                 const wire::PingRequest*,
                                                 wire::PingResponse* response) {
  response->set_resident_bytes(ResidentBytes());
  uint32_t busy_ms = 0;
  uint64_t steps_done = 0;
  std::vector<std::shared_ptr<StageServer>> leaving;  // released after the lock
  {
    absl::MutexLock lock(mu_);
    for (const auto& stage : leaving_) {
      if (auto there = stage.lock()) leaving.push_back(std::move(there));
    }
    for (const auto& stage : leaving) busy_ms = std::max(busy_ms, stage->busy_ms());
    for (const auto& [key, stage] : stages_) {
      wire::StageWork* work = response->add_stages();
      work->mutable_epoch()->set_counter(key.counter);
      work->mutable_epoch()->set_coordinator_id(key.coordinator_id);
      work->set_stage(key.stage);
      work->set_busy_ms(stage->busy_ms());
      work->set_steps_done(stage->steps_done());
      const StageServer::Work done = stage->work();
      work->set_busy_us(static_cast<uint64_t>(done.busy_us));
      work->set_rows(done.rows);
      work->set_bytes_in(done.bytes_in);
      work->set_bytes_out(done.bytes_out);
      if (const auto store = stage->kv_store(); store != nullptr) {
        work->set_kv_disk_bytes(store->bytes_used());
        for (wire::ReplicaStatus& replica : store->FollowerStatus()) {
          *work->add_replicas() = std::move(replica);
        }
      }
      *work->mutable_activations() = stage->activations();
      work->set_link_wire(done.link_wire);
      work->set_link_note(done.link_note);
      busy_ms = std::max(busy_ms, work->busy_ms());
      steps_done += work->steps_done();
    }
  }
  response->set_busy_ms(busy_ms);
  response->set_steps_done(steps_done);
  MakePrintable(response);
  return Answer(context, absl::OkStatus());
}

grpc::ServerWriteReactor<wire::LoadStageEvent>* WorkerServerImpl::LoadStage(
    grpc::CallbackServerContext*, const wire::LoadStageRequest* request) {
  wire::LoadStageRequest load = *request;
  const wire::StageSpec& spec = load.spec();
  if (spec.n_threads() == 0) load.mutable_spec()->set_n_threads(options_.n_threads);
  const StageKey key = StageKeyOf(spec.epoch(), spec.stage());
  auto* stream = new LoadStream();
  {
    absl::MutexLock lock(mu_);
    const auto found = stages_.find(key);
    if (found != stages_.end() && !found->second->load_failed()) {
      stream->End(absl::AlreadyExistsError(
          absl::StrCat("stage ", key.stage, " is on this device already; unload it first")));
      return stream;
    }
    if (found == stages_.end() && stages_.size() >= kWorkerStagesMax) {
      // A stage that failed to load has no thread, so this does not block.
      std::erase_if(stages_, [](const auto& each) { return each.second->load_failed(); });
      if (stages_.size() >= kWorkerStagesMax) {
        stream->End(absl::ResourceExhaustedError(
            absl::StrCat("a worker takes ", kWorkerStagesMax, " stages at most")));
        return stream;
      }
    }
    // The stage is in stages_ while it loads, so that it can be unloaded; a failed one is replaced.
    const auto is_kept = std::make_shared<bool>(false);         // shared by the two callbacks
    const auto self_test = std::make_shared<wire::SelfTest>();  // the same
    const auto kv_blocks = std::make_shared<std::string>();     // the same
    stages_[key] = StageServer::Start(
        spec, clock_,
        [load, stream, is_kept, self_test, kv_blocks,
         kept = TakeReusedStage(spec)]() mutable -> absl::StatusOr<std::unique_ptr<Stage>> {
          std::unique_ptr<Stage> stage = kept != nullptr ? kept->TakeStage() : nullptr;
          kept.reset();
          if (stage == nullptr) {
            auto loaded = LoadSpec(load, stream);
            if (!loaded.ok()) return loaded;
            *self_test = RunSelfTest(load.spec(), loaded->get());
            OpenKvStore(load, loaded->get());
            *kv_blocks = JoinKvNames((*loaded)->StoredBlocks());
            return loaded;
          }
          if (!load.spec().kept().with_caches()) stage->Clear();
          *is_kept = true;
          *kv_blocks = JoinKvNames(stage->StoredBlocks());
          return stage;
        },
        [this, spec, stream, is_kept, self_test, kv_blocks](absl::StatusOr<Stage::Facts> facts) {
          if (!facts.ok()) {
            stream->End(facts.status());
            return;
          }
          wire::StageInfo info = DescribeStage(spec, *facts, address_);
          info.set_kept(*is_kept);
          info.set_kv_blocks(*kv_blocks);
          info.set_caches_kept(*is_kept && spec.kept().with_caches());
          if (info.kept()) info.set_load_ms(0);
          if (!info.kept()) *info.mutable_self_test() = std::move(*self_test);
          stream->End(std::move(info));
        });
  }
  return stream;
}

grpc::ServerUnaryReactor* WorkerServerImpl::ConnectStage(grpc::CallbackServerContext* context,
                                                         const wire::ConnectStageRequest* request,
                                                         wire::ConnectStageResponse*) {
  auto stage = FindStage(request->epoch(), request->stage());
  if (!stage.ok()) return Answer(context, stage.status());
  if (auto s = (*stage)->SetActivations(request->activations()); !s.ok()) {
    return Answer(context, s);
  }
  // Dialling blocks, which is forbidden on gRPC's threads: use the stage's thread, which is idle.
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  StageServer* server = stage->get();  // alive: it runs the task
  const absl::Status posted =
      server->Post([this, reactor, server, address = request->next_address()](Stage* loaded) {
        reactor->Finish(ToGrpc(loaded == nullptr ? absl::UnavailableError("the stage was unloaded")
                                                 : Connect(server, address)));
      });
  if (!posted.ok()) reactor->Finish(ToGrpc(posted));
  return reactor;
}

absl::Status WorkerServerImpl::Connect(StageServer* stage, const std::string& next_address) {
  stage->SetOutgoing(nullptr, "");
  const bool to_coordinator = IsLastStage(stage->spec());
  auto dialled = selector_.Dial(
      {.address = next_address, .hello = stage->OutgoingHello(), .to_worker = !to_coordinator},
      stage->outgoing_receiver());
  if (!dialled.ok()) {
    return absl::Status(dialled.status().code(),
                        absl::StrCat("stage ", stage->spec().stage(), " to ", next_address, ": ",
                                     dialled.status().message()));
  }
  stage->SetOutgoing(std::move(dialled->link), std::move(dialled->note));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* WorkerServerImpl::SetReplicaTargets(
    grpc::CallbackServerContext* context, const wire::SetReplicaTargetsRequest* request,
    wire::SetReplicaTargetsResponse*) {
  const auto stage = FindStage(request->epoch(), request->stage());
  if (!stage.ok()) return Answer(context, stage.status());
  const auto store = (*stage)->kv_store();
  if (store == nullptr) return Answer(context, absl::OkStatus());
  wire::SetReplicaTargetsRequest targets = *request;
  targets.clear_epoch();
  targets.clear_stage();
  KvStore::Followers replaced = store->ReplaceFollowers(targets.SerializeAsString(), [&] {
    KvStore::Followers followers;
    for (const wire::ReplicaTarget& target : request->targets()) {
      followers.push_back(target.why_none().empty() ? StartReplicator(store.get(), target)
                                                    : NoReplicator(target));
    }
    return followers;
  });
  absl::MutexLock lock(mu_);
  // They may wait for the disk or for their call's end. They end before the store that they follow.
  if (!replaced.empty() && !stopping_) {
    unloads_.push_back([store, replaced = std::move(replaced)]() mutable { replaced.clear(); });
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* WorkerServerImpl::UnloadStage(grpc::CallbackServerContext* context,
                                                        const wire::UnloadStageRequest* request,
                                                        wire::UnloadStageResponse*) {
  std::shared_ptr<StageServer> stage;
  {
    absl::MutexLock lock(mu_);
    const auto found = stages_.find(StageKeyOf(request->epoch(), request->stage()));
    if (found == stages_.end()) return Answer(context, absl::OkStatus());
    stage = std::move(found->second);
    MarkLeaving(stage);
    stages_.erase(found);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::MutexLock lock(mu_);
  if (stopping_) return Answer(context, absl::UnavailableError("the worker stops"));
  unloads_.push_back([stage = std::move(stage), reactor]() mutable {
    stage->Stop();  // while leaving_ has it; frees its memory before the response
    stage.reset();
    ReleaseFreedMemory();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

template <typename Request, typename Response, typename Answers>
grpc::ServerUnaryReactor* WorkerServerImpl::WithVocabulary(grpc::CallbackServerContext* context,
                                                           const Request* request,
                                                           Response* response, Answers answers) {
  auto stage = FindStage(request->epoch(), request->stage());
  if (!stage.ok()) return Answer(context, stage.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status posted = (*stage)->Post([context, reactor, response, answers](Stage* loaded) {
    absl::Status status;
    if (context->IsCancelled()) {
      status = absl::CancelledError("the call was cancelled");
    } else if (loaded == nullptr) {
      status = absl::UnavailableError("the stage was unloaded");
    } else if (loaded->vocab() == nullptr) {
      status = absl::FailedPreconditionError("a stage in the middle has no vocabulary");
    } else {
      auto answer = answers(loaded);
      status = answer.status();
      if (answer.ok()) *response = *std::move(answer);
    }
    reactor->Finish(ToGrpc(status));
  });
  if (!posted.ok()) reactor->Finish(ToGrpc(posted));
  return reactor;
}

grpc::ServerUnaryReactor* WorkerServerImpl::Tokenize(grpc::CallbackServerContext* context,
                                                     const wire::TokenizeRequest* request,
                                                     wire::TokenizeResponse* response) {
  return WithVocabulary(context, request, response, [request](Stage* loaded) {
    return TokenizeText(loaded->vocab(), *request, loaded->facts().n_ctx_train);
  });
}

grpc::ServerUnaryReactor* WorkerServerImpl::Detokenize(grpc::CallbackServerContext* context,
                                                       const wire::DetokenizeRequest* request,
                                                       wire::DetokenizeResponse* response) {
  return WithVocabulary(context, request, response, [request](Stage* loaded) {
    return DetokenizeTokens(loaded->vocab(), *request);
  });
}

grpc::ServerUnaryReactor* WorkerServerImpl::MoveCaches(grpc::CallbackServerContext* context,
                                                       const wire::MoveCachesRequest* request,
                                                       wire::MoveCachesResponse* response) {
  auto stage = FindStage(request->epoch(), request->stage());
  if (!stage.ok()) return Answer(context, stage.status());
  if ((*stage)->steps_done() > 0) {
    return Answer(context, absl::FailedPreconditionError("the stage has computed already"));
  }
  // It blocks; as in ConnectStage(), the stage's thread is idle.
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status posted = (*stage)->Post([context, reactor, request, response](Stage* loaded) {
    if (loaded == nullptr) {
      return reactor->Finish(ToGrpc(absl::UnavailableError("the stage was unloaded")));
    }
    const auto should_continue = [context] { return !context->IsCancelled(); };
    auto moved = TakeCaches(*request, should_continue, loaded);
    const absl::Status status = moved.status();
    if (status.ok()) *response = *std::move(moved);
    reactor->Finish(ToGrpc(status));
  });
  if (!posted.ok()) reactor->Finish(ToGrpc(posted));
  return reactor;
}

grpc::ServerWriteReactor<wire::CachePiece>* WorkerServerImpl::ReadCaches(
    grpc::CallbackServerContext*, const wire::ReadCachesRequest* request) {
  auto stage = FindStage(request->epoch(), request->stage());
  const bool admitted = ++*cache_streams_ <= kCacheStreamsMax;
  const std::shared_ptr<void> keeps(nullptr, [n = cache_streams_](void*) { --*n; });
  if (stage.ok() && admitted) return StreamCaches(*stage, *request, keeps);
  class Refusal final : public grpc::ServerWriteReactor<wire::CachePiece> {
   public:
    explicit Refusal(const absl::Status& why) { Finish(ToGrpc(why)); }
    void OnDone() override { delete this; }
  };
  return new Refusal(stage.ok() ? absl::ResourceExhaustedError(absl::StrCat(
                                      kCacheStreamsMax, " caches are being read already"))
                                : stage.status());
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(WorkerOptions options,
                                                                  Clock* clock) {
  auto server = std::make_unique<WorkerServerImpl>(std::move(options), clock);
  if (auto s = server->Listen(); !s.ok()) return s;
  return server;
}

}  // namespace strata
