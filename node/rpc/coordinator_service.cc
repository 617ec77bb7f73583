#include "node/rpc/coordinator_service.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/request/request_status.h"
#include "node/gateway/generate_reactor.h"
#include "node/gateway/generation_proto.h"
#include "node/rpc/event_writer.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/forwarding.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"
#include "transport/rpc/read_next.h"

namespace strata {
namespace {

using Stub = wire::Coordinator::Stub;

constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr int64_t kMeasureAnswerMs = 3'000;
// For it, a node reads folders and the first bytes of files.
constexpr int64_t kModelsAnswerMs = 3'000;
// For it, a node lists or removes files.
constexpr int64_t kKeptAnswerMs = 10'000;
// Digits of a model's id that name it.
constexpr size_t kModelIdCharsMin = 8;
// Back-off before a leased model is loaded again; doubles with each failed attempt.
constexpr absl::Duration kReloadPause = absl::Milliseconds(250);
constexpr absl::Duration kReloadPauseMax = absl::Seconds(8);

// The request with this node as the source, where it names none.
template <typename Request>
Request WithSource(const Request& request, const std::string& node_id) {
  Request filled = request;
  if (filled.source().node().empty()) filled.mutable_source()->set_node(node_id);
  return filled;
}

// Whether the event is the call's result: a call that emitted only notes and progress may be
// retried.
bool IsAnswer(const wire::PlanModelEvent& event) { return event.has_plan(); }
bool IsAnswer(const wire::LoadModelEvent& event) { return event.has_loaded(); }
bool IsAnswer(const wire::DrainNodeEvent& /*event*/) { return false; }

// Writes the other node's events until their end; cancels the call when `write` returns false. The
// result event sets `answered`.
template <typename Event, typename Write>
grpc::Status Relay(std::unique_ptr<grpc::ClientReader<Event>> from, grpc::ClientContext* context,
                   const Write& write, bool* answered) {
  Event event;
  while (ReadNext(from.get(), &event)) {
    *answered = *answered || IsAnswer(event);
    if (!write(event)) context->TryCancel();
  }
  return from->Finish();
}

template <typename Event>
auto WriteTo(grpc::ServerWriter<Event>* writer) {
  return [writer](Event event) {
    MakePrintable(&event);
    return writer->Write(event);
  };
}

// Each node's answer to `ask`; all are asked at the same time.
template <typename Answer, typename Ask>
std::vector<absl::StatusOr<Answer>> AskNodes(const ClusterSnapshot& report, const Ask& ask) {
  std::vector<absl::StatusOr<Answer>> answers(report.nodes.size(),
                                              absl::UnavailableError("it does not answer"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < answers.size(); ++i) {
    NodeClient* const client = report.nodes[i].client.get();
    if (client == nullptr) continue;
    threads.emplace_back([&ask, client, answer = &answers[i]] { *answer = ask(client); });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

// Whether people mean this model by `name`, which `cache show` or `status` has told them.
bool IsNamed(absl::string_view name, absl::string_view model_name, absl::string_view model_id) {
  return absl::EqualsIgnoreCase(model_name, name) ||
         (name.size() >= kModelIdCharsMin &&
          absl::StartsWith(absl::BytesToHexString(model_id), absl::AsciiStrToLower(name)));
}

// The operation context of a long call to the coordinator: cancellation and notes.
template <typename Event>
Coordinator::OperationContext OperationOf(const grpc::ServerContext& context,
                                          EventWriter<Event>* events) {
  Coordinator::OperationContext operation;
  operation.should_continue = [&context] { return !context.IsCancelled(); };
  operation.note = [events](const std::string& note) {
    Event event;
    event.set_note(note);
    return events->Write(std::move(event));
  };
  return operation;
}

}  // namespace

// Counts one call against the limit of calls in flight.
class CoordinatorService::CallLimit {
 public:
  CallLimit(CoordinatorService* service, int calls_max) : service_(service) {
    admitted_ = ++service_->calls_ <= calls_max;
  }
  ~CallLimit() { --service_->calls_; }
  CallLimit(const CallLimit&) = delete;
  CallLimit& operator=(const CallLimit&) = delete;

  absl::Status status() const {
    return admitted_ ? absl::OkStatus()
                     : absl::ResourceExhaustedError("too many calls at a time; try again");
  }

 private:
  CoordinatorService* const service_;
  bool admitted_ = false;
};

CoordinatorService::CoordinatorService(Coordinator* coordinator, Gateway* gateway, Options options)
    : coordinator_(coordinator),
      gateway_(gateway),
      options_(std::move(options)),
      n_requests_(std::make_shared<std::atomic<int>>(0)) {}

absl::StatusOr<std::unique_ptr<wire::Coordinator::Stub>> CoordinatorService::FindLeader(
    const grpc::ServerContext& context) {
  for (const SteadyTime until = SteadyTime::Now() + options_.leadership_time;;
       absl::SleepFor(kPoll)) {
    const Coordinator::Leadership leadership = coordinator_->leadership();
    if (leadership.mine && leadership.settled) return nullptr;
    if (!leadership.address.empty()) {
      if (!WasForwarded(context)) return gateway_->StubAt(leadership.address);
      // The node that forwarded the call learns of the new leader in a moment, too.
      return AsLeaderChanged(NoCoordinator());
    }
    if (context.IsCancelled()) return absl::CancelledError("the caller has gone");
    if (SteadyTime::Now() < until) continue;
    if (leadership.mine) return nullptr;
    return WasForwarded(context) ? AsLeaderChanged(NoCoordinator())
                                 : NoCoordinator(leadership.refused);
  }
}

template <typename Call>
std::optional<grpc::Status> CoordinatorService::ForwardToLeader(const grpc::ServerContext& context,
                                                                Call call) {
  for (SteadyTime until = SteadyTime::InfiniteFuture();; absl::SleepFor(kPoll)) {
    auto leader = FindLeader(context);
    if (!leader.ok()) return RequestStatusToGrpc(leader.status());
    if (*leader == nullptr) return std::nullopt;
    const auto onward = Onward(context);
    bool answered = false;
    grpc::Status status = call(leader->get(), onward.get(), &answered);
    const bool has_gone =
        status.error_code() == grpc::StatusCode::UNAVAILABLE && !IsFromPeer(status);
    if (!has_gone && !IsLeaderChanged(RequestStatusFromGrpc(status))) return status;
    // The time to retry counts from the first failure.
    until = std::min(until, SteadyTime::Now() + options_.leadership_time);
    if (answered || context.IsCancelled() || SteadyTime::Now() >= until) {
      if (!has_gone) return status;
      return RequestStatusToGrpc(WithRetryAfterMs(
          absl::UnavailableError("the coordinator does not answer; try again in a few seconds"),
          kRetrySoonMs));
    }
  }
}

grpc::Status CoordinatorService::PlanModel(grpc::ServerContext* context,
                                           const wire::PlanModelRequest* request,
                                           grpc::ServerWriter<wire::PlanModelEvent>* writer) {
  const CallLimit limit(this, kCoordinatorLongCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  const wire::PlanModelRequest filled = WithSource(*request, options_.node_id);
  const auto forwarded =
      ForwardToLeader(*context, [&](Stub* to, grpc::ClientContext* onward, bool* answered) {
        return Relay(to->PlanModel(onward, filled), onward, WriteTo(writer), answered);
      });
  if (forwarded) return *forwarded;
  EventWriter<wire::PlanModelEvent> events(WriteTo(writer));
  auto plan = coordinator_->Plan(filled, OperationOf(*context, &events));
  events.Finish();
  if (!plan.ok()) return RequestStatusToGrpc(plan.status());
  wire::PlanModelEvent event;
  *event.mutable_plan() = *std::move(plan);
  WriteTo(writer)(event);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::LoadModel(grpc::ServerContext* context,
                                           const wire::LoadModelRequest* request,
                                           grpc::ServerWriter<wire::LoadModelEvent>* writer) {
  const CallLimit limit(this, kCoordinatorLongCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  wire::LoadModelRequest load = WithSource(*request, options_.node_id);
  bool was_loaded = false;
  absl::Duration pause = kReloadPause;
  const auto write = [&](const wire::LoadModelEvent& event) {
    // The client reads no events after the loaded one.
    const bool is_open = was_loaded ? !context->IsCancelled() : WriteTo(writer)(event);
    if (!event.has_loaded()) return is_open;
    was_loaded = true;
    pause = kReloadPause;
    load.set_model_id(event.loaded().model_id());
    // A reload keeps the sizes that the model has, whichever request chose them.
    load.mutable_placement()->set_n_ctx(event.loaded().n_ctx());
    load.mutable_placement()->set_n_seqs(event.loaded().n_seqs());
    return is_open;
  };
  for (;; pause = std::min(2 * pause, kReloadPauseMax)) {
    const auto forwarded =
        ForwardToLeader(*context, [&](Stub* to, grpc::ClientContext* onward, bool* answered) {
          return Relay(to->LoadModel(onward, load), onward, write, answered);
        });
    const grpc::Status status =
        forwarded ? *forwarded : RequestStatusToGrpc(LoadHere(*context, load, write));
    // A leased model outlives its coordinator: the node that the client called reloads it.
    const bool again = load.hold() && was_loaded && !status.ok();
    if (!again || WasForwarded(*context)) return status;
    // Another client may have loaded the model with other options by now.
    if (status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
      *load.mutable_placement() = request->placement();
    }
    const SteadyTime until = SteadyTime::Now() + pause;
    while (!context->IsCancelled() && SteadyTime::Now() < until) absl::SleepFor(kPoll);
    if (context->IsCancelled()) return status;
  }
}

absl::Status CoordinatorService::LoadHere(
    const grpc::ServerContext& context, const wire::LoadModelRequest& request,
    absl::FunctionRef<bool(const wire::LoadModelEvent& event)> write) {
  EventWriter<wire::LoadModelEvent> events(write);
  Coordinator::OperationContext operation = OperationOf(context, &events);
  operation.placed = [&events](const wire::ModelStatus& placed) {
    wire::LoadModelEvent event;
    *event.mutable_placed() = placed;
    return events.Write(std::move(event));
  };
  operation.progress = [&events](uint32_t stage, const wire::LoadProgress& progress) {
    wire::LoadModelEvent event;
    event.mutable_progress()->set_stage(stage);
    *event.mutable_progress()->mutable_progress() = progress;
    return events.Write(std::move(event), stage);
  };
  const bool was_loaded = !request.model_id().empty();
  auto loaded = was_loaded ? coordinator_->Reload(request, std::move(operation))
                           : coordinator_->Load(request, operation);
  events.Finish();
  if (!loaded.ok()) return loaded.status();
  wire::LoadModelEvent event;
  *event.mutable_loaded() = coordinator_->StatusOf(loaded->deployment);
  event.set_was_there(loaded->was_there);
  event.set_lease(loaded->lease);
  write(event);
  if (loaded->lease == 0) return absl::OkStatus();
  // The lease of a failed model is kept, too: its caller still reads the reason.
  while (coordinator_->HasLease(loaded->lease) && !context.IsCancelled()) absl::SleepFor(kPoll);
  coordinator_->Release(loaded->lease);
  return context.IsCancelled() ? absl::OkStatus() : coordinator_->CheckLeadership();
}

grpc::Status CoordinatorService::UnloadModel(grpc::ServerContext* context,
                                             const wire::UnloadModelRequest* request,
                                             wire::UnloadModelResponse* response) {
  const CallLimit limit(this, kCoordinatorCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  const auto forwarded =
      ForwardToLeader(*context, [&](Stub* to, grpc::ClientContext* onward, bool*) {
        return to->UnloadModel(onward, *request, response);
      });
  if (forwarded) return *forwarded;
  if (request->lease() != 0) {
    coordinator_->Release(request->lease());
    return grpc::Status::OK;
  }
  auto name = coordinator_->Unload(request->model());
  if (name.ok()) response->set_name(*name);
  return RequestStatusToGrpc(name.status());
}

grpc::Status CoordinatorService::ListModels(grpc::ServerContext* context,
                                            const wire::ListModelsRequest* request,
                                            wire::ListModelsResponse* response) {
  const CallLimit limit(this, kCoordinatorCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  absl::StatusOr<std::vector<wire::ModelStatus>> models;
  for (const SteadyTime until = SteadyTime::Now() + options_.leadership_time;;
       absl::SleepFor(kPoll)) {
    const auto forwarded =
        ForwardToLeader(*context, [&](Stub* to, grpc::ClientContext* onward, bool*) {
          return to->ListModels(onward, *request, response);
        });
    if (forwarded) return *forwarded;
    models = coordinator_->Models();
    const bool again = IsLeaderChanged(models.status()) && !WasForwarded(*context);
    if (!again || context->IsCancelled() || SteadyTime::Now() >= until) break;
  }
  if (!models.ok()) return RequestStatusToGrpc(models.status());
  response->set_coordinator(options_.node_id);
  for (wire::ModelStatus& model : *models) *response->add_models() = std::move(model);
  MakePrintable(response);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetReport(grpc::ServerContext*,
                                           const wire::GetReportRequest* request,
                                           wire::ClusterSnapshot* response) {
  const CallLimit limit(this, kCoordinatorCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  auto report = coordinator_->Report({request->nodes().begin(), request->nodes().end()});
  if (report.ok()) *response = ToWire(*report);
  MakePrintable(response);
  return ToGrpc(report.status());
}

grpc::Status CoordinatorService::ListKnownModels(grpc::ServerContext*,
                                                 const wire::ListKnownModelsRequest*,
                                                 wire::ListKnownModelsResponse* response) {
  const CallLimit limit(this, kCoordinatorCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  auto report = coordinator_->Report();
  if (!report.ok()) return ToGrpc(report.status());
  DisambiguateNodeNames(&*report);
  auto lists = AskNodes<wire::ListLocalModelsResponse>(
      *report, [](NodeClient* client) { return client->ListLocalModels(kModelsAnswerMs); });
  std::vector<wire::KnownModel> models;
  for (size_t i = 0; i < lists.size(); ++i) {
    const NodeReport& node = report->nodes[i];
    if (!lists[i].ok()) {
      response->add_silent(node.name());
      continue;
    }
    for (wire::LocalModelFile& file : *lists[i]->mutable_models()) {
      wire::KnownModel& model = models.emplace_back();
      model.set_node(node.id());
      model.set_node_name(node.name());
      *model.mutable_file() = std::move(file);
    }
  }
  absl::c_stable_sort(models, [](const wire::KnownModel& a, const wire::KnownModel& b) {
    return std::tie(a.file().name(), a.node_name()) < std::tie(b.file().name(), b.node_name());
  });
  for (wire::KnownModel& model : models) *response->add_models() = std::move(model);
  MakePrintable(response);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::ListKeptPrompts(grpc::ServerContext*,
                                                 const wire::ListKeptPromptsRequest*,
                                                 wire::ListKeptPromptsResponse* response) {
  const CallLimit limit(this, kCoordinatorCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  auto report = coordinator_->Report();
  if (!report.ok()) return ToGrpc(report.status());
  DisambiguateNodeNames(&*report);
  const auto lists = AskNodes<wire::ListKvCachesResponse>(
      *report, [](NodeClient* client) { return client->ListKvCaches(kKeptAnswerMs); });
  for (size_t i = 0; i < lists.size(); ++i) {
    if (!lists[i].ok()) {
      response->add_silent(report->nodes[i].name());
      continue;
    }
    wire::KeptPrompts* const node = response->add_nodes();
    node->set_node(report->nodes[i].id());
    node->set_node_name(report->nodes[i].name());
    *node->mutable_kept() = *lists[i];
  }
  MakePrintable(response);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::ClearKeptPrompts(grpc::ServerContext* context,
                                                  const wire::ClearKeptPromptsRequest* request,
                                                  wire::ClearKeptPromptsResponse* response) {
  const CallLimit limit(this, kCoordinatorCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  const auto forwarded =
      ForwardToLeader(*context, [&](Stub* to, grpc::ClientContext* onward, bool*) {
        return to->ClearKeptPrompts(onward, *request, response);
      });
  if (forwarded) return *forwarded;
  auto report = coordinator_->Report();
  if (!report.ok()) return ToGrpc(report.status());
  DisambiguateNodeNames(&*report);
  const auto lists = AskNodes<wire::ListKvCachesResponse>(
      *report, [](NodeClient* client) { return client->ListKvCaches(kKeptAnswerMs); });
  std::map<std::string, std::string> models;  // names by ids, of those that are meant
  const auto consider = [&](const std::string& id, const std::string& name) {
    if (request->model().empty() || IsNamed(request->model(), name, id)) models[id] = name;
  };
  std::set<std::string> kept;  // names, for people
  for (const auto& list : lists) {
    if (!list.ok()) continue;
    for (const wire::KvCache& cache : list->caches()) {
      const wire::KvCacheAbout& about = cache.about();
      consider(about.model_id(), about.model_name());
      if (cache.blocks() > 0) kept.insert(PrintableText::From(about.model_name()).str());
      if (models.contains(about.model_id())) response->set_bytes(response->bytes() + cache.bytes());
    }
  }
  const auto loaded = coordinator_->Models();
  for (const wire::ModelStatus& model : loaded.value_or(std::vector<wire::ModelStatus>())) {
    consider(model.model_id(), model.name());
  }
  if (models.empty() && !request->model().empty()) {
    return ToGrpc(absl::NotFoundError(
        absl::StrCat("no prompts of ", PrintableText::From(request->model()).str(), " are kept; ",
                     kept.empty() ? "nor of any other model"
                                  : absl::StrCat("those of ", absl::StrJoin(kept, ", "), " are"))));
  }
  std::vector<std::string> ids;  // as nodes take them
  for (const auto& [id, name] : models) {
    coordinator_->ForgetKept(id);
    ids.push_back(id);
    if (!name.empty()) response->add_models(name);
  }
  if (request->model().empty()) ids = {""};  // folders that tell nothing, too
  const auto cleared = AskNodes<bool>(*report, [&](NodeClient* client) -> absl::StatusOr<bool> {
    for (const std::string& id : ids) {
      if (auto s = client->ClearKvCaches(id, kKeptAnswerMs); !s.ok()) return s;
    }
    return true;
  });
  for (size_t i = 0; i < cleared.size(); ++i) {
    if (!cleared[i].ok()) response->add_silent(report->nodes[i].name());
  }
  MakePrintable(response);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::MeasureNode(grpc::ServerContext*,
                                             const wire::MeasureNodeRequest* request,
                                             wire::MeasureNodeResponse*) {
  const CallLimit limit(this, kCoordinatorCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  auto report = coordinator_->Report({request->node()});
  if (!report.ok()) return ToGrpc(report.status());
  for (const NodeReport& node : report->nodes) {
    if (node.id() != request->node()) continue;
    return ToGrpc(node.client == nullptr ? node.status : node.client->Measure(kMeasureAnswerMs));
  }
  return ToGrpc(absl::NotFoundError("no such node is known"));
}

grpc::Status CoordinatorService::DrainNode(grpc::ServerContext* context,
                                           const wire::DrainNodeRequest* request,
                                           grpc::ServerWriter<wire::DrainNodeEvent>* writer) {
  const CallLimit limit(this, kCoordinatorLongCallsMax);
  if (auto s = limit.status(); !s.ok()) return ToGrpc(s);
  const auto forwarded =
      ForwardToLeader(*context, [&](Stub* to, grpc::ClientContext* onward, bool* answered) {
        return Relay(to->DrainNode(onward, *request), onward, WriteTo(writer), answered);
      });
  if (forwarded) return *forwarded;
  EventWriter<wire::DrainNodeEvent> events(WriteTo(writer));
  const absl::Status drained = coordinator_->Drain(*request, OperationOf(*context, &events));
  events.Finish();
  return RequestStatusToGrpc(drained);
}

grpc::ServerWriteReactor<wire::GenerateEvent>* CoordinatorService::Generate(
    grpc::CallbackServerContext* context, const wire::GenerateRequest* request) {
  auto* stream = new GenerateReactor(generations_);
  const bool admitted = ++*n_requests_ <= options_.requests_max;
  stream->Keep(
      std::shared_ptr<void>(nullptr, [n_requests = n_requests_](void*) { --*n_requests; }));
  if (!admitted) {
    auto refused = std::make_shared<GenerationCall>(stream->sink());  // shared with the stream
    stream->SetControl(refused);
    refused->Refuse(WithRetryAfterMs(
        absl::ResourceExhaustedError("too many requests at a time; try again later"),
        kRetrySoonMs));
    return stream;
  }
  stream->SetControl(
      gateway_->Generate(*request, stream->sink(), {.pass_on = !WasForwarded(*context)}));
  return stream;
}

grpc::ServerUnaryReactor* CoordinatorService::FinishGeneration(
    grpc::CallbackServerContext* context, const wire::FinishGenerationRequest* request,
    wire::FinishGenerationResponse*) {
  generations_->Finish(request->text());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace strata
