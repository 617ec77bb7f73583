// From LoadStage until a stage serves: its weights are fetched, then its worker loads them.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "node/workers/stage_host_impl.h"
#include "shard/device/device_probe.h"
#include "shard/model/model_file.h"
#include "shard/serving/same_stage.h"
#include "transport/base/printable_text.h"
#include "transport/base/wall_clock.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// How often a fetch's progress is passed on, and a cancelled call is noticed.
constexpr uint64_t kFetchWatchMs = 100;

// What was fetched ahead may have left the cache after that time.
constexpr absl::Duration kFetchAheadAgain = absl::Minutes(10);

PrintableText ModelNameOf(const wire::StageSpec& spec) {
  return PrintableText::From(spec.model_name().empty() ? ModelFileStem(spec.model_path())
                                                       : spec.model_name());
}

}  // namespace

// Reads a worker's LoadStage. Deletes itself after its last event has been posted.
class StageHost::LoadReader final : public grpc::ClientReadReactor<wire::LoadStageEvent> {
 public:
  LoadReader(StageHost* host, const Stage& stage)
      : host_(host), key_(KeyOf(stage.spec)), id_(stage.id), context_(stage.context) {
    *request_.mutable_spec() = stage.spec;
    request_.set_block_hashes(stage.block_hashes);
    // Other nodes get their weights from the file that this node shares, if it is the source.
    const bool is_source = stage.spec.source_address().empty() && !stage.spec.no_source();
    if (is_source && stage.weights == nullptr && host->options_.file_key != nullptr) {
      request_.set_file_key(host->options_.file_key(stage.spec.model_path()));
    }
    if (stage.kv_bytes_max == 0) return;
    wire::KvStoreSpec* const store = request_.mutable_kv_store();
    store->set_folder(host->options_.kv_folder);
    store->set_bytes_max(stage.kv_bytes_max);
    store->set_others_bytes_max(host->KvBytesLeft());
  }

  void Start(wire::Worker::Stub* stub) {
    stub->async()->LoadStage(context_.get(), &request_, this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    host_->loop_->Post([host = host_, key = key_, id = id_, event = event_] {
      host->OnLoadEvent(key, id, event);
    });
    StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    host_->loop_->Post([host = host_, key = key_, id = id_, status = FromGrpc(status)] {
      host->OnLoadEnd(key, id, status);
    });
    CallbackGate* gate = &host_->gate_;
    delete this;
    gate->Leave();
  }

  StageHost* const host_;
  const StageKey key_;
  const uint64_t id_;
  const Context context_;
  wire::LoadStageRequest request_;
  wire::LoadStageEvent event_;
};

void StageHost::Load(const wire::StageSpec& spec, Context context, LoadStream* stream) {
  DCHECK(loop_->InLoopThread());
  Stage stage;
  stage.spec = spec;
  stage.model_name = ModelNameOf(spec);
  if (stage.spec.device().empty()) stage.spec.set_device(kCpuDevice);
  if (stopping_) {
    stream->End(At(stage, absl::UnavailableError("the node is stopping")));
    return;
  }
  if (absl::Status status = Newest(spec.epoch()); !status.ok()) {
    stream->End(status);
    return;
  }
  const StageKey key = KeyOf(spec);
  const auto found = stages_.find(key);
  if (found != stages_.end() && found->second.state != State::kFailed) {
    stream->End(At(stage, absl::AlreadyExistsError("it is here already; unload it first")));
    return;
  }
  // Failed stages are kept to report their errors; they must not use up the stages of the node.
  if (found == stages_.end() && stages_.size() >= kStagesMax) {
    const auto failed = std::find_if(stages_.begin(), stages_.end(), [](const auto& each) {
      return each.second.state == State::kFailed;
    });
    if (failed != stages_.end()) Forget(StageKey(failed->first));
  }
  if (found == stages_.end() && stages_.size() >= kStagesMax) {
    stream->End(At(stage, absl::ResourceExhaustedError(
                              absl::StrCat("a node takes ", kStagesMax, " stages at most"))));
    return;
  }
  if (!options_.limits.Has(stage.spec.device())) {
    stream->End(At(stage, absl::FailedPreconditionError(absl::StrCat(
                              stage.spec.device(), " is not offered there, only ",
                              absl::StrJoin(options_.limits.devices, ", "), " (--device)"))));
    return;
  }
  if (TakeKept(&stage)) {
    stage.id = next_id_++;
    stage.context = std::move(context);
    stage.stream = stream;
    Forget(key);
    BeginLoad(&(stages_[key] = std::move(stage)));
    return;
  }
  const bool fetch =
      options_.fetcher != nullptr && (!spec.source_address().empty() || spec.no_source());
  if (!fetch) {
    if (absl::Status status = FindWorker(&stage); !status.ok()) {
      stream->End(At(stage, status));
      return;
    }
  }
  stage.id = next_id_++;
  stage.context = std::move(context);
  stage.stream = stream;
  Forget(key);
  Stage& added = stages_[key] = std::move(stage);
  if (fetch) {
    BeginFetch(&added);
  } else {
    BeginLoad(&added);
  }
}

bool StageHost::TakeKept(Stage* stage) {
  if (!stage->spec.has_kept()) return false;
  const wire::KeptStage& kept = stage->spec.kept();
  const auto found = stages_.find(StageKeyOf(kept.epoch(), kept.stage()));
  if (found == stages_.end() || found->second.state != State::kServing) return false;
  Stage& before = found->second;
  if (!IsSameStage(before.spec, stage->spec)) return false;
  stage->device = before.device;
  stage->spec.set_model_path(before.spec.model_path());
  stage->weights = std::move(before.weights);
  stage->block_hashes = std::move(before.block_hashes);
  stage->kv_bytes_max = before.kv_bytes_max;
  stages_.erase(found);
  return true;
}

WeightFetcher::Request StageHost::FetchRequestOf(const wire::StageSpec& spec) {
  WeightFetcher::Request request;
  request.model_id = spec.model_id();
  request.path = spec.model_path();
  request.address = spec.source_address();
  for (const wire::WeightPeer& peer : spec.weight_peers()) {
    request.peers.push_back(peer.address());
  }
  request.remote = spec.remote();
  request.layers = {spec.layers().begin(), spec.layers().end()};
  request.unverified = spec.unverified();
  return request;
}

absl::Status StageHost::FetchAhead(const wire::StageSpec& spec) {
  DCHECK(loop_->InLoopThread());
  if (!options_.standby || options_.fetcher == nullptr || stopping_) {
    return absl::FailedPreconditionError("it does not fetch ahead (strata node --standby)");
  }
  const auto key = std::tuple(spec.model_id(), spec.layers().begin(), spec.layers().end());
  const auto found = ahead_.find(key);
  const SteadyTime now = SteadyTime::Now();
  if (found != ahead_.end() &&
      (found->second.job != nullptr || now - found->second.ended < kFetchAheadAgain)) {
    return absl::OkStatus();
  }
  if (found == ahead_.end() && ahead_.size() >= kStagesMax) ahead_.clear();
  WeightFetcher::Callbacks callbacks;
  callbacks.progress = [](uint64_t, uint64_t) {};
  callbacks.done = [this, loop = loop_, key, fetcher = options_.fetcher,
                    model = ModelNameOf(spec)](absl::StatusOr<WeightFetcher::Fetched> fetched) {
    const std::string layers =
        absl::StrCat("layers ", std::get<1>(key), "-", std::get<2>(key) - 1, " of ", model);
    if (!fetched.ok()) {
      LOG(WARNING) << "standby: " << layers << " are not here: " << fetched.status().message();
    } else {
      if (fetched->bytes_fetched > 0) LOG(INFO) << "standby: " << layers << " are here";
      if (fetched->lease != nullptr) fetcher->LetGo(std::move(fetched->lease));
    }
    loop->Post([this, key, cancelled = absl::IsCancelled(fetched.status())] {
      const auto ended = ahead_.find(key);
      if (ended == ahead_.end()) return;
      ended->second = {.job = nullptr,
                       .ended = cancelled ? SteadyTime::InfinitePast() : SteadyTime::Now()};
    });
  };
  ahead_[key].job = options_.fetcher->Start(FetchRequestOf(spec), std::move(callbacks));
  return absl::OkStatus();
}

void StageHost::BeginFetch(Stage* stage) {
  for (const auto& [key, ahead] : ahead_) {
    if (ahead.job != nullptr) WeightFetcher::Cancel(ahead.job.get());  // what is needed comes first
  }
  stage->state = State::kFetching;
  stage->fetch_progress = std::make_shared<FetchProgress>();
  WeightFetcher::Request request = FetchRequestOf(stage->spec);
  // After a first fetch the spec's path names the cache's copy.
  if (stage->fetched_again) request.path.clear();
  request.check_again = stage->fetched_again;
  WeightFetcher::Callbacks callbacks;
  callbacks.progress = [progress = stage->fetch_progress](uint64_t done, uint64_t total) {
    progress->bytes_total = total;
    progress->bytes_done = done;
  };
  callbacks.done = [this, loop = loop_, key = KeyOf(stage->spec),
                    id = stage->id](absl::StatusOr<WeightFetcher::Fetched> fetched) {
    loop->Post([this, key, id, fetched = std::move(fetched)]() mutable {
      OnFetched(key, id, std::move(fetched));
    });
  };
  ++fetches_;
  stage->fetch = options_.fetcher->Start(std::move(request), std::move(callbacks));
  if (fetch_timer_ == nullptr) {
    fetch_timer_ = loop_->StartTimer({.delay_ms = kFetchWatchMs, .repeat_ms = kFetchWatchMs},
                                     [this] { WatchFetches(); });
  }
}

void StageHost::WatchFetches() {
  for (auto& [key, stage] : stages_) {
    if (stage.state != State::kFetching) continue;
    const FetchProgress& progress = *stage.fetch_progress;
    if (!stage.stream->Progress(progress.bytes_done, progress.bytes_total)) {
      EndLoad(&stage, absl::CancelledError("the caller cancelled the load"));
    }
  }
}

void StageHost::OnFetched(const StageKey& key, uint64_t id,
                          absl::StatusOr<WeightFetcher::Fetched> fetched) {
  if (--fetches_ == 0) fetch_timer_.reset();
  Stage* stage = FindById(key, id);
  if (stage == nullptr || stage->state != State::kFetching) {
    if (fetched.ok()) ReleaseWeights(std::move(fetched->lease));
    return;
  }
  stage->fetch.reset();
  if (!fetched.ok()) {
    EndLoad(stage, fetched.status());
    return;
  }
  stage->spec.set_model_path(fetched->path);
  stage->weights = std::move(fetched->lease);
  stage->block_hashes = std::move(fetched->block_hashes);
  stage->bytes_before = stage->fetch_progress->bytes_done;
  stage->state = State::kWaiting;
  if (absl::Status status = FindWorker(stage); !status.ok()) {
    EndLoad(stage, status);
  } else {
    BeginLoad(stage);
  }
}

void StageHost::ReleaseWeights(std::shared_ptr<WeightLease> weights) {
  if (weights != nullptr) options_.fetcher->LetGo(std::move(weights));
}

void StageHost::Forget(const StageKey& key) {
  const auto found = stages_.find(key);
  if (found == stages_.end()) return;
  ReleaseWeights(std::move(found->second.weights));
  stages_.erase(found);
}

bool StageHost::IsCrowded(const Stage& stage) const {
  const DeviceLimits& limits = options_.limits;
  const bool on_host = limits.MemoryOf(kCpuDevice) != 0;
  return std::any_of(stages_.begin(), stages_.end(), [&](const auto& each) {
    const Stage& other = each.second;
    if (other.state != State::kLoading || other.device == nullptr) return false;
    const bool same = other.device == stage.device && limits.MemoryOf(stage.device->name) != 0;
    return same || (on_host && (other.spec.n_cpu_moe() > 0 || stage.spec.n_cpu_moe() > 0));
  });
}

void StageHost::BeginWaiting() {
  if (stopping_) return;
  for (auto& [key, stage] : stages_) {
    if (stage.state == State::kWaiting && stage.device != nullptr) BeginLoad(&stage);
  }
}

// A stage whose worker is not ready, or that shares a limit with a stage that loads, begins later.
void StageHost::BeginLoad(Stage* stage) {
  stage->state = State::kWaiting;
  const WorkerProcess* const worker = stage->device->worker.get();
  if (worker == nullptr || !worker->ready() || worker->stopping() || IsCrowded(*stage)) return;
  stage->state = State::kLoading;
  stage->worker_pid = stage->device->worker->pid();
  UpdateLoading(stage->device);
  stage->spec.set_memory_bytes_max(MemoryLeftOn(stage->device->name));
  stage->spec.set_host_bytes_max(MemoryLeftOn(kCpuDevice));
  // The other half is for stages that come later, and for models that are not loaded.
  if (stage->kv_bytes_max == 0) stage->kv_bytes_max = KvBytesLeft() / 2;
  if (options_.on_load != nullptr) options_.on_load(stage->spec, /*begins=*/true);
  calls_[stage->id] = stage->context;
  gate_.Enter();
  (new LoadReader(this, *stage))->Start(stage->device->worker->stub());
}

uint64_t StageHost::KvBytesLeft() const {
  uint64_t left = options_.kv_bytes_max;
  for (const auto& [key, stage] : stages_) {
    if (stage.state != State::kFailed) left -= std::min(left, stage.kv_bytes_max);
  }
  return left;
}

void StageHost::OnLoadEvent(const StageKey& key, uint64_t id, wire::LoadStageEvent event) {
  Stage* stage = FindById(key, id);
  if (stage == nullptr || stage->state != State::kLoading) return;
  if (event.has_progress()) {
    stage->progress.set_bytes_done(stage->bytes_before + event.progress().bytes_done());
    stage->progress.set_bytes_total(stage->bytes_before + event.progress().bytes_total());
    stage->stream->Progress(stage->progress.bytes_done(), stage->progress.bytes_total());
  } else if (event.has_loaded()) {
    stage->loaded = true;
    stage->info = std::move(*event.mutable_loaded());
    if (!stage->info.has_self_test()) return;
    wire::SelfTest* const test = stage->info.mutable_self_test();
    test->set_node_id(options_.node_id);
    test->set_node_name(options_.node_name);
    test->set_device(stage->spec.device());
    test->set_unix_s(absl::ToUnixSeconds(WallNow()));
  }
}

void StageHost::OnLoadEnd(const StageKey& key, uint64_t id, const absl::Status& status) {
  calls_.erase(id);
  Stage* stage = FindById(key, id);
  if (stage == nullptr || stage->state != State::kLoading) return;
  if (absl::IsUnavailable(status)) {
    // Either the worker's own error, or the worker died: OnWorkerDied() then has the better error.
    stage->device->worker->CheckAlive([this, key, id, status](bool alive) {
      Stage* still = FindById(key, id);
      if (!alive || still == nullptr || still->state != State::kLoading) return;
      still->device->worker->ForgetWords();
      EndLoad(still, status);
    });
    return;
  }
  if (status.ok() && !stage->loaded) {
    EndLoad(stage, absl::InternalError("the worker ended the load without a result"));
    return;
  }
  // Its output about a load that it survived does not explain a later death.
  stage->device->worker->ForgetWords();
  if (absl::IsDataLoss(status) && stage->weights != nullptr && options_.fetcher != nullptr) {
    FetchAgain(stage, status);
    return;
  }
  EndLoad(stage, status);
}

void StageHost::FetchAgain(Stage* stage, const absl::Status& why) {
  if (stage->fetched_again) {
    EndLoad(stage, absl::DataLossError(absl::StrCat(
                       why.message(),
                       "; it was checked and fetched again before, so the disk does not return "
                       "what was written to it: check the disk, or name another folder with "
                       "--cache-dir")));
    return;
  }
  LOG(WARNING) << At(*stage, why).message() << "; it is checked, fetched and loaded again";
  stage->fetched_again = true;
  stage->context = std::make_shared<grpc::ClientContext>();  // each is for one call
  ReleaseWeights(std::exchange(stage->weights, nullptr));
  Device* const device = std::exchange(stage->device, nullptr);
  BeginFetch(stage);
  UpdateLoading(device);
  BeginWaiting();
}

void StageHost::EndLoad(Stage* stage, const absl::Status& status) {
  LoadStream* stream = std::exchange(stage->stream, nullptr);
  stage->context.reset();
  if (options_.on_load != nullptr) options_.on_load(stage->spec, /*begins=*/false);
  stage->state = status.ok() ? State::kServing : State::kFailed;
  stage->status = status;
  if (stage->fetch != nullptr) WeightFetcher::Cancel(std::exchange(stage->fetch, nullptr).get());
  if (stage->device != nullptr) {
    UpdateLoading(stage->device);
    if (!status.ok()) StopWorkerIfIdle(stage->device);
  }
  if (!status.ok()) ReleaseWeights(std::move(stage->weights));
  if (status.ok()) {
    stream->End(stage->info);
  } else {
    stream->End(At(*stage, status));
  }
  BeginWaiting();
}

}  // namespace strata
