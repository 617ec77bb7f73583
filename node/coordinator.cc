#include "node/coordinator.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "node/cluster_client.h"
#include "node/cluster_report.h"
#include "node/model_match.h"
#include "node/plan_text.h"
#include "transport/epoch.h"

namespace strata {
namespace {

constexpr uint64_t kTickMs = 200;
constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr absl::Duration kSweepEvery = absl::Seconds(5);
constexpr int64_t kAnswerMs = 5'000;
constexpr size_t kIdCharsShown = 8;  // of a model's id, in messages

absl::Status NotCoordinating() {
  return absl::UnavailableError("this node does not coordinate the cluster; try again");
}

absl::Status WasUnloaded(const Deployment& deployment) {
  return absl::UnavailableError(absl::StrCat(deployment.name(), " was unloaded"));
}

// Whether `wanted`, if anything, is another type of cache than `has`.
bool IsOther(const std::string& wanted, const std::string& has, const char* otherwise) {
  return !wanted.empty() && wanted != (has.empty() ? otherwise : has);
}

// Whether what is there is what is wished for now.
absl::Status Fits(Deployment* deployment, const wire::LoadModelRequest& request) {
  const auto differs = [&](const char* what) {
    return absl::FailedPreconditionError(
        absl::StrCat(deployment->name(), " is loaded already, with another ", what,
                     "; unload it first: strata unload ",
                     absl::BytesToHexString(deployment->model_id()).substr(0, kIdCharsShown)));
  };
  const wire::PlanWishes& has = deployment->request().wishes();
  const wire::PlanWishes& wants = request.wishes();
  const CacheShape& cache = deployment->planned().inputs.request.cache;
  if (wants.n_ctx() != 0 && wants.n_ctx() != cache.n_ctx) return differs("--ctx");
  if (wants.n_seqs() > cache.n_seqs) return differs("--seqs");
  if (!wants.assign().empty() && wants.assign() != has.assign()) return differs("--assign");
  if (!wants.exclude().empty() && wants.exclude() != has.exclude()) return differs("--exclude");
  if (!wants.reserve().empty() && wants.reserve() != has.reserve()) return differs("--reserve");
  const wire::CacheSpec& spec = has.cache();
  const wire::CacheSpec& wish = wants.cache();
  if (IsOther(wish.type_k(), spec.type_k(), "f16")) return differs("--cache-type-k");
  if (IsOther(wish.type_v(), spec.type_v(), "f16")) return differs("--cache-type-v");
  if (IsOther(wish.flash_attention(), spec.flash_attention(), "auto")) {
    return differs("--flash-attention");
  }
  if (wish.kv_cells() != 0 && wish.kv_cells() != cache.kv_cells) return differs("--kv-cells");
  return absl::OkStatus();
}

}  // namespace

Coordinator::Coordinator(EventLoop* loop, ClusterRuntime* cluster, WeightFetcher* fetcher,
                         Options options)
    : loop_(loop),
      cluster_(cluster),
      fetcher_(fetcher),
      options_(std::move(options)),
      last_share_(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()))) {}

void Coordinator::Start(std::string self_address) {
  self_address_ = std::move(self_address);
  timer_ = loop_->StartTimer({.delay_ms = kTickMs, .repeat_ms = kTickMs}, [this] { Tick(); });
  keeper_ = std::thread([this] { Keep(); });
}

Coordinator::~Coordinator() {
  if (keeper_.joinable()) Stop();
}

void Coordinator::StopCalls() {
  absl::MutexLock lock(mu_);
  stopping_ = true;
}

void Coordinator::Stop() {
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    for (auto& [id, model] : models_) models.push_back(model);
    models_.clear();
    shares_.clear();
  }
  std::vector<std::thread> threads;
  for (const DeploymentPtr& model : models) {
    threads.emplace_back([&model] {
      model->Unload(absl::UnavailableError("the node that coordinates is stopping"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (keeper_.joinable()) keeper_.join();
}

bool Coordinator::stopping() {
  absl::MutexLock lock(mu_);
  return stopping_;
}

// The loop.

template <typename T>
absl::StatusOr<T> Coordinator::AskLoop(std::function<T()> fn) {
  struct Answer {
    absl::Mutex mu;
    std::optional<T> value ABSL_GUARDED_BY(mu);
  };
  const auto answer = std::make_shared<Answer>();  // shared with the loop
  loop_->Post([answer, fn = std::move(fn)] {
    T value = fn();
    absl::MutexLock lock(answer->mu);
    answer->value = std::move(value);
  });
  absl::MutexLock lock(answer->mu);
  const auto there = [&answer]() ABSL_SHARED_LOCKS_REQUIRED(answer->mu) {
    return answer->value.has_value();
  };
  while (!answer->mu.AwaitWithTimeout(absl::Condition(&there), kPoll)) {
    if (stopping()) return absl::UnavailableError("the node is stopping");
  }
  return *std::move(answer->value);
}

Coordinator::Office Coordinator::office() {
  const auto office = AskLoop<Office>([this, cluster = cluster_] {
    {
      // What is loaded next must not fall to a tick's older look.
      absl::MutexLock lock(mu_);
      LookAtOffice();
    }
    const ClusterView& view = cluster->view();
    Office now;
    now.mine = view.is_coordinator;
    now.settled = view.settled;
    if (!now.mine && !view.coordinator.is_nobody())
      now.address = cluster->AddressOf(view.coordinator);
    return now;
  });
  return office.ok() ? *office : Office();
}

absl::Status Coordinator::CheckOffice() {
  return office().mine ? absl::OkStatus() : NotCoordinating();
}

void Coordinator::LookAtOffice() {
  in_office_ = cluster_->view().is_coordinator;
  settled_ = cluster_->view().settled;
}

void Coordinator::Tick() {
  const ClusterView& view = cluster_->view();
  uint32_t live = 0;
  absl::MutexLock lock(mu_);
  // A group that has models loaded is not given up for one that has none.
  for (const auto& [id, model] : models_) live += 1 + model->texts();
  cluster_->membership()->SetLiveRequests(live);
  LookAtOffice();
  if (view.members.size() != members_) {
    members_ = view.members.size();
    ++members_seen_;
  }
}

void Coordinator::Keep() {
  uint64_t swept = 0;
  absl::Time sweep_at = absl::InfinitePast();
  while (true) {
    std::vector<DeploymentPtr> lost;
    bool in_office = false;
    uint64_t seen = 0;
    {
      absl::MutexLock lock(mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_; };
      if (mu_.AwaitWithTimeout(absl::Condition(&wanted), absl::Milliseconds(kTickMs))) return;
      in_office = in_office_ && settled_;
      seen = members_seen_;
      if (!in_office_) {
        for (auto& [id, model] : models_) lost.push_back(model);
        models_.clear();
        shares_.clear();
      }
    }
    for (const DeploymentPtr& model : lost) {
      LOG(WARNING) << "another node coordinates now: " << model->name() << " is unloaded";
      model->Unload(
          absl::UnavailableError("another node coordinates the cluster now; load the model again"));
    }
    if (in_office && (seen != swept || absl::Now() >= sweep_at)) {
      swept = seen;
      sweep_at = absl::Now() + kSweepEvery;
      Sweep();
    }
  }
}

// Stages of plans that are no more hold memory for nothing. Those of programs that coordinate for
// themselves carry no node's id and are left alone.
void Coordinator::Sweep() {
  auto report = Report();
  if (!report.ok()) return;
  std::vector<wire::Epoch> known;
  {
    absl::MutexLock lock(mu_);
    if (stopping_ || !in_office_ || !settled_) return;
    // A model is here before its first stage is.
    for (const auto& [id, model] : models_) known.push_back(model->epoch());
  }
  for (const NodeReport& node : report->nodes) {
    if (node.client == nullptr || !node.seen.member()) continue;
    for (const wire::StageStatus& stage : node.info.stages()) {
      const bool wanted = absl::c_any_of(known, [&](const wire::Epoch& epoch) {
        return CompareEpochs(epoch, stage.epoch()) == 0;
      });
      if (wanted || !NodeId::FromHex(stage.epoch().coordinator_id()).ok()) continue;
      if (stopping()) return;
      LOG(WARNING) << node.name() << ": stage " << stage.stage() << " of epoch "
                   << EpochString(stage.epoch()) << " is left over and unloaded";
      wire::UnloadStageRequest request;
      *request.mutable_epoch() = stage.epoch();
      request.set_stage(stage.stage());
      node.client->UnloadStage(request).IgnoreError();  // tried again at the next sweep
    }
  }
}

absl::StatusOr<ClusterReport> Coordinator::Report() {
  return CollectReport(ClusterClient::At(self_address_, kAnswerMs).get());
}

// Models.

Coordinator::Caller Coordinator::Watched(const Caller& asked) {
  Caller caller = asked;
  caller.go_on = [this, go_on = asked.go_on] { return !stopping() && go_on(); };
  return caller;
}

// Nobody interrupted what ends because the node stops.
absl::Status Coordinator::Explain(absl::Status status) {
  if (!absl::IsCancelled(status) || !stopping()) return status;
  return absl::UnavailableError("the node that coordinates is stopping; try again");
}

absl::StatusOr<std::unique_lock<absl::Mutex>> Coordinator::StartWork(const Caller& caller) {
  std::unique_lock<absl::Mutex> work(work_mu_, std::defer_lock);
  for (bool told = false; !work.try_lock(); told = true) {
    if (!caller.go_on()) return absl::CancelledError("interrupted");
    if (!told) caller.note("Another model is being loaded or moved; this is next…");
    absl::SleepFor(kPoll);
  }
  const auto unloading = [this] {
    absl::MutexLock lock(mu_);
    return unloads_ > 0;
  };
  // What is planned now counts on that memory.
  for (bool told = false; unloading(); told = true) {
    if (!caller.go_on()) return absl::CancelledError("interrupted");
    if (!told) caller.note("Another model is being unloaded…");
    absl::SleepFor(kPoll);
  }
  return work;
}

PlanningOptions Coordinator::PlanningFor(const Caller& caller) const {
  return {.self_address = self_address_,
          .fetcher = fetcher_,
          .freed = {},
          .opened = nullptr,
          .note = caller.note,
          .go_on = caller.go_on};
}

absl::StatusOr<wire::PlanExplained> Coordinator::Plan(const wire::PlanModelRequest& request,
                                                      const Caller& caller) {
  if (auto s = CheckOffice(); !s.ok()) return s;
  auto planned = PlanModel(PlanningFor(Watched(caller)), request.source(), request.wishes());
  if (!planned.ok()) return Explain(planned.status());
  wire::PlanExplained explained;
  const PlanRequest& inputs = (*planned)->inputs.request;
  explained.set_text(PlanText(*(*planned)->model, inputs, (*planned)->plan));
  explained.set_json(PlanJson(*(*planned)->model, inputs, (*planned)->plan));
  return explained;
}

absl::StatusOr<Coordinator::DeploymentPtr> Coordinator::Deploy(
    std::unique_ptr<PlannedModel> planned, const wire::LoadModelRequest& request,
    const DeploymentPtr& instead_of, const Caller& caller) {
  auto epoch = AskLoop<absl::StatusOr<wire::Epoch>>([this] { return cluster_->NextEpoch(); });
  if (!epoch.ok()) return epoch.status();
  if (!epoch->ok()) return epoch->status();
  Deployment::Options options;
  options.epoch = **epoch;
  options.request = request;
  options.self_node = options_.node_id;
  options.listen_host = options_.listen_host;
  auto deployment = std::make_shared<Deployment>(std::move(options), std::move(planned));
  {
    absl::MutexLock lock(mu_);
    if (stopping_) return absl::UnavailableError("the node is stopping");
    DeploymentPtr& model = models_[deployment->model_id()];
    if (instead_of != nullptr && model != instead_of) {
      if (model == nullptr) models_.erase(deployment->model_id());
      return nullptr;
    }
    model = deployment;
  }
  absl::Status status;
  if (caller.placed && !caller.placed(deployment->Status())) {
    status = absl::CancelledError("interrupted");
  }
  if (status.ok()) {
    status = deployment->Load([&](uint32_t stage, const wire::LoadProgress& progress) {
      return caller.go_on() && (!caller.progress || caller.progress(stage, progress));
    });
  }
  if (!status.ok()) {
    const bool was_there = Remove(deployment, status);
    if (instead_of != nullptr && !was_there) return nullptr;
    return status;
  }
  return deployment;
}

absl::StatusOr<Coordinator::Loaded> Coordinator::Load(const wire::LoadModelRequest& request,
                                                      const Caller& caller) {
  auto loaded = LoadNow(request, Watched(caller));
  if (!loaded.ok()) return Explain(loaded.status());
  return loaded;
}

std::unique_ptr<Coordinator::Loaded> Coordinator::Join(const DeploymentPtr& there,
                                                       const wire::LoadModelRequest& request) {
  absl::MutexLock lock(mu_);
  const auto entry = models_.find(there->model_id());
  if (entry == models_.end() || entry->second != there) return nullptr;
  auto loaded = std::make_unique<Loaded>(Loaded{.deployment = there, .was_there = true});
  const auto shares = shares_.find(there->model_id());
  if (shares == shares_.end()) return loaded;
  if (request.hold()) {
    loaded->share = ++last_share_;
    shares->second.insert(loaded->share);
  } else {
    shares_.erase(shares);  // from now on it stays
  }
  return loaded;
}

absl::StatusOr<Coordinator::Loaded> Coordinator::LoadNow(const wire::LoadModelRequest& request,
                                                         const Caller& caller) {
  if (auto s = CheckOffice(); !s.ok()) return s;
  const auto work = StartWork(caller);
  if (!work.ok()) return work.status();
  std::unique_ptr<Loaded> there;
  PlanningOptions planning = PlanningFor(caller);
  planning.opened = [&](const ModelFile& model) {
    DeploymentPtr found;
    {
      absl::MutexLock lock(mu_);
      const auto entry = models_.find(model.id());
      if (entry != models_.end()) found = entry->second;
      if (found == nullptr && models_.size() >= kModelsMax) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "a cluster has ", kModelsMax, " models at most; unload one: strata unload MODEL"));
      }
    }
    if (found == nullptr) return absl::OkStatus();
    if (!found->serving()) {  // failed: it makes room for this
      Remove(found, absl::UnavailableError("the model is loaded again"));
      return absl::OkStatus();
    }
    if (auto s = Fits(found.get(), request); !s.ok()) return s;
    there = Join(found, request);
    return there == nullptr ? absl::OkStatus() : absl::AlreadyExistsError("");
  };
  wire::LoadModelRequest sized = request;
  if (sized.wishes().n_seqs() == 0) sized.mutable_wishes()->set_n_seqs(kLoadSeqs);
  auto planned = PlanModel(planning, sized.source(), sized.wishes());
  if (there != nullptr) return *there;
  if (!planned.ok()) return planned.status();
  auto deployment = Deploy(*std::move(planned), sized, /*instead_of=*/nullptr, caller);
  if (!deployment.ok()) return deployment.status();
  Loaded loaded{.deployment = *std::move(deployment)};
  absl::MutexLock lock(mu_);
  if (request.hold()) {
    loaded.share = ++last_share_;
    // It may be unloaded already; then the share is of nothing.
    if (models_.contains(loaded.deployment->model_id())) {
      shares_[loaded.deployment->model_id()] = {loaded.share};
    }
  }
  return loaded;
}

bool Coordinator::TakeOut(const DeploymentPtr& deployment) {
  const auto entry = models_.find(deployment->model_id());
  if (entry == models_.end() || entry->second != deployment) return false;
  shares_.erase(entry->first);
  models_.erase(entry);
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

bool Coordinator::HasShare(uint64_t share) {
  absl::MutexLock lock(mu_);
  return absl::c_any_of(shares_, [&](const auto& of) { return of.second.contains(share); });
}

void Coordinator::Release(uint64_t share) {
  DeploymentPtr last;
  {
    absl::MutexLock lock(mu_);
    for (auto& [id, shares] : shares_) {
      if (shares.erase(share) == 0) continue;
      if (shares.empty()) last = models_.at(id);
      break;
    }
    if (last == nullptr) return;
    TakeOut(last);  // at once: nobody joins any more
    ++unloads_;
  }
  last->Unload(WasUnloaded(*last));
  absl::MutexLock lock(mu_);
  --unloads_;
}

absl::StatusOr<Coordinator::DeploymentPtr> Coordinator::Find(const std::string& model) {
  std::vector<std::string> names;
  DeploymentPtr found;
  size_t matches = 0;
  absl::MutexLock lock(mu_);
  for (const auto& [id, deployment] : models_) {
    names.push_back(absl::StrCat(deployment->name(), " (",
                                 absl::BytesToHexString(id).substr(0, kIdCharsShown), ")"));
    if (!MeansModel(
            model,
            {.name = deployment->name(), .path = deployment->planned().source.path(), .id = id})) {
      continue;
    }
    ++matches;
    found = deployment;
  }
  if (matches == 1) return found;
  const std::string there = names.empty() ? "no model is loaded (strata load MODEL)"
                                          : absl::StrCat("loaded: ", absl::StrJoin(names, ", "));
  if (matches > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        model.empty() ? "which model?" : model + " means several models", "; ", there));
  }
  return absl::NotFoundError(model.empty() ? there : absl::StrCat("no model ", model, "; ", there));
}

absl::StatusOr<std::string> Coordinator::Unload(const std::string& model) {
  if (auto s = CheckOffice(); !s.ok()) return s;
  auto deployment = Find(model);
  if (!deployment.ok()) return deployment.status();
  Remove(*deployment, WasUnloaded(**deployment));
  return (*deployment)->name();
}

absl::StatusOr<std::vector<wire::ModelStatus>> Coordinator::Models() {
  if (auto s = CheckOffice(); !s.ok()) return s;
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    for (const auto& [id, model] : models_) models.push_back(model);
  }
  std::vector<wire::ModelStatus> statuses;
  for (const DeploymentPtr& model : models) statuses.push_back(model->Status());
  return statuses;
}

std::vector<Coordinator::ModelStats> Coordinator::Stats() {
  std::vector<ModelStats> stats;
  absl::MutexLock lock(mu_);
  for (const auto& [id, model] : models_) {
    stats.push_back({.name = model->name(),
                     .id = id,
                     .serving = model->serving(),
                     .tokenizing = model->tokenizing(),
                     .stages = model->Stages(),
                     .scheduler = model->Stats()});
  }
  return stats;
}

void Coordinator::Generate(const wire::GenerateTextRequest& request,
                           std::shared_ptr<TextCall> call) {
  auto deployment = Find(request.model());
  if (deployment.ok()) {
    (*deployment)->Generate(request, std::move(call));
  } else {
    call->Refuse(deployment.status());
  }
}

// Draining.

absl::Status Coordinator::Drain(const wire::DrainNodeRequest& request, const Caller& caller) {
  return Explain(DrainNow(request, Watched(caller)));
}

absl::Status Coordinator::DrainNow(const wire::DrainNodeRequest& request, const Caller& caller) {
  if (auto s = CheckOffice(); !s.ok()) return s;
  auto report = Report();
  if (!report.ok()) return report.status();
  const NodeReport* node = nullptr;
  size_t matches = 0;
  for (const NodeReport& other : report->nodes) {
    if (other.name() != request.node() &&
        !StartsId(request.node(), absl::BytesToHexString(other.id()))) {
      continue;
    }
    ++matches;
    node = &other;
  }
  if (matches == 0)
    return absl::NotFoundError(absl::StrCat("no node ", request.node(), " (see: strata nodes)"));
  if (matches > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.node(), " means several nodes; name it by its id (strata nodes)"));
  }
  if (node->client == nullptr) {
    return absl::UnavailableError(absl::StrCat(node->name(), ": ", node->status.message()));
  }
  if (auto s = node->client->SetDraining(!request.undo()); !s.ok()) return s;
  if (request.undo()) return absl::OkStatus();
  absl::Cleanup undo = [&] {
    if (!node->info.draining()) node->client->SetDraining(false).IgnoreError();
  };
  const auto work = StartWork(caller);
  if (!work.ok()) return work.status();
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    for (const auto& [id, model] : models_) {
      if (model->UsesNode(node->info.node_id())) models.push_back(model);
    }
  }
  for (const DeploymentPtr& model : models) {
    if (auto s = MoveAway(model, caller); !s.ok()) return s;
  }
  std::move(undo).Cancel();
  return absl::OkStatus();
}

absl::Status Coordinator::MoveAway(const DeploymentPtr& from, const Caller& caller) {
  PlanningOptions planning = PlanningFor(caller);
  const PlannedModel& now = from->planned();
  for (const PlannedStage& stage : now.plan.stages) {
    planning.freed.push_back({.node_id = now.NodeOf(stage).info.node_id(),
                              .device = now.inputs.request.devices[stage.device].name,
                              .bytes = stage.memory_bytes()});
  }
  wire::LoadModelRequest request = from->request();
  request.mutable_wishes()->clear_assign();  // it may name the node
  request.mutable_wishes()->set_n_ctx(now.inputs.request.cache.n_ctx);
  auto planned = PlanModel(planning, now.source, request.wishes());
  if (!planned.ok()) return planned.status();
  from->SetMoving(true);
  absl::Cleanup stay = [&from] { from->SetMoving(false); };
  for (uint32_t told = 0, texts = from->texts(); texts > 0; texts = from->texts()) {
    if (texts != told &&
        !caller.note(absl::StrCat("Waiting for ", texts, " text", texts == 1 ? "" : "s", " of ",
                                  from->name(), " to end…"))) {
      return absl::CancelledError("interrupted");
    }
    told = texts;
    if (!caller.go_on()) return absl::CancelledError("interrupted");
    absl::SleepFor(kPoll);
  }
  std::move(stay).Cancel();
  caller.note(absl::StrCat("Moving ", from->name(), "…"));
  from->Unload(absl::UnavailableError("the model moves"));
  // From here on it is carried through: half a move helps nobody.
  Caller resolute = caller;
  resolute.go_on = [] { return true; };
  resolute.placed = nullptr;
  resolute.progress = nullptr;
  const auto moved = Deploy(*std::move(planned), request, from, resolute);
  if (moved.ok()) return absl::OkStatus();  // or it was unloaded meanwhile
  return absl::Status(
      moved.status().code(),
      absl::StrCat(from->name(), " could not be loaded elsewhere and is unloaded now: ",
                   moved.status().message(), "; load it again: strata load ", now.source.path()));
}

}  // namespace strata
