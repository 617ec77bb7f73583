#include "coordinator/models/deployment.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "coordinator/models/fill_in_middle.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "transport/base/steady_time.h"
#include "transport/base/utf8.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/request_log.h"

namespace strata {
namespace {

constexpr uint32_t kBatchRowsMax = 512;
constexpr int64_t kSelfTestsMs = 3'000;
// For the steps in flight when another deployment takes over: chunks of prompts take a slow machine
// many seconds, and longer still where they are fed again. A worker that hangs is noticed earlier.
constexpr std::chrono::seconds kQuiesceTimeout(60);

// Of "tokenizer.ggml.bos_token_id" and the like.
std::string TextOfToken(const ModelFile& model, absl::string_view id_key) {
  const std::optional<uint64_t> id = model.header().GetInteger(id_key);
  if (!id) return "";
  return ValidUtf8(model.header().GetStringAt("tokenizer.ggml.tokens", *id).value_or(""));
}

GenerationEngineOptions EngineOptionsFor(const Deployment::Options& options) {
  GenerationEngineOptions engine = options.engine;
  engine.policy.exact = options.request.placement().cache().exact();
  engine.policy.speculation = options.request.speculation();
  return engine;
}

}  // namespace

Deployment::Deployment(Options options, std::unique_ptr<PlannedModel> planned)
    : options_(std::move(options)),
      planned_(std::move(planned)),
      name_(planned_->model->name()),
      // An error was the load's (Coordinator::LoadNow).
      chat_templates_(
          ChatTemplatesOf(planned_->model->header(), options_.request).value_or(ChatTemplates())),
      bos_text_(TextOfToken(*planned_->model, "tokenizer.ggml.bos_token_id")),
      eos_text_(TextOfToken(*planned_->model, "tokenizer.ggml.eos_token_id")),
      fill_in_middle_(FillInMiddleOf(planned_->model->header())),
      engine_(options_.inherited != nullptr
                  ? options_.inherited
                  : std::make_shared<GenerationEngine>(EngineOptionsFor(options_))),
      has_requests_(options_.inherited == nullptr),
      since_(options_.now()) {
  NodeClient* const first = planned_->NodeOf(planned_->plan.stages.front()).client.get();
  tokenizer_ = std::make_shared<RemoteTokenizer>(first, RemoteTokenizer::Options());
}

Deployment::~Deployment() { Unload(absl::CancelledError("the model is unloaded")); }

absl::Status Deployment::Load(Progress progress, TakeOver take_over) {
  WatchWaiting();
  const absl::Cleanup watch = [this] { WatchWaiting(); };  // also those of TakeRequests()
  absl::Status status;
  bool has_requests = options_.inherited != nullptr && take_over == nullptr;
  if (take_over != nullptr) {
    take_over = [&has_requests, take_over = std::move(take_over)] {
      absl::StatusOr<bool> taken = take_over();
      has_requests = taken.ok();
      return taken;
    };
  }
  {
    absl::MutexLock load_lock(load_mu_);
    {
      absl::MutexLock lock(mu_);
      if (!unloaded_why_.ok()) return unloaded_why_;
    }
    status = Build(std::move(progress), std::move(take_over));
    absl::MutexLock lock(mu_);
    // Whether the load succeeded or not: Unload() waits for its turn.
    if (!unloaded_why_.ok()) return unloaded_why_;
    if (state_ != wire::ModelStatus::LOADING) return why_;  // it broke meanwhile
    since_ = options_.now();
    if (status.ok()) {
      infos_ = pipeline_->stages();
      for (wire::StageInfo& info : infos_) info.clear_kv_blocks();  // the scheduler has them
      state_ = wire::ModelStatus::SERVING;
    } else {
      state_ = has_requests ? wire::ModelStatus::RECOVERING : wire::ModelStatus::FAILED;
      lost_a_stage_ = has_requests;
      why_ = status;
    }
  }
  if (!status.ok()) {
    if (has_requests) return status;  // the requests wait for its recovery
    for (const Request& each : TakeWaiting()) each.call->Refuse(AsLeaderChanged(status));
    return status;
  }
  for (Request& each : TakeWaiting()) Generate(each.request, std::move(each.call));
  return absl::OkStatus();
}

std::vector<Deployment::Request> Deployment::TakeWaiting() {
  absl::MutexLock lock(mu_);
  return std::exchange(requests_, {});
}

absl::Status Deployment::Build(Progress progress, TakeOver take_over) {
  const PlanRequest& request = planned_->inputs.request;
  PipelineOptions build;
  build.model_path = planned_->source.path();
  build.model_name = name_;
  build.model_id = model_id();
  build.epoch = options_.epoch;
  const std::vector<std::vector<NodeClient*>> weight_peers = planned_->WeightPeers();
  for (size_t i = 0; i < planned_->plan.stages.size(); ++i) {
    const PlannedStage& planned = planned_->plan.stages[i];
    StagePlacement& stage = build.stages.emplace_back();
    stage.layers = planned.layers;
    stage.node = planned_->NodeOf(planned).client.get();
    stage.device = request.devices[planned.device].name;
    stage.n_cpu_moe = planned.n_cpu_moe;
    stage.sends = planned.sends;
    if (i < planned_->kept.size()) stage.kept = planned_->kept[i];
    if (take_over != nullptr && i < options_.caches.size()) stage.caches = options_.caches[i];
    stage.weight_peers = weight_peers[i];
  }
  build.leave_on_error = take_over == nullptr &&
                         (options_.inherited != nullptr || options_.requests_wait) &&
                         StagesMayStay();
  build.source = planned_->Source();
  build.from_caches = build.source == nullptr;
  build.remote = planned_->source.remote();
  build.n_ctx = request.cache.n_ctx;
  build.n_seq_max = request.cache.n_seqs;
  build.n_batch = std::min(request.cache.n_ctx, kBatchRowsMax);
  build.cache = options_.request.placement().cache();
  build.cache.set_kv_cells(static_cast<uint32_t>(request.cache.kv_cells));
  build.cache.set_checkpoints(request.cache.n_checkpoints);
  build.origin = Origin().SerializeAsString();
  build.unverified = options_.request.placement().unverified();
  build.use_mmap = !options_.request.no_mmap();
  build.allow_mixed_versions = options_.request.allow_mixed_versions();
  build.listen_host = options_.listen_host;
  build.coordinator_node = options_.self_node;
  build.gone = options_.gone;
  build.self_tests = [this] { return EarlierSelfTests(); };
  build.take_over = std::move(take_over);
  const bool leave_on_error = build.leave_on_error;
  auto pipeline =
      options_.build(std::move(build), this, [&](size_t stage, const wire::LoadProgress& done) {
        return !unloading() && progress(static_cast<uint32_t>(stage), done);
      });
  if (!pipeline.ok()) {
    stages_disowned_ = leave_on_error;
    return pipeline.status();
  }
  pipeline_ = *std::move(pipeline);
  for (const wire::StageInfo& stage : pipeline_->stages()) {
    if (options_.self_tests != nullptr) options_.self_tests->Keep(stage.self_test());
  }
  if (options_.inherited == nullptr) return engine_->Start(pipeline_.get());
  const absl::StatusOr<bool> resumed = engine_->Restart(pipeline_.get());
  if (!resumed.ok()) return resumed.status();
  absl::MutexLock lock(mu_);
  carried_ = pipeline_->carried();
  if (!*resumed) carried_.contents = SlotContents::kAnything;
  return absl::OkStatus();
}

std::vector<wire::SelfTest> Deployment::EarlierSelfTests() const {
  std::vector<std::vector<wire::SelfTest>> by_node(planned_->report.nodes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < by_node.size(); ++i) {
    NodeClient* const node = planned_->report.nodes[i].client.get();
    if (node == nullptr) continue;
    threads.emplace_back([&, i, node] {
      auto tests = node->SelfTestsOf(model_id(), kSelfTestsMs);
      if (tests.ok()) by_node[i] = *std::move(tests);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<wire::SelfTest> all;
  if (options_.self_tests != nullptr) all = options_.self_tests->Of(model_id());
  for (std::vector<wire::SelfTest>& of_node : by_node) {
    std::move(of_node.begin(), of_node.end(), std::back_inserter(all));
  }
  return all;
}

wire::LoadModelRequest Deployment::Origin() const {
  wire::LoadModelRequest origin = options_.request;
  *origin.mutable_source() = planned_->source;
  origin.set_model_id(model_id());
  origin.set_name(name_.str());
  return origin;
}

void Deployment::Unload(const absl::Status& why) { End(why, /*leave_stages=*/false); }

void Deployment::UnloadForNextPlan(const absl::Status& why) {
  {
    absl::MutexLock lock(mu_);
    state_ = wire::ModelStatus::UNLOADING;
  }
  Unload(why);
}

void Deployment::AnnounceLeaderChange(const absl::Status& why) {
  End(AsLeaderChanged(why), /*leave_stages=*/true);
}

void Deployment::End(const absl::Status& why, bool leave_stages) {
  {
    absl::MutexLock lock(mu_);
    if (state_ != wire::ModelStatus::FAILED) state_ = wire::ModelStatus::UNLOADING;
    if (unloaded_why_.ok()) unloaded_why_ = why;
  }
  absl::MutexLock load_lock(load_mu_);
  std::vector<Request> kept;
  bool has_requests = false, transferred = false;
  {
    absl::MutexLock lock(mu_);
    kept.swap(requests_);
    has_requests = has_requests_;
    transferred = transferred_;
  }
  for (const Request& request : kept) request.call->Refuse(why);
  if (has_requests) engine_->Stop(why);
  if (leave_stages && pipeline_ != nullptr) pipeline_->DisownStages();
  pipeline_.reset();
  if (std::exchange(stages_disowned_, false) && !transferred && !leave_stages) UnloadDisowned();
}

void Deployment::LoseNode(const std::string& node_id) {
  if (!serving()) return;
  for (const PlannedStage& stage : planned_->plan.stages) {
    const NodeReport& node = planned_->NodeOf(stage);
    if (node.info.node_id() != node_id) continue;
    OnBroken(absl::UnavailableError(absl::StrCat(node.name(), " has gone")));
    return;
  }
}

void Deployment::OnBroken(absl::Status status) {
  const bool is_recovery = options_.broken != nullptr;
  {
    // First: a client whose request ends queries the state next.
    absl::MutexLock lock(mu_);
    // LoseNode() may have reported it before the links do.
    if (is_recovery && state_ == wire::ModelStatus::RECOVERING && lost_a_stage_) return;
    if (state_ != wire::ModelStatus::UNLOADING && state_ != wire::ModelStatus::FAILED) {
      LOG(WARNING) << name_ << ": " << status.message();
      const SteadyTime now = options_.now();
      served_for_ = state_ == wire::ModelStatus::LOADING ? absl::ZeroDuration() : now - since_;
      since_ = now;
      state_ = is_recovery ? wire::ModelStatus::RECOVERING : wire::ModelStatus::FAILED;
      lost_a_stage_ = is_recovery;
      why_ = status;
      if (!is_recovery) diagnosis_ = Diagnosis::kPending;  // a recovery finds the cause itself
    }
  }
  if (is_recovery) {
    engine_->Pause();
    options_.broken();
  } else {
    engine_->OnBroken(std::move(status));
  }
}

absl::StatusOr<bool> Deployment::YieldStages(bool quiesces,
                                             absl::FunctionRef<bool()> should_continue) {
  // It serves meanwhile: new requests wait beside the others.
  const bool quiesced = quiesces && engine_->Quiesce(kQuiesceTimeout, should_continue);
  if (quiesces && !quiesced && !should_continue()) {
    engine_->Resume();
    return absl::CancelledError("the move was cancelled");
  }
  {
    absl::MutexLock lock(mu_);
    if (state_ != wire::ModelStatus::SERVING && state_ != wire::ModelStatus::MOVING) {
      return absl::UnavailableError("it lost a stage meanwhile");
    }
    state_ = wire::ModelStatus::RECOVERING;
  }
  DisownStages();
  return quiesced;
}

// Plans keep no stages with experts elsewhere (TakeLoaded in reusable_stages.cc).
bool Deployment::StagesMayStay() const {
  return std::ranges::none_of(planned_->plan.stages,
                              [](const PlannedStage& stage) { return stage.n_cpu_moe != 0; });
}

std::vector<CacheSource> Deployment::CachesOf(LayerRange layers) const {
  std::vector<CacheSource> sources;
  if (!StagesMayStay()) return sources;
  absl::MutexLock lock(mu_);
  for (size_t i = 0; i < infos_.size(); ++i) {
    const PlannedStage& stage = planned_->plan.stages[i];
    if (stage.layers.end <= layers.begin || stage.layers.begin >= layers.end) continue;
    CacheSource& source = sources.emplace_back();
    *source.stage.mutable_epoch() = options_.epoch;
    source.stage.set_stage(static_cast<uint32_t>(i));
    source.address = infos_[i].link_address();
    source.node_id = planned_->NodeOf(stage).info.node_id();
    source.layers = stage.layers;
  }
  return sources;
}

Pipeline::Carried Deployment::carried() const {
  absl::MutexLock lock(mu_);
  return carried_;
}

bool Deployment::BeginRecovery() {
  absl::MutexLock lock(mu_);
  return !std::exchange(recovery_begun_, true);
}

void Deployment::DisownStages() {
  absl::MutexLock load_lock(load_mu_);
  engine_->Detach();
  const bool stay = StagesMayStay();
  if (stay && pipeline_ != nullptr) pipeline_->DisownStages();
  pipeline_.reset();
  stages_disowned_ = stay;
}

// Of stages that no pipeline owns any more.
void Deployment::UnloadDisowned() {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < planned_->plan.stages.size(); ++i) {
    NodeClient* const node = planned_->NodeOf(planned_->plan.stages[i]).client.get();
    if (node == nullptr) continue;
    threads.emplace_back([this, node, i] {
      wire::UnloadStageRequest request;
      *request.mutable_epoch() = options_.epoch;
      request.set_stage(static_cast<uint32_t>(i));
      // A stage that cannot be unloaded now is reclaimed as stale by whichever node coordinates
      // then.
      const auto is_there = [this, node] {
        return options_.gone == nullptr || !options_.gone(node->id());
      };
      node->UnloadStage(request, is_there).IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<Deployment::Request> Deployment::TransferRequests() {
  absl::MutexLock lock(mu_);
  transferred_ = true;
  has_requests_ = false;
  return std::exchange(requests_, {});
}

void Deployment::TakeRequests(std::vector<Request> requests) {
  absl::MutexLock lock(mu_);
  has_requests_ = true;
  for (Request& request : requests) requests_.push_back(std::move(request));
}

bool Deployment::Track(const wire::GenerateRequest& request,
                       const std::shared_ptr<GenerationCall>& call) {
  const bool recovered_soon = state_ == wire::ModelStatus::RECOVERING ||
                              (state_ == wire::ModelStatus::LOADING &&
                               (options_.inherited != nullptr || options_.requests_wait));
  if (!recovered_soon || transferred_ || !unloaded_why_.ok()) return false;
  if (requests_.size() >= kRequestsKeptMax) return false;
  requests_.push_back({request, call});
  return true;
}

void Deployment::Watch(const std::shared_ptr<GenerationCall>& call) {
  call->OnUnwanted(Drop(call));
}

absl::AnyInvocable<void() &&> Deployment::Drop(const std::shared_ptr<GenerationCall>& call) {
  return [weak = weak_from_this(), watched = call.get()] {
    const std::shared_ptr<Deployment> self = weak.lock();
    if (self == nullptr) return;
    std::shared_ptr<GenerationCall> unwanted;
    {
      absl::MutexLock lock(self->mu_);
      const auto found = std::ranges::find_if(
          self->requests_, [watched](const Request& each) { return each.call.get() == watched; });
      if (found == self->requests_.end()) return;
      unwanted = std::move(found->call);
      self->requests_.erase(found);
    }
    unwanted->Refuse(absl::CancelledError("the client cancelled the request"));
  };
}

void Deployment::WatchWaiting() {
  std::vector<std::shared_ptr<GenerationCall>> calls;
  {
    absl::MutexLock lock(mu_);
    for (const Request& request : requests_) calls.push_back(request.call);
  }
  for (const std::shared_ptr<GenerationCall>& call : calls) Watch(call);
}

void Deployment::Fail(const absl::Status& why) {
  std::vector<Request> kept;
  {
    absl::MutexLock lock(mu_);
    if (!unloaded_why_.ok()) return;
    state_ = wire::ModelStatus::FAILED;
    why_ = why;
    kept.swap(requests_);
  }
  const absl::Status reason = CannotServe(why);
  engine_->Fail(reason);
  for (const Request& request : kept) request.call->Refuse(reason);
}

bool Deployment::lost_a_stage() const {
  absl::MutexLock lock(mu_);
  return lost_a_stage_ && unloaded_why_.ok();
}

bool Deployment::recovering() const {
  absl::MutexLock lock(mu_);
  return state_ == wire::ModelStatus::RECOVERING;
}

absl::Status Deployment::why() const {
  absl::MutexLock lock(mu_);
  return why_;
}

absl::Status Deployment::why_not_serving() const {
  absl::MutexLock lock(mu_);
  if (state_ == wire::ModelStatus::FAILED) {
    return absl::UnavailableError(absl::StrCat(name_, " cannot be served now: ", why_.message()));
  }
  if (state_ != wire::ModelStatus::RECOVERING || why_.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(name_, " is being placed again since ",
                                             absl::ToInt64Seconds(options_.now() - since_),
                                             " s: ", why_.message()));
}

absl::Duration Deployment::served_for() const {
  absl::MutexLock lock(mu_);
  return served_for_;
}

absl::Duration Deployment::lost_for() const {
  absl::MutexLock lock(mu_);
  return options_.now() - since_;
}

void Deployment::Diagnose() {
  absl::Status why;
  {
    absl::MutexLock lock(mu_);
    // All clients whose requests ended query the status at once.
    const auto known = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return diagnosis_ != Diagnosis::kInProgress;
    };
    mu_.Await(absl::Condition(&known));
    if (diagnosis_ == Diagnosis::kDone) return;
    diagnosis_ = Diagnosis::kInProgress;
    why = why_;
  }
  absl::MutexLock load_lock(load_mu_);
  if (pipeline_ != nullptr) why = pipeline_->Diagnose(why);
  absl::MutexLock lock(mu_);
  diagnosis_ = Diagnosis::kDone;
  why_ = std::move(why);
}

// A model that is to be loaded is out of service, and not unknown, whatever its stages lack.
absl::Status Deployment::CannotServe(const absl::Status& why) const {
  if (absl::IsUnavailable(why) || absl::IsResourceExhausted(why)) return why;
  return WithRetryAfterMs(
      absl::UnavailableError(absl::StrCat(name_, " cannot be served now: ", why.message())),
      kRetrySoonMs);
}

absl::Status Deployment::NotServing() const {
  if (transferred_) {
    return AsLeaderChanged(
        absl::UnavailableError(absl::StrCat(name_, " is served by another plan")));
  }
  switch (state_) {
    case wire::ModelStatus::SERVING:
      return absl::OkStatus();
    case wire::ModelStatus::FAILED:
      return CannotServe(why_);
    case wire::ModelStatus::RECOVERING:
      return absl::UnavailableError(absl::StrCat(
          name_, " is being recovered, and too many requests wait; try again in a few seconds"));
    case wire::ModelStatus::LOADING:
      return absl::UnavailableError(absl::StrCat(name_, " is still loading; try again then"));
    case wire::ModelStatus::MOVING:
      return absl::UnavailableError(
          absl::StrCat(name_, " moves to other nodes; try again in a few seconds"));
    default:
      if (IsLeaderChanged(unloaded_why_)) return unloaded_why_;
      return absl::UnavailableError(absl::StrCat(name_, " is being unloaded"));
  }
}

void Deployment::Generate(const wire::GenerateRequest& request,
                          std::shared_ptr<GenerationCall> call) {
  absl::Status status;
  bool kept = false;
  {
    absl::MutexLock lock(mu_);
    status = NotServing();
    kept = !status.ok() && Track(request, call);
  }
  if (kept) return Watch(call);
  if (!status.ok()) return call->Refuse(std::move(status));
  RequestLine("generation", request.id())
      .Add("client", request.client())
      .Add("model", name_)
      .Add("tokens_max", request.tokens_max());
  GenerationRequest generation;
  generation.id = PlainRequestId(request.id());
  generation.client = request.client();
  generation.cache_scope = request.cache_scope();
  generation.no_cache = request.no_cache();
  generation.tokens_max = request.tokens_max();
  generation.shift_context = request.shift_context();
  generation.keep_tokens = request.keep_tokens();
  generation.truncate_prompt = request.truncate_prompt();
  generation.with_progress = request.with_progress();
  if (request.has_speculation()) generation.speculation = request.speculation();
  generation.prediction.assign(request.prediction().begin(), request.prediction().end());
  generation.sampler = request.sampler();
  if (request.tokens_size() > 0) {
    generation.prompt.assign(request.tokens().begin(), request.tokens().end());
    generation.generated.assign(request.generated().begin(), request.generated().end());
    generation.mirostat_mu.assign(request.mirostat_mu().begin(), request.mirostat_mu().end());
    const std::shared_ptr<GenerationCall> kept = std::move(call);
    Add(std::move(generation), kept);
    return;
  }
  RemoteTokenizer::Job job;
  job.client = request.client();
  wire::TokenizeRequest& tokenize = job.request;
  *tokenize.mutable_epoch() = options_.epoch;
  tokenize.set_stage(0);
  tokenize.set_text(request.prompt());
  tokenize.set_add_special(!request.no_special());
  tokenize.set_parse_special(request.parse_special());
  job.done = [self = shared_from_this(), generation = std::move(generation), request,
              call](absl::StatusOr<wire::TokenizeResponse> tokens) mutable {
    if (!tokens.ok()) {
      // Perhaps only because the first stage was lost, which its links may not have reported yet.
      bool kept = false;
      absl::Status unloaded;
      {
        absl::MutexLock lock(self->mu_);
        kept = self->Track(request, call);
        unloaded = self->unloaded_why_;
      }
      if (kept) return self->Watch(call);
      if (!unloaded.ok()) return call->Refuse(unloaded);
      const absl::Status& why = tokens.status();
      // An error of the request itself, or too many wait; else of the stage, which is elsewhere by
      // now.
      const bool stays =
          absl::IsInvalidArgument(why) || absl::IsOutOfRange(why) || RetryAfterMs(why).has_value();
      call->Refuse(stays ? why : AsLeaderChanged(why));
      return;
    }
    generation.prompt.assign(tokens->tokens().begin(), tokens->tokens().end());
    self->Add(std::move(generation), std::shared_ptr(call));
  };
  // Tokenizing may have failed already, and the request wait for the recovery.
  call->OnUnwanted([cancel = tokenizer_->Tokenize(std::move(job)), drop = Drop(call)]() mutable {
    std::move(cancel)();
    std::move(drop)();
  });
}

void Deployment::Add(GenerationRequest generation, const std::shared_ptr<GenerationCall>& call) {
  const uint32_t n_ctx = planned_->inputs.request.cache.n_ctx;
  if (generation.truncate_prompt && generation.prompt.size() >= n_ctx) {
    generation.prompt.resize(n_ctx - 1);
  }
  if (generation.prompt.size() + 1 > n_ctx) {
    call->Refuse(absl::OutOfRangeError(PromptTooLong(generation.prompt.size(), n_ctx)));
    return;
  }
  std::vector<int32_t> prompt = generation.prompt;
  const absl::StatusOr<uint64_t> id = engine_->Add(std::move(generation), call);
  if (id.ok()) {
    call->Start(std::move(prompt), engine_, *id);
  } else {
    call->Refuse(id.status());
  }
}

void Deployment::SetMoving(bool moving) {
  absl::MutexLock lock(mu_);
  const auto from = moving ? wire::ModelStatus::SERVING : wire::ModelStatus::MOVING;
  if (state_ == from) state_ = moving ? wire::ModelStatus::MOVING : wire::ModelStatus::SERVING;
}

uint32_t Deployment::active_requests() const {
  const SchedulerStats stats = engine_->Stats();
  return stats.running + stats.waiting + static_cast<uint32_t>(tokenizing());
}

uint32_t Deployment::MeanPositions() const {
  const SchedulerStats stats = engine_->Stats();
  return static_cast<uint32_t>(stats.cells / std::max<uint64_t>(stats.rows, 1));
}

bool Deployment::UsesNode(const std::string& node_id) const {
  return std::ranges::any_of(planned_->plan.stages, [&](const PlannedStage& stage) {
    return planned_->NodeOf(stage).info.node_id() == node_id;
  });
}

bool Deployment::unloading() const {
  absl::MutexLock lock(mu_);
  return !unloaded_why_.ok();
}

bool Deployment::serving() const {
  absl::MutexLock lock(mu_);
  return state_ == wire::ModelStatus::SERVING || state_ == wire::ModelStatus::MOVING;
}

bool Deployment::answers() const {
  absl::MutexLock lock(mu_);
  switch (state_) {
    case wire::ModelStatus::SERVING:
    case wire::ModelStatus::MOVING:
    case wire::ModelStatus::RECOVERING:
    case wire::ModelStatus::FAILED:
      return true;
    default:
      return false;
  }
}

std::vector<wire::ModelStage> Deployment::Stages() const {
  std::vector<wire::ModelStage> stages;
  absl::MutexLock lock(mu_);
  for (size_t i = 0; i < planned_->plan.stages.size(); ++i) {
    const PlannedStage& planned = planned_->plan.stages[i];
    wire::ModelStage& stage = stages.emplace_back();
    stage.set_node_id(planned_->NodeOf(planned).info.node_id());
    stage.set_node_name(planned_->NodeOf(planned).name());
    stage.set_device(planned_->inputs.request.devices[planned.device].name);
    stage.mutable_layers()->set_begin(planned.layers.begin);
    stage.mutable_layers()->set_end(planned.layers.end);
    if (i < infos_.size()) *stage.mutable_info() = infos_[i];
  }
  return stages;
}

wire::ModelStatus Deployment::Status() {
  Diagnose();
  const ModelFile& model = *planned_->model;
  const PlanRequest& request = planned_->inputs.request;
  const SchedulerStats stats = engine_->Stats();
  wire::ModelStatus status;
  status.set_model_id(model.id());
  status.set_name(name_.str());
  status.set_architecture(model.architecture().str());
  status.set_n_layer(model.n_layer());
  status.set_tensor_bytes(model.tensor_bytes());
  *status.mutable_source() = planned_->source;
  *status.mutable_epoch() = options_.epoch;
  status.set_n_ctx(request.cache.n_ctx);
  status.set_n_seqs(request.cache.n_seqs);
  status.set_exact(request.cache.exact);
  status.set_speculation(options_.request.speculation());
  status.set_draft(PrintableText::OfPath(options_.request.draft()).str());
  status.set_draft_tokens(stats.draft_tokens());
  status.set_accepted_tokens(stats.accepted_tokens());
  status.set_requests_running(stats.running);
  status.set_requests_waiting(stats.waiting);
  status.set_chat_template(chat_templates_.usual);
  status.set_tools_chat_template(chat_templates_.with_tools);
  status.set_bos_text(bos_text_);
  status.set_eos_text(eos_text_);
  if (fill_in_middle_) *status.mutable_fill_in_middle() = *fill_in_middle_;
  for (wire::ModelStage& stage : Stages()) {
    status.set_n_vocab(std::max(status.n_vocab(), stage.info().n_vocab()));
    *status.add_stages() = std::move(stage);
  }
  absl::MutexLock lock(mu_);
  status.set_state(state_);
  if (state_ == wire::ModelStatus::FAILED || state_ == wire::ModelStatus::RECOVERING) {
    ToWire(why_, "", status.mutable_status());
  }
  status.set_loaded_s_ago(absl::ToInt64Seconds(options_.now() - since_));
  return status;
}

std::vector<PlanningOptions::FreedMemory> MemoryOf(const Deployment& model) {
  std::vector<PlanningOptions::FreedMemory> freed;
  if (!model.serving()) return freed;
  const PlannedModel& planned = model.planned();
  for (const PlannedStage& stage : planned.plan.stages) {
    const std::string& node_id = planned.NodeOf(stage).info.node_id();
    freed.push_back({.node_id = node_id,
                     .device = planned.inputs.request.devices[stage.device].name,
                     .bytes = stage.memory_bytes()});
    if (const PlanDevice* const cpu = planned.CpuOf(stage);
        stage.host_bytes > 0 && cpu != nullptr) {
      freed.push_back({.node_id = node_id, .device = cpu->name, .bytes = stage.host_bytes});
    }
  }
  return freed;
}

}  // namespace strata
