#include "node/rpc/coordinator_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/request/request_status.h"
#include "node/gateway/generate_reactor.h"
#include "node/gateway/generation_proto.h"
#include "node/rpc/event_writer.h"
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
// Before what is held is loaded again; doubles with each try in vain.
constexpr absl::Duration kHeldPause = absl::Milliseconds(250);
constexpr absl::Duration kHeldPauseMax = absl::Seconds(8);

// A node's file where no other node is named.
template <typename Request>
Request WithSource(const Request& request, const std::string& node_id) {
  Request filled = request;
  if (filled.source().node().empty()) filled.mutable_source()->set_node(node_id);
  return filled;
}

// What may be asked again, for its notes and progress are no answer yet.
bool IsAnswer(const wire::PlanModelEvent& event) { return event.has_plan(); }
bool IsAnswer(const wire::LoadModelEvent& event) { return event.has_loaded(); }
bool IsAnswer(const wire::DrainNodeEvent& /*event*/) { return false; }

// Tells what the other node writes until its end; false ends it. `said` is set by the answer.
template <typename Event, typename Tell>
grpc::Status Pass(std::unique_ptr<grpc::ClientReader<Event>> from, grpc::ClientContext* context,
                  const Tell& tell, bool* said) {
  Event event;
  while (ReadNext(from.get(), &event)) {
    *said = *said || IsAnswer(event);
    if (!tell(event)) context->TryCancel();
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

// What every long call of a coordinator's asks and tells.
template <typename Event>
Coordinator::OperationContext CallerOf(const grpc::ServerContext& context,
                                       EventWriter<Event>* events) {
  Coordinator::OperationContext caller;
  caller.should_continue = [&context] { return !context.IsCancelled(); };
  caller.note = [events](const std::string& note) {
    Event event;
    event.set_note(note);
    return events->Tell(std::move(event));
  };
  return caller;
}

}  // namespace

// One of the calls that may be under way at a time.
class CoordinatorService::Admission {
 public:
  Admission(CoordinatorService* service, int calls_max) : service_(service) {
    admitted_ = ++service_->calls_ <= calls_max;
  }
  ~Admission() { --service_->calls_; }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

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

absl::StatusOr<std::unique_ptr<wire::Coordinator::Stub>> CoordinatorService::Elsewhere(
    const grpc::ServerContext& context) {
  for (const SteadyTime until = SteadyTime::Now() + options_.leadership_time;;
       absl::SleepFor(kPoll)) {
    const Coordinator::Leadership leadership = coordinator_->leadership();
    if (leadership.mine && leadership.settled) return nullptr;
    if (!leadership.address.empty()) {
      if (!WasForwarded(context)) return gateway_->StubAt(leadership.address);
      return AsLeaderChanged(NoCoordinator());  // whoever passed it on knows that, too, in a moment
    }
    if (context.IsCancelled()) return absl::CancelledError("the caller has gone");
    if (SteadyTime::Now() < until) continue;
    if (leadership.mine) return nullptr;
    return WasForwarded(context) ? AsLeaderChanged(NoCoordinator())
                                 : NoCoordinator(leadership.refused);
  }
}

template <typename Call>
std::optional<grpc::Status> CoordinatorService::PassOn(const grpc::ServerContext& context,
                                                       Call call) {
  for (SteadyTime until = SteadyTime::InfiniteFuture();; absl::SleepFor(kPoll)) {
    auto elsewhere = Elsewhere(context);
    if (!elsewhere.ok()) return TextStatusToGrpc(elsewhere.status());
    if (*elsewhere == nullptr) return std::nullopt;
    const auto onward = Onward(context);
    bool said = false;
    grpc::Status status = call(elsewhere->get(), onward.get(), &said);
    const bool has_gone =
        status.error_code() == grpc::StatusCode::UNAVAILABLE && !SaidByPeer(status);
    if (!has_gone && !IsLeaderChanged(TextStatusFromGrpc(status))) return status;
    until = std::min(until,
                     SteadyTime::Now() + options_.leadership_time);  // from the first that has gone
    if (said || context.IsCancelled() || SteadyTime::Now() >= until) {
      if (!has_gone) return status;
      return TextStatusToGrpc(WithRetryAfterMs(
          absl::UnavailableError(
              "the node that coordinates does not answer; try again in a few seconds"),
          kRetrySoonMs));
    }
  }
}

grpc::Status CoordinatorService::PlanModel(grpc::ServerContext* context,
                                           const wire::PlanModelRequest* request,
                                           grpc::ServerWriter<wire::PlanModelEvent>* writer) {
  const Admission admission(this, kCoordinatorLongCallsMax);
  if (auto s = admission.status(); !s.ok()) return ToGrpc(s);
  const wire::PlanModelRequest filled = WithSource(*request, options_.node_id);
  const auto passed_on = PassOn(*context, [&](Stub* to, grpc::ClientContext* onward, bool* said) {
    return Pass(to->PlanModel(onward, filled), onward, WriteTo(writer), said);
  });
  if (passed_on) return *passed_on;
  EventWriter<wire::PlanModelEvent> events(WriteTo(writer));
  auto plan = coordinator_->Plan(filled, CallerOf(*context, &events));
  events.Finish();
  if (!plan.ok()) return TextStatusToGrpc(plan.status());
  wire::PlanModelEvent event;
  *event.mutable_plan() = *std::move(plan);
  WriteTo(writer)(event);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::LoadModel(grpc::ServerContext* context,
                                           const wire::LoadModelRequest* request,
                                           grpc::ServerWriter<wire::LoadModelEvent>* writer) {
  const Admission admission(this, kCoordinatorLongCallsMax);
  if (auto s = admission.status(); !s.ok()) return ToGrpc(s);
  wire::LoadModelRequest wanted = WithSource(*request, options_.node_id);
  bool was_loaded = false;
  absl::Duration pause = kHeldPause;
  const auto tell = [&](const wire::LoadModelEvent& event) {
    // Nobody reads on once it is loaded.
    const bool told = was_loaded ? !context->IsCancelled() : WriteTo(writer)(event);
    if (!event.has_loaded()) return told;
    was_loaded = true;
    pause = kHeldPause;
    wanted.set_model_id(event.loaded().model_id());
    // As it is, whoever asked for it so.
    wanted.mutable_placement()->set_n_ctx(event.loaded().n_ctx());
    wanted.mutable_placement()->set_n_seqs(event.loaded().n_seqs());
    return told;
  };
  for (;; pause = std::min(2 * pause, kHeldPauseMax)) {
    const auto passed_on = PassOn(*context, [&](Stub* to, grpc::ClientContext* onward, bool* said) {
      return Pass(to->LoadModel(onward, wanted), onward, tell, said);
    });
    const grpc::Status status =
        passed_on ? *passed_on : TextStatusToGrpc(LoadHere(*context, wanted, tell));
    // What is held outlives its coordinator. Who passed it on asks the next one.
    const bool again = wanted.hold() && was_loaded && !status.ok();
    if (!again || WasForwarded(*context)) return status;
    // It may be another's by now, who wished for it otherwise.
    if (status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
      *wanted.mutable_placement() = request->placement();
    }
    const SteadyTime until = SteadyTime::Now() + pause;
    while (!context->IsCancelled() && SteadyTime::Now() < until) absl::SleepFor(kPoll);
    if (context->IsCancelled()) return status;
  }
}

absl::Status CoordinatorService::LoadHere(
    const grpc::ServerContext& context, const wire::LoadModelRequest& request,
    absl::FunctionRef<bool(const wire::LoadModelEvent& event)> tell) {
  EventWriter<wire::LoadModelEvent> events(tell);
  Coordinator::OperationContext caller = CallerOf(context, &events);
  caller.placed = [&events](const wire::ModelStatus& placed) {
    wire::LoadModelEvent event;
    *event.mutable_placed() = placed;
    return events.Tell(std::move(event));
  };
  caller.progress = [&events](uint32_t stage, const wire::LoadProgress& progress) {
    wire::LoadModelEvent event;
    event.mutable_progress()->set_stage(stage);
    *event.mutable_progress()->mutable_progress() = progress;
    return events.Tell(std::move(event), stage);
  };
  const bool was_loaded = !request.model_id().empty();
  auto loaded = was_loaded ? coordinator_->LoadAgain(request, std::move(caller))
                           : coordinator_->Load(request, caller);
  events.Finish();
  if (!loaded.ok()) return loaded.status();
  wire::LoadModelEvent event;
  *event.mutable_loaded() = coordinator_->StatusOf(loaded->deployment);
  event.set_was_there(loaded->was_there);
  event.set_lease(loaded->lease);
  tell(event);
  if (loaded->lease == 0) return absl::OkStatus();
  // One that failed is held, too: its caller still wants to know why.
  while (coordinator_->HasLease(loaded->lease) && !context.IsCancelled()) absl::SleepFor(kPoll);
  coordinator_->Release(loaded->lease);
  return context.IsCancelled() ? absl::OkStatus() : coordinator_->CheckLeadership();
}

grpc::Status CoordinatorService::UnloadModel(grpc::ServerContext* context,
                                             const wire::UnloadModelRequest* request,
                                             wire::UnloadModelResponse* response) {
  const Admission admission(this, kCoordinatorCallsMax);
  if (auto s = admission.status(); !s.ok()) return ToGrpc(s);
  const auto passed_on = PassOn(*context, [&](Stub* to, grpc::ClientContext* onward, bool*) {
    return to->UnloadModel(onward, *request, response);
  });
  if (passed_on) return *passed_on;
  if (request->lease() != 0) {
    coordinator_->Release(request->lease());
    return grpc::Status::OK;
  }
  auto name = coordinator_->Unload(request->model());
  if (name.ok()) response->set_name(*name);
  return TextStatusToGrpc(name.status());
}

grpc::Status CoordinatorService::ListModels(grpc::ServerContext* context,
                                            const wire::ListModelsRequest* request,
                                            wire::ListModelsResponse* response) {
  const Admission admission(this, kCoordinatorCallsMax);
  if (auto s = admission.status(); !s.ok()) return ToGrpc(s);
  absl::StatusOr<std::vector<wire::ModelStatus>> models;
  for (const SteadyTime until = SteadyTime::Now() + options_.leadership_time;;
       absl::SleepFor(kPoll)) {
    const auto passed_on = PassOn(*context, [&](Stub* to, grpc::ClientContext* onward, bool*) {
      return to->ListModels(onward, *request, response);
    });
    if (passed_on) return *passed_on;
    models = coordinator_->Models();
    const bool again = IsLeaderChanged(models.status()) && !WasForwarded(*context);
    if (!again || context->IsCancelled() || SteadyTime::Now() >= until) break;
  }
  if (!models.ok()) return TextStatusToGrpc(models.status());
  response->set_coordinator(options_.node_id);
  for (wire::ModelStatus& model : *models) *response->add_models() = std::move(model);
  MakePrintable(response);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetReport(grpc::ServerContext*,
                                           const wire::GetReportRequest* request,
                                           wire::ClusterSnapshot* response) {
  const Admission admission(this, kCoordinatorCallsMax);
  if (auto s = admission.status(); !s.ok()) return ToGrpc(s);
  auto report = coordinator_->Report({request->nodes().begin(), request->nodes().end()});
  if (report.ok()) *response = ToWire(*report);
  MakePrintable(response);
  return ToGrpc(report.status());
}

grpc::Status CoordinatorService::MeasureNode(grpc::ServerContext*,
                                             const wire::MeasureNodeRequest* request,
                                             wire::MeasureNodeResponse*) {
  const Admission admission(this, kCoordinatorCallsMax);
  if (auto s = admission.status(); !s.ok()) return ToGrpc(s);
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
  const Admission admission(this, kCoordinatorLongCallsMax);
  if (auto s = admission.status(); !s.ok()) return ToGrpc(s);
  const auto passed_on = PassOn(*context, [&](Stub* to, grpc::ClientContext* onward, bool* said) {
    return Pass(to->DrainNode(onward, *request), onward, WriteTo(writer), said);
  });
  if (passed_on) return *passed_on;
  EventWriter<wire::DrainNodeEvent> events(WriteTo(writer));
  const absl::Status drained = coordinator_->Drain(*request, CallerOf(*context, &events));
  events.Finish();
  return TextStatusToGrpc(drained);
}

grpc::ServerWriteReactor<wire::GenerateEvent>* CoordinatorService::Generate(
    grpc::CallbackServerContext* context, const wire::GenerateRequest* request) {
  auto* stream = new GenerateReactor(texts_);
  const bool admitted = ++*n_requests_ <= options_.requests_max;
  stream->Keep(
      std::shared_ptr<void>(nullptr, [n_requests = n_requests_](void*) { --*n_requests; }));
  if (!admitted) {
    auto refused = std::make_shared<GenerationCall>(stream->sink());  // shared with the stream
    stream->SetControl(refused);
    refused->Refuse(WithRetryAfterMs(
        absl::ResourceExhaustedError("too many texts at a time; try again later"), kRetrySoonMs));
    return stream;
  }
  stream->SetControl(
      gateway_->Generate(*request, stream->sink(), {.pass_on = !WasForwarded(*context)}));
  return stream;
}

grpc::ServerUnaryReactor* CoordinatorService::FinishGeneration(
    grpc::CallbackServerContext* context, const wire::FinishGenerationRequest* request,
    wire::FinishGenerationResponse*) {
  texts_->Finish(request->text());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace strata
