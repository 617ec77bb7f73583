// Models: loaded, leased, unloaded.
#include "coordinator/models/coordinator.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/chat_templates.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/draft_model.h"
#include "coordinator/models/model_match.h"
#include "coordinator/models/reusable_stages.h"
#include "coordinator/planner/report.h"
#include "coordinator/request/request_status.h"
#include "shard/model/model_file.h"
#include "transport/base/short_id.h"
#include "transport/base/steady_time.h"
#include "transport/base/thread_name.h"
#include "transport/base/wall_clock.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// How long Models() waits for models that are being loaded again.
constexpr absl::Duration kReloadTime = absl::Seconds(5);
// For stages to forget what they keep, beside their work.
constexpr std::chrono::milliseconds kForgetTime(5'000);

absl::Status WasUnloaded(const Deployment& deployment) {
  return absl::UnavailableError(absl::StrCat(deployment.name(), " was unloaded"));
}

// Whether `wanted`, if not empty, differs from `has`, whose default is `otherwise`.
bool IsOther(const std::string& wanted, const std::string& has, const char* otherwise) {
  return !wanted.empty() && wanted != (has.empty() ? otherwise : has);
}

// OK: the loaded model has the options that `request` asks for.
absl::Status Fits(Deployment* deployment, const wire::LoadModelRequest& request) {
  const auto differs = [&](const char* what) {
    return absl::FailedPreconditionError(
        absl::StrCat(deployment->name(), " is loaded already, with another ", what,
                     "; unload it first: strata unload ", ShortModelId(deployment->model_id())));
  };
  const wire::PlacementOptions& has = deployment->request().placement();
  const wire::PlacementOptions& wants = request.placement();
  const CacheShape& cache = deployment->planned().inputs.request.cache;
  if (wants.n_ctx() != 0 && wants.n_ctx() != cache.n_ctx) return differs("--ctx");
  if (wants.n_seqs() > cache.n_seqs) return differs("--seqs");
  if (!wants.assign().empty() && wants.assign() != has.assign()) return differs("--assign");
  if (!wants.exclude().empty() && wants.exclude() != has.exclude()) return differs("--exclude");
  if (!wants.reserve().empty() && wants.reserve() != has.reserve()) return differs("--reserve");
  if (IsOther(wants.activations(), has.activations(), "f32")) return differs("--activations");
  if (IsOther(wants.cpu_moe(), has.cpu_moe(), "auto")) return differs("--cpu-moe");
  const wire::CacheSpec& spec = has.cache();
  const wire::CacheSpec& wanted = wants.cache();
  if (IsOther(wanted.type_k(), spec.type_k(), "f16")) return differs("--cache-type-k");
  if (IsOther(wanted.type_v(), spec.type_v(), "f16")) return differs("--cache-type-v");
  if (IsOther(wanted.flash_attention(), spec.flash_attention(), "auto")) {
    return differs("--flash-attention");
  }
  if (wanted.exact() && !spec.exact()) return differs("promise (--exact)");
  if (request.speculation() != wire::SPECULATION_AUTO &&
      request.speculation() != deployment->request().speculation()) {
    return differs("--speculate");
  }
  if (!request.draft().empty() && request.draft() != deployment->request().draft()) {
    return differs("--draft");
  }
  const auto wants_template = [](const wire::LoadModelRequest& load) {
    return !load.chat_template().empty() || !load.chat_template_name().empty();
  };
  if (wants_template(request) &&
      (request.chat_template() != deployment->request().chat_template() ||
       request.chat_template_name() != deployment->request().chat_template_name())) {
    return differs("--chat-template");
  }
  if (wanted.kv_cells() != 0 && wanted.kv_cells() != cache.kv_cells) return differs("--kv-cells");
  return absl::OkStatus();
}

}  // namespace

Coordinator::Coordinator(EventLoop* loop, ClusterRuntime* cluster, WeightFetcher* fetcher,
                         Options options)
    : loop_(loop),
      cluster_(cluster),
      fetcher_(fetcher),
      options_(std::move(options)),
      models_(static_cast<uint64_t>(absl::ToUnixMicros(WallNow()))) {}

void Coordinator::Start(std::string self_address) {
  self_address_ = std::move(self_address);
  {
    absl::MutexLock lock(mu_);
    reloads_.Forget();
  }
  if (options_.desired_file != nullptr) {
    options_.desired_file->OnSettled(
        [loop = loop_, cluster = cluster_](const DesiredVersion& version) {
          loop->Post([cluster, version] { cluster->OnDesiredStored(version); });
        });
    if (const DesiredStatePtr& opened = options_.desired_file->opened(); opened != nullptr) {
      cluster_->membership()->OpenDesired(opened);
    }
  }
  Tick();
  cluster_->OnChange([this] { Tick(); });
  leadership_thread_ = std::thread([this] {
    NameThread("leadership");
    RunLeadershipLoop();
  });
  recovery_thread_ = std::thread([this] {
    NameThread("recovery");
    RunRecoveryLoop();
  });
}

Coordinator::~Coordinator() {
  cluster_->OnChange(nullptr);
  if (leadership_thread_.joinable()) Stop();
}

void Coordinator::StopCalls() {
  absl::MutexLock lock(mu_);
  stopping_ = true;
}

void Coordinator::Stop() {
  StopCalls();
  if (recovery_thread_.joinable()) recovery_thread_.join();  // first: it makes new deployments
  std::vector<DeploymentPtr> models, unlisted;
  bool has_successors = false;
  {
    absl::MutexLock lock(mu_);
    unlisted.swap(unlisted_);
    models.swap(lost_);  // that RunLeadershipLoop() has not unloaded yet
    std::ranges::move(models_.Clear(), std::back_inserter(models));
    has_successors = role_.has_successors();
  }
  UnloadUnlisted(unlisted);
  ForEach(models, [has_successors](Deployment* model) {
    const absl::Status why = absl::UnavailableError("the node that coordinates is stopping");
    if (has_successors) {
      model->AnnounceLeaderChange(why);
    } else {
      model->Unload(why);
    }
  });
  if (leadership_thread_.joinable()) leadership_thread_.join();
}

void Coordinator::ForEach(const std::vector<DeploymentPtr>& models,
                          absl::FunctionRef<void(Deployment*)> call) {
  std::vector<std::thread> threads;
  for (const DeploymentPtr& model : models) threads.emplace_back([&] { call(model.get()); });
  for (std::thread& thread : threads) thread.join();
}

bool Coordinator::stopping() {
  absl::MutexLock lock(mu_);
  return stopping_;
}

Coordinator::OperationContext Coordinator::UntilStopped(const OperationContext& caller) {
  OperationContext stoppable = caller;
  stoppable.should_continue = [this, should_continue = caller.should_continue] {
    return !stopping() && should_continue();
  };
  return stoppable;
}

// Its models are transferred, or about to be: the next coordinator knows more of them.
absl::Status Coordinator::Stopping() const {
  absl::Status why =
      absl::UnavailableError("the node that coordinates is stopping; try again in a few seconds");
  return role_.has_successors() ? AsLeaderChanged(std::move(why)) : why;
}

// An operation that ends because the node stops was not interrupted by its caller, and another node
// may carry it out.
absl::Status Coordinator::Explain(const absl::Status& status) {
  absl::MutexLock lock(mu_);
  const bool ended_by_it = absl::IsCancelled(status) || absl::IsUnavailable(status);
  return stopping_ && ended_by_it ? Stopping() : status;
}

void Coordinator::Wait(absl::Duration limit, absl::FunctionRef<bool()> due) {
  const auto is_over = [this, due]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || due(); };
  absl::MutexLock lock(mu_);
  mu_.AwaitWithTimeout(absl::Condition(&is_over), limit);
}

absl::StatusOr<Coordinator::Work> Coordinator::StartWork(const OperationContext& caller) {
  const auto is_free = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !working_ && unloads_ == 0;  // the next plan counts on the memory of unloads
  };
  for (std::string noted; caller.should_continue(); Wait(kPoll, is_free)) {
    std::string note = "Another model is being unloaded…";
    {
      absl::MutexLock lock(mu_);
      if (is_free()) {
        working_ = true;
        return Work(this);
      }
      if (working_) note = "Another model is being loaded or moved; this is next…";
    }
    if (note != noted) caller.note(note);
    noted = std::move(note);
  }
  return absl::CancelledError("interrupted");
}

void Coordinator::NextWork() {
  absl::MutexLock lock(mu_);
  working_ = false;
}

PlanningOptions Coordinator::PlanningFor(const OperationContext& caller) {
  PlanningOptions planning = {
      .collect = [this] { return Report(); },
      .fetcher = fetcher_,
      .freed = {},
      .skip_measurement_wait = caller.skip_measurement_wait,
      .model_id = "",
      .known = nullptr,
      .on_headers = nullptr,
      .note = caller.note,
      .should_continue = caller.should_continue,
      .pause = [this](absl::Duration time) { Wait(time, [] { return false; }); }};
  absl::MutexLock lock(mu_);
  planning.kept_out = flap_tracker_.ExcludedNodes(SteadyTime::Now());
  return planning;
}

PlanningOptions Coordinator::PlanningAgain(const Deployment& model, const PlanScope& scope,
                                           const OperationContext& caller) {
  PlanningOptions planning = PlanningFor(caller);
  planning.known = model.planned().model;
  planning.model_id = model.model_id();
  planning.positions = scope.positions.value_or(model.MeanPositions());
  planning.limits = ExcludedDevices(planning.model_id);
  planning.reuse = scope.reuse;
  planning.beside = scope.beside;
  return planning;
}

absl::StatusOr<wire::PlanExplained> Coordinator::Plan(const wire::PlanModelRequest& request,
                                                      const OperationContext& caller) {
  if (auto s = CheckLeadership(); !s.ok()) return s;
  auto planned =
      PlanModel(PlanningFor(UntilStopped(caller)), request.source(), request.placement());
  if (!planned.ok()) return Explain(planned.status());
  wire::PlanExplained explained;
  const PlanRequest& inputs = (*planned)->inputs.request;
  explained.set_text(PlanReport(*(*planned)->model, inputs, (*planned)->plan));
  explained.set_json(PlanJson(*(*planned)->model, inputs, (*planned)->plan));
  return explained;
}

absl::StatusOr<Coordinator::LoadResult> Coordinator::Load(const wire::LoadModelRequest& request,
                                                          const OperationContext& caller) {
  const OperationContext watched = UntilStopped(caller);
  OperationContext yielding = watched;
  bool yielded = false;
  yielding.should_continue = [this, &watched, &yielded] {
    if (!watched.should_continue()) return false;
    yielded = yielded || AnyRecovering();
    return !yielded;
  };
  auto loaded = LoadNow(request, yielding);
  while (!loaded.ok() && std::exchange(yielded, false) && !caller.is_recovery) {
    watched.note(
        "A model that serves lost a stage and is recovered first; then this load begins again…");
    while (watched.should_continue() && AnyRecovering()) {
      Wait(kPoll, [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !models_.AnyRecovering(); });
    }
    loaded = LoadNow(request, yielding);
  }
  if (!loaded.ok()) return Explain(loaded.status());
  if (!caller.is_recovery) AwaitDesired();
  return loaded;
}

absl::StatusOr<Coordinator::LoadResult> Coordinator::LoadNow(const wire::LoadModelRequest& request,
                                                             const OperationContext& caller) {
  if (auto s = CheckLeadership(); !s.ok()) return s;
  const bool again = !request.model_id().empty();
  if (again) {
    absl::MutexLock lock(mu_);
    reloads_.BeginLoad(request.model_id());
  }
  const absl::Cleanup loaded_again = [&] {
    absl::MutexLock lock(mu_);
    if (again) reloads_.EndLoad(request.model_id());
  };
  const auto work = StartWork(caller);
  if (!work.ok()) return work.status();
  std::optional<LoadResult> there;
  wire::LoadModelRequest wanted = request;
  if (caller.ignore_assignment) wanted.mutable_placement()->clear_assign();
  PlanningOptions planning = PlanningFor(caller);
  planning.model_id = request.model_id();
  planning.limits = ExcludedDevices(request.model_id());  // loads by hand: none
  bool left = again;
  {
    absl::MutexLock lock(mu_);
    // Its stages may be left on the nodes.
    left = left || !reloads_.entries().empty() ||
           absl::c_any_of(models_.models(),
                          [](const auto& model) { return model.second->lost_a_stage(); });
  }
  if (left) planning.reuse = PlanningOptions::Reuse::kAround;
  std::string comes_back;  // the id of the failed model that this load replaces
  const auto failed = [&](const absl::Status& why) {
    absl::MutexLock lock(mu_);
    // Other errors are of this load alone, and do not end the retries for want of room.
    if (IsCapacityError(why)) reloads_.OnTried(comes_back, why);
    return why;
  };
  planning.on_headers = [&](const ModelFile& model) {
    if (auto templates = ChatTemplatesOf(model.header(), request); !templates.ok()) {
      return templates.status();
    }
    DeploymentPtr found;
    if (!request.draft().empty() && !again) {
      if (const auto draft = Find(request.draft()); draft.ok()) {
        if (auto s = CheckDraftModel(model, *(*draft)->planned().model); !s.ok()) return s;
      }
    }
    {
      absl::MutexLock lock(mu_);
      found = models_.Get(model.id());
      if (found == nullptr && models_.models().size() >= kModelsMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("a cluster has ", kModelsMax, " models at most"));
      }
    }
    if (found == nullptr) return absl::OkStatus();
    if (found->recovering()) {
      return absl::UnavailableError(absl::StrCat(
          found->name(),
          " lost a stage, and its layers are being placed again; try again in a few seconds"));
    }
    if (!found->serving()) {  // failed: it makes room for this
      if (GiveUp(found)) comes_back = model.id();
      return absl::OkStatus();
    }
    if (auto s = Fits(found.get(), wanted); !s.ok()) return s;
    absl::MutexLock lock(mu_);
    if (caller.is_recovery && !reloads_.entries().contains(model.id())) {
      return absl::CancelledError("the model was unloaded");  // it is held, and not to stay
    }
    const std::optional<uint64_t> lease = models_.Join(found, request);
    if (!lease.has_value()) return absl::OkStatus();
    if (StaysLoaded(request)) KeepPinned(model.id());
    there = LoadResult{.deployment = found, .was_there = true, .lease = *lease};
    return absl::AlreadyExistsError("");
  };
  wire::LoadModelRequest sized = request;
  if (sized.placement().n_seqs() == 0) sized.mutable_placement()->set_n_seqs(kLoadSeqs);
  wire::PlacementOptions placement = sized.placement();
  if (caller.ignore_assignment) placement.clear_assign();
  absl::StatusOr<DeploymentPtr> deployment;
  while (true) {
    auto planned = PlanModel(planning, sized.source(), placement);
    if (there.has_value()) return *there;
    if (!planned.ok()) {
      deployment = planned.status();
    } else {
      // A context that was chosen is kept by later plans of the model, here and on the next
      // coordinator.
      const uint32_t n_ctx = (*planned)->inputs.request.cache.n_ctx;
      sized.mutable_placement()->set_n_ctx(n_ctx);
      placement.set_n_ctx(n_ctx);
      deployment = DeployWhereItFits(planning, *std::move(planned), sized, placement,
                                     /*instead_of=*/nullptr, caller);
    }
    // What was lost comes back without taking others' room.
    if (!absl::IsResourceExhausted(deployment.status()) || again) break;
    const absl::Status room =
        MakeRoom(planning, sized.source(), placement,
                 /*by_hand=*/!request.make_room(), deployment.status(), caller);
    if (!room.ok()) return failed(room);
  }
  if (!deployment.ok()) return failed(deployment.status());
  LoadResult loaded{.deployment = *std::move(deployment)};
  absl::MutexLock lock(mu_);
  if (!caller.is_recovery && !request.hold()) reloads_.Remove(loaded.deployment->model_id());
  loaded.lease = models_.OnLoaded(loaded.deployment, request.hold());
  if (!caller.is_recovery && StaysLoaded(request)) KeepPinned(loaded.deployment->model_id());
  return loaded;
}

void Coordinator::KeepPinned(const std::string& id) {
  const auto pin = models_.pins().find(id);
  if (pin != models_.pins().end()) decisions_.Keep(pin->second);
}

void Coordinator::StopKeeping(const std::string& id) {
  decisions_.Drop(id);
  reloads_.Remove(id);
  ++unloads_;
}

bool Coordinator::TakeOut(const DeploymentPtr& deployment) {
  if (!models_.Remove(deployment)) return false;
  reclaimer_.OnDeploymentEnded(SteadyTime::Now());
  return true;
}

bool Coordinator::Remove(const DeploymentPtr& deployment, const absl::Status& why) {
  bool was_there = false;
  {
    absl::MutexLock lock(mu_);
    was_there = TakeOut(deployment);
    ++unloads_;
  }
  deployment->Unload(why);
  absl::MutexLock lock(mu_);
  --unloads_;
  return was_there;
}

bool Coordinator::Leave(const DeploymentPtr& deployment, const absl::Status& why) {
  bool was_there = false;
  {
    absl::MutexLock lock(mu_);
    was_there = TakeOut(deployment);
  }
  if (!was_there) return Remove(deployment, why);  // another caller unloads it
  deployment->AnnounceLeaderChange(why);
  return true;
}

bool Coordinator::RequeueReload(const std::string& id, const absl::Status& why) {
  const auto pin = models_.pins().find(id);
  if (pin == models_.pins().end()) return false;
  reloads_.Add(id, pin->second, why);
  return true;
}

bool Coordinator::GiveUp(const DeploymentPtr& failed) {
  const absl::Status why = failed->why();
  bool comes_back = false;
  {
    absl::MutexLock lock(mu_);
    comes_back = failed->lost_a_stage() && RequeueReload(failed->model_id(), why);
  }
  const absl::Status again = absl::UnavailableError("the model is loaded again");
  // A model that lacked nothing but room has stages that the next plan may keep.
  if (comes_back && IsCapacityError(why)) {
    Leave(failed, again);
  } else {
    Remove(failed, again);
  }
  return comes_back;
}

std::optional<std::string> Coordinator::ForgetPendingReload(const std::string& model) {
  std::string name;
  {
    absl::MutexLock lock(mu_);
    const std::optional<std::string> id = reloads_.Match(model);
    if (!id.has_value()) return std::nullopt;
    name = PrintableText::OfPath(reloads_.entries().at(*id).request.source().path()).str();
    decisions_.Drop(*id);
    reloads_.Remove(*id);
    reclaimer_.OnDeploymentEnded(SteadyTime::Now());  // its stages
  }
  AwaitDesired();
  return name;
}

bool Coordinator::HasLease(uint64_t lease) {
  absl::MutexLock lock(mu_);
  return models_.HasLease(lease);
}

void Coordinator::Release(uint64_t lease) {
  DeploymentPtr last;
  {
    absl::MutexLock lock(mu_);
    last = models_.Release(lease);  // at once: no caller joins it any more
    if (last == nullptr) return;
    reclaimer_.OnDeploymentEnded(SteadyTime::Now());
    ++unloads_;
  }
  UnloadCounted(last.get());
}

void Coordinator::UnloadCounted(Deployment* deployment) {
  deployment->Unload(WasUnloaded(*deployment));
  absl::MutexLock lock(mu_);
  --unloads_;
  recovery_.OnRoomMade();
}

wire::ModelStatus Coordinator::StatusOf(const std::shared_ptr<Deployment>& deployment) {
  wire::ModelStatus status = deployment->Status();
  absl::MutexLock lock(mu_);
  const std::string& id = deployment->model_id();
  status.set_name(models_.ShownName(deployment).str());
  if (!status.draft().empty()) {
    const auto draft = models_.Find(deployment->request().draft());
    if (draft.ok()) status.set_draft(models_.ShownName(*draft).str());
  }
  if (const auto pin = models_.pins().find(id); pin != models_.pins().end()) {
    status.set_keep_alive_ms(pin->second.keep_alive_ms());
    status.set_pinned(pin->second.pinned());
  }
  status.set_idle_ms(retention_.IsInUse(models_, id) ? -1
                                                     : absl::ToInt64Milliseconds(retention_.IdleFor(
                                                           models_, id, SteadyTime::Now())));
  return status;
}

absl::StatusOr<Coordinator::DeploymentPtr> Coordinator::Find(const std::string& model) {
  absl::MutexLock lock(mu_);
  auto found = models_.Find(model);
  if (!found.ok() && stopping_) return Stopping();
  return found;
}

absl::StatusOr<std::string> Coordinator::Unload(const std::string& model) {
  if (auto s = CheckLeadership(); !s.ok()) return s;
  while (true) {
    auto deployment = Find(model);
    if (absl::IsNotFound(deployment.status())) {
      {
        const auto is_known = [this]()
                                  ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !WaitsForDesired(); };
        absl::MutexLock lock(mu_);
        if (!mu_.AwaitWithTimeout(absl::Condition(&is_known), kReloadTime)) return Reloading();
      }
      if (const auto pending_reload = ForgetPendingReload(model)) return *pending_reload;
    }
    if (!deployment.ok()) return deployment.status();
    PrintableText name;
    {
      absl::MutexLock lock(mu_);
      name = models_.ShownName(*deployment);
    }
    {
      absl::MutexLock lock(mu_);
      // Else another deployment has just replaced it, or another caller unloads it.
      if (!TakeOut(*deployment)) continue;
      StopKeeping((*deployment)->model_id());
    }
    UnloadCounted(deployment->get());
    AwaitDesired();
    return name.str();
  }
}

void Coordinator::ForgetKept(const std::string& model_id) {
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    for (const auto& [id, model] : models_.models()) {
      if (model_id.empty() || id == model_id) models.push_back(model);
    }
  }
  for (const DeploymentPtr& model : models) model->engine()->ForgetKept(kForgetTime);
}

absl::StatusOr<std::vector<wire::ModelStatus>> Coordinator::Models() {
  if (auto s = CheckLeadership(); !s.ok()) return s;
  {
    const auto is_known = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return stopping_ || !role_.is_leader() || !reloads_.MayLoadSoon();
    };
    absl::MutexLock lock(mu_);
    mu_.AwaitWithTimeout(absl::Condition(&is_known), kReloadTime);
  }
  // The models that it was about to load may be another coordinator's by now.
  if (auto s = CheckLeadership(); !s.ok()) return s;
  std::vector<DeploymentPtr> models;
  std::map<std::string, ReloadQueue::Entry> reloads;
  {
    absl::MutexLock lock(mu_);
    if (stopping_) return Stopping();
    for (const auto& [id, model] : models_.models()) models.push_back(model);
    if (reloads_.is_unknown()) return Reloading();
    if (models.empty() && reloads_.entries().empty() && !role_.missed_nodes().empty()) {
      return Misses();
    }
    for (const auto& [id, entry] : reloads_.entries()) {
      if (models_.Get(id) == nullptr) reloads[id] = entry;
    }
  }
  std::vector<wire::ModelStatus> statuses;
  for (const DeploymentPtr& model : models) statuses.push_back(StatusOf(model));
  for (const auto& [id, entry] : reloads) {
    const PrintableText name = entry.Name();
    const bool is_shared =
        absl::c_any_of(models, [&name](const auto& model) { return model->name() == name; });
    wire::ModelStatus& status = statuses.emplace_back();
    status.set_model_id(id);
    status.set_name(ShownModelName(name, id, is_shared).str());
    *status.mutable_source() = entry.request.source();
    status.set_keep_alive_ms(entry.request.keep_alive_ms());
    status.set_pinned(entry.request.pinned());
    status.set_state(entry.why.ok() ? wire::ModelStatus::LOADING : wire::ModelStatus::FAILED);
    ToWire(entry.WhyNotHere(), "", status.mutable_status());
  }
  return statuses;
}

std::vector<std::string> Coordinator::Problems() {
  std::vector<std::string> problems;
  if (options_.desired_file != nullptr) problems = options_.desired_file->Problems();
  absl::MutexLock lock(mu_);
  if (!role_.is_leader()) return problems;
  if (absl::Status alone = Misses(); !alone.ok()) problems.emplace_back(alone.message());
  for (const auto& [id, entry] : reloads_.entries()) {
    if (models_.Get(id) != nullptr) continue;
    problems.push_back(absl::StrCat(entry.WhyNotHere().message(),
                                    "; it is tried again by itself, until: ", "strata unload ",
                                    ShortModelId(id)));
  }
  for (const auto& [id, model] : models_.models()) {
    const absl::Status why = model->why_not_serving();
    if (!why.ok()) {
      problems.push_back(
          absl::StrCat(why.message(), "; to end it: strata unload ", ShortModelId(id)));
    }
  }
  return problems;
}

std::vector<Coordinator::ModelStats> Coordinator::Stats() {
  std::vector<ModelStats> stats;
  absl::MutexLock lock(mu_);
  for (const auto& [id, model] : models_.models()) {
    stats.push_back({.name = models_.ShownName(model),
                     .id = id,
                     .serving = model->serving(),
                     .tokenizing = model->tokenizing(),
                     .stages = model->Stages(),
                     .scheduler = model->Stats()});
  }
  return stats;
}

bool Coordinator::MayReload() {
  absl::MutexLock lock(mu_);
  RefreshLeadership();  // the last tick may be older than the caller's view
  return role_.is_leader() && reloads_.MayLoadSoon();
}

absl::Status Coordinator::Reloading() {
  return WithRetryAfterMs(
      absl::UnavailableError(
          "the node that coordinated has gone, and models are being loaded again; "
          "try again in a few seconds"),
      kRetrySoonMs);
}

absl::Status Coordinator::Misses() const {
  if (role_.missed_nodes().empty()) return absl::OkStatus();
  return WithRetryAfterMs(
      absl::UnavailableError(
          absl::StrCat("this node is cut off: it does not reach ", role_.missed_nodes(),
                       ", which may have models that it does not know (strata doctor says more)")),
      kRetrySoonMs);
}

absl::Status Coordinator::WhyNotHere(const std::string& model) const {
  if (stopping_) return Stopping();
  if (reloads_.is_unknown()) return Reloading();
  if (absl::Status why = reloads_.WhyNotHere(model); !why.ok()) return why;
  return Misses();
}

absl::Status Coordinator::Answers(const std::string& model) {
  const auto deployment = FindOrWhyNot(model);
  if (!deployment.ok()) return deployment.status();
  return (*deployment)->answers() ? absl::OkStatus() : Reloading();
}

absl::StatusOr<Coordinator::DeploymentPtr> Coordinator::FindOrWhyNot(const std::string& model) {
  auto deployment = Find(model);
  if (!absl::IsNotFound(deployment.status())) return deployment;
  absl::MutexLock lock(mu_);
  if (absl::Status why = WhyNotHere(model); !why.ok()) return why;
  return deployment;
}

void Coordinator::Generate(const wire::GenerateRequest& request,
                           std::shared_ptr<GenerationCall> call) {
  const auto found = FindOrWhyNot(request.model());
  if (!found.ok()) return call->Refuse(found.status());
  DeploymentPtr deployment = *found;
  {
    absl::MutexLock lock(mu_);
    // It may have been unloaded, or replaced, since it was found.
    const std::string& id = (*found)->model_id();
    if (const DeploymentPtr there = models_.Get(id); there != nullptr) {
      call->Hold(retention_.BeginRequest(id, SteadyTime::Now()));
      if (request.has_keep_alive_ms() && models_.SetKeepAlive(id, request.keep_alive_ms())) {
        KeepPinned(id);
      }
      deployment = there;
    }
  }
  deployment->Generate(request, std::move(call));
}

}  // namespace strata
