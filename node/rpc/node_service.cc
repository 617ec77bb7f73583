#include "node/rpc/node_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "node/base/machine.h"
#include "node/hub/aliases.h"
#include "shard/device/memory_pressure.h"
#include "transport/base/utf8.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

// Time limits of a worker's calls, where the client's deadline is not earlier. A load reads a disk
// or a network and is watched by its progress.
constexpr absl::Duration kLoadLimit = absl::Hours(12);
constexpr absl::Duration kConnectLimit = absl::Seconds(20);
constexpr absl::Duration kMoveCachesLimit = absl::Minutes(30);
constexpr absl::Duration kUnloadLimit = absl::Seconds(30);
constexpr absl::Duration kTokenizeLimit = absl::Seconds(30);
// The age up to which what was found on the disk is told.
constexpr absl::Duration kLocalModelsAge = absl::Seconds(2);

// The context of the forwarded call: ends with the deadline of `context`, and when its client
// cancels.
StageHost::Context Onward(const grpc::CallbackServerContext& context, absl::Duration limit) {
  StageHost::Context onward = grpc::ClientContext::FromCallbackServerContext(context);
  onward->set_deadline(DeadlineIn(limit));
  return onward;
}

StageHost::Done FinishWith(grpc::ServerUnaryReactor* reactor) {
  return [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); };
}

}  // namespace

NodeService::NodeService(EventLoop* loop, StageHost* host, Benchmarks* benchmarks,
                         SelfTestFile* self_tests, Identity identity, AddressOf address_of,
                         Problems problems)
    : loop_(loop),
      host_(host),
      benchmarks_(benchmarks),
      self_tests_(self_tests),
      identity_(std::move(identity)),
      address_of_(std::move(address_of)),
      problems_(std::move(problems)),
      local_models_({.thread_name = "local models", .waiting_max = kLocalModelsWaitingMax},
                    [folders = identity_.models,
                     data_dir = identity_.data_dir]() -> absl::StatusOr<LocalModels> {
                      auto models = FindLocalModels(folders);
                      if (!data_dir.empty()) {
                        // A damaged file is set aside by the verb that meets it, which says so.
                        SetAliases(ReadAliases(data_dir).value_or(Aliases()),
                                   absl::MakeSpan(models));
                      }
                      return std::make_shared<const std::vector<LocalModel>>(std::move(models));
                    }),
      kv_folders_({.thread_name = "kv caches", .waiting_max = kLocalModelsWaitingMax},
                  [this]() -> absl::StatusOr<KvFolders> {
                    std::vector<std::string> to_clear;
                    {
                      absl::MutexLock lock(mu_);
                      to_clear.swap(to_clear_);
                    }
                    if (identity_.kv_folder.empty()) {
                      return std::make_shared<const std::vector<KvFolder>>();
                    }
                    for (const std::string& model_id : to_clear) {
                      identity_.replicas->Close(model_id);
                      ClearKvFolders(identity_.kv_folder, model_id);
                    }
                    return std::make_shared<const std::vector<KvFolder>>(
                        ListKvFolders(identity_.kv_folder));
                  }) {}

grpc::ServerUnaryReactor* NodeService::GetInfo(grpc::CallbackServerContext* context,
                                               const wire::GetInfoRequest* request,
                                               wire::GetInfoResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::vector<wire::SelfTest> self_tests;
  if (self_tests_ != nullptr && !request->self_tests_of().empty()) {
    self_tests = self_tests_->Of(request->self_tests_of());
  }
  loop_->Post([this, reactor, response, self_tests = std::move(self_tests)] {
    *response = Info();
    for (const wire::SelfTest& test : self_tests) *response->add_self_tests() = test;
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

wire::GetInfoResponse NodeService::Info() const {
  wire::GetInfoResponse info;
  const MachineMemory memory = ReadMachineMemory();
  info.set_node_id(identity_.id);
  info.set_name(identity_.name);
  *info.mutable_versions() = LocalVersions();
  info.set_memory_total(memory.total_bytes);
  info.set_memory_free(memory.free_bytes);
  info.set_cores(MachineCores());
  info.set_draining(draining_);
  if (std::string pressure = PressureText(ReadMemoryPressure()); !pressure.empty()) {
    info.add_problems(std::move(pressure));
  }
  for (const std::string& problem : problems_()) info.add_problems(ValidUtf8(problem));
  for (wire::StageStatus& stage : host_->Stages()) *info.add_stages() = std::move(stage);
  for (wire::HeldReplica& held : identity_.replicas->Held()) *info.add_replicas() = std::move(held);
  if (benchmarks_ != nullptr) benchmarks_->AddDevices(&info);
  MakePrintable(&info);
  return info;
}

grpc::ServerUnaryReactor* NodeService::SetDraining(grpc::CallbackServerContext* context,
                                                   const wire::SetDrainingRequest* request,
                                                   wire::SetDrainingResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([this, reactor, draining = request->draining()] {
    draining_ = draining;
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::Measure(grpc::CallbackServerContext* context,
                                               const wire::MeasureRequest*,
                                               wire::MeasureResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([this, reactor] {
    reactor->Finish(
        ToGrpc(benchmarks_ != nullptr
                   ? benchmarks_->MeasureAgain()
                   : absl::FailedPreconditionError("this node does not measure (--no-measure)")));
  });
  return reactor;
}

grpc::ServerWriteReactor<wire::LoadStageEvent>* NodeService::LoadStage(
    grpc::CallbackServerContext* context, const wire::LoadStageRequest* request) {
  auto* stream = new LoadStream;
  loop_->Post(
      [this, spec = request->spec(), onward = Onward(*context, kLoadLimit), stream]() mutable {
        RerouteSources(&spec);
        host_->Load(spec, onward, stream);
      });
  return stream;
}

// Each node knows best by which route it reaches another.
std::string NodeService::Reroute(const std::string& address, const std::string& node_id) const {
  const std::string route = node_id.empty() ? "" : address_of_(node_id);
  if (route.empty() || address.rfind(':') == address.npos) return address;
  return absl::StrCat(route.substr(0, route.rfind(':')), address.substr(address.rfind(':')));
}

void NodeService::RerouteSources(wire::StageSpec* spec) const {
  if (!spec->source_node().empty()) {
    const std::string route = address_of_(spec->source_node());
    if (!route.empty()) spec->set_source_address(route);
  }
  for (wire::WeightPeer& peer : *spec->mutable_weight_peers()) {
    const std::string route = peer.node_id().empty() ? "" : address_of_(peer.node_id());
    if (!route.empty()) peer.set_address(route);
  }
}

grpc::ServerUnaryReactor* NodeService::FetchWeights(grpc::CallbackServerContext* context,
                                                    const wire::FetchWeightsRequest* request,
                                                    wire::FetchWeightsResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([this, spec = request->spec(), reactor]() mutable {
    RerouteSources(&spec);
    reactor->Finish(ToGrpc(host_->FetchAhead(spec)));
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::ConnectStage(grpc::CallbackServerContext* context,
                                                    const wire::ConnectStageRequest* request,
                                                    wire::ConnectStageResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, onward = Onward(*context, kConnectLimit)] {
    auto routed =
        std::make_shared<wire::ConnectStageRequest>(*request);  // shared with the callback
    routed->set_next_address(Reroute(request->next_address(), request->next_node()));
    host_->Connect(routed.get(), response, onward, [reactor, routed](const absl::Status& status) {
      reactor->Finish(ToGrpc(status));
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::MoveCaches(grpc::CallbackServerContext* context,
                                                  const wire::MoveCachesRequest* request,
                                                  wire::MoveCachesResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, onward = Onward(*context, kMoveCachesLimit)] {
    auto routed = std::make_shared<wire::MoveCachesRequest>(*request);  // shared with the callback
    for (wire::CacheSource& from : *routed->mutable_from()) {
      from.set_address(Reroute(from.address(), from.node()));
    }
    host_->MoveCaches(
        routed.get(), response, onward,
        [reactor, routed](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::SetReplicaTargets(
    grpc::CallbackServerContext* context, const wire::SetReplicaTargetsRequest* request,
    wire::SetReplicaTargetsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, onward = Onward(*context, kConnectLimit)] {
    auto routed =
        std::make_shared<wire::SetReplicaTargetsRequest>(*request);  // shared with the callback
    for (wire::ReplicaTarget& target : *routed->mutable_targets()) {
      target.set_address(Reroute(target.address(), target.node()));
    }
    host_->SetReplicaTargets(
        routed.get(), response, onward,
        [reactor, routed](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::UnloadStage(grpc::CallbackServerContext* context,
                                                   const wire::UnloadStageRequest* request,
                                                   wire::UnloadStageResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, onward = Onward(*context, kUnloadLimit)] {
    host_->Unload(request, response, onward, FinishWith(reactor));
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::Tokenize(grpc::CallbackServerContext* context,
                                                const wire::TokenizeRequest* request,
                                                wire::TokenizeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, onward = Onward(*context, kTokenizeLimit)] {
    host_->Tokenize(request, response, onward, FinishWith(reactor));
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::ListLocalModels(grpc::CallbackServerContext* context,
                                                       const wire::ListLocalModelsRequest*,
                                                       wire::ListLocalModelsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Duration age_max = kLocalModelsAge;
  {
    absl::MutexLock lock(mu_);
    age_max = std::min(age_max, SteadyTime::Now() - local_models_changed_);
  }
  local_models_.Get(age_max, [reactor, response](const absl::StatusOr<LocalModels>& found) {
    if (!found.ok()) {
      reactor->Finish(ToGrpc(found.status()));
      return;
    }
    for (const LocalModel& model : **found) {
      wire::LocalModelFile* file = response->add_models();
      file->set_name(model.name);
      file->set_path(model.path);
      file->set_quant(QuantOf(model.variant.parts[0].name));
      file->set_bytes(model.variant.bytes);
      file->set_place(model.place);
      for (const std::string& alias : model.aliases) file->add_aliases(alias);
    }
    MakePrintable(response);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::ListKvCaches(grpc::CallbackServerContext* context,
                                                    const wire::ListKvCachesRequest*,
                                                    wire::ListKvCachesResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  kv_folders_.Get(absl::ZeroDuration(), [this, reactor, response](const auto& folders) {
    if (folders.ok()) {
      for (const KvFolder& folder : **folders) *response->add_caches() = folder.cache;
    }
    response->set_bytes_max(identity_.kv_bytes_max);
    reactor->Finish(ToGrpc(folders.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::ClearKvCaches(grpc::CallbackServerContext* context,
                                                     const wire::ClearKvCachesRequest* request,
                                                     wire::ClearKvCachesResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  bool is_full = false;
  {
    absl::MutexLock lock(mu_);
    is_full = to_clear_.size() >= kLocalModelsWaitingMax;
    if (!is_full) to_clear_.push_back(request->model_id());
  }
  if (is_full) {
    reactor->Finish(ToGrpc(absl::ResourceExhaustedError("too many calls at a time; try again")));
    return reactor;
  }
  kv_folders_.Get(absl::ZeroDuration(),
                  [reactor](const auto& folders) { reactor->Finish(ToGrpc(folders.status())); });
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::Detokenize(grpc::CallbackServerContext* context,
                                                  const wire::DetokenizeRequest* request,
                                                  wire::DetokenizeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, onward = Onward(*context, kTokenizeLimit)] {
    host_->Detokenize(request, response, onward, FinishWith(reactor));
  });
  return reactor;
}

}  // namespace strata
