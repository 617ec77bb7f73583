#include "node/stage_host.h"

#include <array>
#include <atomic>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "transport/epoch.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

// How often a fetch's progress is passed on, and a caller's leaving is noticed.
constexpr uint64_t kFetchWatchMs = 100;

// "qwen3" of "/models/qwen3.gguf".
std::string ModelName(absl::string_view path) {
  absl::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  absl::ConsumeSuffix(&name, ".gguf");
  return std::string(name);
}

StageKey KeyOf(const wire::StageSpec& spec) { return StageKeyOf(spec.epoch(), spec.stage()); }

}  // namespace

class StageHost::Device final : public WorkerProcess::Observer {
 public:
  Device(StageHost* host, std::string name) : name(std::move(name)), host_(host) {}
  void OnWorkerReady() override { host_->OnWorkerReady(this); }
  void OnWorkerDied(const WorkerDeath& death) override { host_->OnWorkerDied(this, death); }

  void OnWorkerTold() override { host_->OnWorkerTold(this); }

  const std::string name;
  std::unique_ptr<WorkerProcess> worker;  // while it runs

 private:
  StageHost* const host_;
};

// Reads a worker's LoadStage. Deletes itself after its last word has been posted.
class StageHost::LoadReader final : public grpc::ClientReadReactor<wire::LoadStageEvent> {
 public:
  LoadReader(StageHost* host, const Stage& stage)
      : host_(host), key_(KeyOf(stage.spec)), id_(stage.id), context_(stage.context) {
    *request_.mutable_spec() = stage.spec;
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
    Gate* gate = &host_->gate_;
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

// What a fetch has done, told by its thread and read on the loop.
struct StageHost::FetchProgress {
  std::atomic<uint64_t> bytes_done{0}, bytes_total{0};
};

StageHost::StageHost(EventLoop* loop, Options options)
    : loop_(loop), options_(std::move(options)) {}

StageHost::~StageHost() {
  // All are asked before one is waited for.
  for (auto& [name, device] : devices_) {
    if (device->worker != nullptr) device->worker->Stop();
  }
  for (auto& [name, device] : devices_) device->worker.reset();
  for (auto& [id, context] : calls_) context->TryCancel();
  gate_.Wait();
}

std::string StageHost::Where(const Stage& stage) const {
  const wire::LayerRange& layers = stage.spec.layers();
  return absl::StrCat("stage ", stage.spec.stage(), " (layers ", layers.begin(), "-",
                      layers.end() == 0 ? 0 : layers.end() - 1, ") on ", options_.node_name);
}

absl::Status StageHost::At(const Stage& stage, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(Where(stage), ": ", status.message()));
}

StageHost::Stage* StageHost::FindById(const StageKey& key, uint64_t id) {
  const auto found = stages_.find(key);
  return found != stages_.end() && found->second.id == id ? &found->second : nullptr;
}

absl::Status StageHost::Newest(const wire::Epoch& epoch) {
  const absl::Status status = CheckEpoch(epoch, newest_epoch_);
  if (status.ok()) {
    newest_epoch_ = epoch;
  } else if (epoch.coordinator_id() != newest_epoch_.coordinator_id()) {
    return absl::Status(status.code(), absl::StrCat(options_.node_name, ": ", status.message()));
  }
  return absl::OkStatus();
}

// Workers.

absl::StatusOr<StageHost::Device*> StageHost::DeviceFor(const std::string& name) {
  const auto found = devices_.find(name);
  if (found != devices_.end()) return found->second.get();
  if (devices_.size() >= kDevicesMax) {
    // Names come from outside; those that no worker runs for make room.
    std::erase_if(devices_, [this](const auto& entry) {
      for (const auto& [key, stage] : stages_) {
        if (stage.device == entry.second.get()) return false;
      }
      return entry.second->worker == nullptr;
    });
  }
  if (devices_.size() >= kDevicesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("no more than ", kDevicesMax, " devices"));
  }
  return (devices_[name] = std::make_unique<Device>(this, name)).get();
}

absl::Status StageHost::StartWorker(Device* device) {
  WorkerProcess::Options options;
  options.program = options_.worker_program;
  options.args = options_.worker_args;
  options.label = absl::StrCat(options_.node_name, " worker ", device->name);
  options.echo_stderr = options_.echo_stderr;
  options.timeouts = options_.timeouts;
  absl::StatusOr<std::unique_ptr<WorkerProcess>> worker =
      WorkerProcess::Start(loop_, std::move(options), device);
  if (!worker.ok()) return worker.status();
  device->worker = *std::move(worker);
  return absl::OkStatus();
}

absl::Status StageHost::FindWorker(Stage* stage) {
  absl::StatusOr<Device*> device = DeviceFor(stage->spec.device());
  if (!device.ok()) return device.status();
  if ((*device)->worker == nullptr) {
    if (absl::Status status = StartWorker(*device); !status.ok()) return status;
  }
  stage->device = *device;
  return absl::OkStatus();
}

void StageHost::StopWorkerIfIdle(Device* device) {
  if (device->worker == nullptr) return;
  for (const auto& [key, stage] : stages_) {
    if (stage.device == device && stage.state != State::kFailed) return;
  }
  device->worker->Stop();  // what it still holds of memory goes back
}

void StageHost::UpdateLoading(Device* device) {
  if (device->worker == nullptr) return;
  bool loading = false;
  for (const auto& [key, stage] : stages_) {
    loading |= stage.device == device && stage.state == State::kLoading;
  }
  device->worker->set_loading(loading);
}

void StageHost::OnWorkerReady(Device* device) {
  for (auto& [key, stage] : stages_) {
    if (stage.device == device && stage.state == State::kWaiting) BeginLoad(&stage);
  }
}

void StageHost::OnWorkerDied(Device* device, const WorkerDeath& death) {
  device->worker.reset();
  const bool asked = death.code == absl::StatusCode::kOk;
  bool wanted = false;
  for (auto& [key, stage] : stages_) {
    if (stage.device != device) continue;
    switch (stage.state) {
      case State::kFetching:
        break;  // not on a device yet
      case State::kWaiting:
        if (asked && !stopping_) {
          wanted = true;  // came while the worker before was stopping
        } else {
          EndLoad(&stage, death.ToStatus("before loading"));
        }
        break;
      case State::kLoading:
        EndLoad(&stage, death.ToStatus("while loading"));
        break;
      case State::kServing:
      case State::kUnloading:
        stage.state = State::kFailed;
        stage.status = death.ToStatus("while serving");
        break;
      case State::kFailed:
        break;
    }
    if (!asked && stage.state == State::kFailed) LOG(WARNING) << At(stage, stage.status).message();
  }
  if (!wanted) return;
  const absl::Status started = StartWorker(device);
  for (auto& [key, stage] : stages_) {
    if (!started.ok() && stage.device == device && stage.state == State::kWaiting) {
      EndLoad(&stage, started);
    }
  }
}

// Loading.

void StageHost::Load(const wire::StageSpec& spec, Context context, LoadStream* stream) {
  DCHECK(loop_->InLoopThread());
  Stage stage;
  stage.spec = spec;
  stage.model_name = ModelName(spec.model_path());  // a fetched copy lies elsewhere
  if (stage.spec.device().empty()) stage.spec.set_device("CPU");
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
  if (found == stages_.end() && stages_.size() >= kStagesMax) {
    stream->End(At(stage, absl::ResourceExhaustedError(
                              absl::StrCat("a node takes ", kStagesMax, " stages at most"))));
    return;
  }
  const bool fetch = options_.fetcher != nullptr && !spec.source_address().empty();
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
  Stage& kept = stages_[key] = std::move(stage);
  if (fetch) {
    BeginFetch(&kept);
  } else if (kept.device->worker->ready() && !kept.device->worker->stopping()) {
    BeginLoad(&kept);
  }
}

void StageHost::BeginFetch(Stage* stage) {
  stage->state = State::kFetching;
  stage->fetch_progress = std::make_shared<FetchProgress>();
  WeightFetcher::Request request;
  request.model_id = stage->spec.model_id();
  request.path = stage->spec.model_path();
  request.address = stage->spec.source_address();
  request.layers = {stage->spec.layers().begin(), stage->spec.layers().end()};
  request.unverified = stage->spec.unverified();
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
      EndLoad(&stage, absl::CancelledError("the caller has gone"));
    }
  }
}

void StageHost::OnFetched(const StageKey& key, uint64_t id,
                          absl::StatusOr<WeightFetcher::Fetched> fetched) {
  if (--fetches_ == 0) fetch_timer_.reset();
  Stage* stage = FindById(key, id);
  if (stage == nullptr || stage->state != State::kFetching) {
    if (fetched.ok()) LetGo(std::move(fetched->lease));
    return;
  }
  stage->fetch.reset();
  if (!fetched.ok()) {
    EndLoad(stage, fetched.status());
    return;
  }
  stage->spec.set_model_path(fetched->path);
  stage->weights = std::move(fetched->lease);
  stage->bytes_before = stage->fetch_progress->bytes_done;
  stage->state = State::kWaiting;
  if (absl::Status status = FindWorker(stage); !status.ok()) {
    EndLoad(stage, status);
  } else if (stage->device->worker->ready() && !stage->device->worker->stopping()) {
    BeginLoad(stage);
  }
}

void StageHost::LetGo(std::shared_ptr<WeightLease> weights) {
  if (weights != nullptr) options_.fetcher->LetGo(std::move(weights));
}

void StageHost::Forget(const StageKey& key) {
  const auto found = stages_.find(key);
  if (found == stages_.end()) return;
  LetGo(std::move(found->second.weights));
  stages_.erase(found);
}

void StageHost::BeginLoad(Stage* stage) {
  stage->state = State::kLoading;
  stage->worker_pid = stage->device->worker->pid();
  UpdateLoading(stage->device);
  calls_[stage->id] = stage->context;
  gate_.Enter();
  (new LoadReader(this, *stage))->Start(stage->device->worker->stub());
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
  }
}

void StageHost::OnLoadEnd(const StageKey& key, uint64_t id, const absl::Status& status) {
  calls_.erase(id);
  Stage* stage = FindById(key, id);
  if (stage == nullptr || stage->state != State::kLoading) return;
  if (absl::IsUnavailable(status)) {
    // The worker's own word, or the end of the worker: then OnWorkerDied() says it better.
    stage->device->worker->CheckAlive([this, key, id, status](bool alive) {
      Stage* still = FindById(key, id);
      if (alive && still != nullptr && still->state == State::kLoading) EndLoad(still, status);
    });
    return;
  }
  if (status.ok() && !stage->loaded) {
    EndLoad(stage, absl::InternalError("the worker ended the load without a word"));
    return;
  }
  EndLoad(stage, status);
}

void StageHost::EndLoad(Stage* stage, const absl::Status& status) {
  LoadStream* stream = std::exchange(stage->stream, nullptr);
  stage->context.reset();
  stage->state = status.ok() ? State::kServing : State::kFailed;
  stage->status = status;
  if (stage->fetch != nullptr) WeightFetcher::Cancel(std::exchange(stage->fetch, nullptr).get());
  if (stage->device != nullptr) {
    UpdateLoading(stage->device);
    if (!status.ok()) StopWorkerIfIdle(stage->device);
  }
  if (!status.ok()) LetGo(std::move(stage->weights));
  if (status.ok()) {
    stage->device->worker->ForgetWords();
    stream->End(stage->info);
  } else {
    stream->End(At(*stage, status));
  }
}

// Requests on a stage.

template <typename Request, typename Response, typename Method>
void StageHost::Forward(const StageKey& key, const Request* request, Response* response,
                        const Context& context, Method method, Done done) {
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
  call->id = next_id_++;
  call->stage_id = stage.id;
  call->stage = key;
  call->context = context;
  call->done = std::move(done);
  calls_[call->id] = context;
  gate_.Enter();
  (stage.device->worker->stub()->async()->*method)(
      context.get(), request, response, [this, call](const grpc::Status& status) {
        loop_->Post([this, call, status = FromGrpc(status)] { Settle(call, status); });
        gate_.Leave();
      });
}

void StageHost::Settle(const std::shared_ptr<Call>& call, const absl::Status& status) {
  calls_.erase(call->id);
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
  using Method = void (wire::Worker::StubInterface::async_interface::*)(
      grpc::ClientContext*, const wire::ConnectStageRequest*, wire::ConnectStageResponse*,
      std::function<void(grpc::Status)>);
  Method method = &wire::Worker::StubInterface::async_interface::ConnectStage;
  Forward(StageKeyOf(request->epoch(), request->stage()), request, response, context, method,
          std::move(done));
}

void StageHost::Tokenize(const wire::TokenizeRequest* request, wire::TokenizeResponse* response,
                         const Context& context, Done done) {
  DCHECK(loop_->InLoopThread());
  using Method = void (wire::Worker::StubInterface::async_interface::*)(
      grpc::ClientContext*, const wire::TokenizeRequest*, wire::TokenizeResponse*,
      std::function<void(grpc::Status)>);
  Method method = &wire::Worker::StubInterface::async_interface::Tokenize;
  Forward(StageKeyOf(request->epoch(), request->stage()), request, response, context, method,
          std::move(done));
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
    // A worker that other stages keep alive has to forget it too.
    if (with_worker && !device->worker->stopping()) stage.state = State::kUnloading;
  }
  if (stage.state == State::kFailed) {
    Forget(key);
    std::move(done)(absl::OkStatus());
    return;
  }
  const State before = std::exchange(stage.state, State::kUnloading);
  using Method = void (wire::Worker::StubInterface::async_interface::*)(
      grpc::ClientContext*, const wire::UnloadStageRequest*, wire::UnloadStageResponse*,
      std::function<void(grpc::Status)>);
  Method method = &wire::Worker::StubInterface::async_interface::UnloadStage;
  Forward(key, request, response, context, method,
          [this, device, before, key, id = stage.id,
           done = std::move(done)](absl::Status status) mutable {
            Stage* still = FindById(key, id);
            if (still != nullptr) {
              // With its worker the stage is gone as well.
              if (still->state == State::kFailed) status = absl::OkStatus();
              if (status.ok()) {
                Forget(key);
                StopWorkerIfIdle(device);
              } else {
                still->state = before;
              }
            }
            std::move(done)(status);
          });
}

bool StageHost::Busy() const {
  for (const auto& [name, device] : devices_) {
    if (device->worker != nullptr && device->worker->busy()) return true;
  }
  return false;
}

void StageHost::Tell(const Stage& stage, wire::StageStatus* status) const {
  using Wire = wire::StageStatus;
  static constexpr std::array<Wire::State, 6> kStates = {
      Wire::FETCHING, Wire::WAITING, Wire::LOADING, Wire::SERVING, Wire::UNLOADING, Wire::FAILED};
  status->set_state(kStates.at(static_cast<size_t>(stage.state)));
  status->set_stage(stage.spec.stage());
  status->set_n_stages(stage.spec.n_stages());
  *status->mutable_epoch() = stage.spec.epoch();
  *status->mutable_layers() = stage.spec.layers();
  status->set_model_id(stage.spec.model_id());
  status->set_model_name(stage.model_name);
  status->set_device(stage.spec.device());
  if (stage.state == State::kFailed) {
    ToWire(stage.status, Where(stage), status->mutable_status());
    return;
  }
  status->set_worker_pid(stage.worker_pid);
  if (stage.state == State::kFetching) {
    status->mutable_progress()->set_bytes_done(stage.fetch_progress->bytes_done);
    status->mutable_progress()->set_bytes_total(stage.fetch_progress->bytes_total);
  } else if (stage.state == State::kLoading) {
    *status->mutable_progress() = stage.progress;
  }
  if (stage.state == State::kFetching || stage.state == State::kWaiting ||
      stage.state == State::kLoading) {
    ToWire(absl::UnavailableError("it is still loading"), Where(stage), status->mutable_status());
  }
  if (stage.state == State::kFetching || stage.state == State::kWaiting) return;
  if (stage.device->worker == nullptr) return;
  const WorkerProcess& worker = *stage.device->worker;
  status->set_told_ms(worker.told_ms());
  status->set_resident_bytes(worker.told().resident_bytes());
  status->set_busy_ms(stage.work.busy_ms());
  status->set_steps_done(stage.work.steps_done());
  status->set_busy_us(stage.work.busy_us());
  status->set_rows(stage.work.rows());
  status->set_bytes_in(stage.work.bytes_in());
  status->set_bytes_out(stage.work.bytes_out());
  if (!stage.busy_us || !stage.rows) return;
  const int64_t now_us = worker.told_ms() * 1000;
  status->set_window_ms(static_cast<uint32_t>(stage.busy_us->SpanUs(now_us) / 1000));
  status->set_idle_share(static_cast<float>(IdleShare(*stage.busy_us, now_us)));
  status->set_rows_per_s(static_cast<float>(stage.rows->PerSecond(now_us)));
}

void StageHost::OnWorkerTold(Device* device) {
  const int64_t now_us = device->worker->told_ms() * 1000;
  for (const wire::StageWork& work : device->worker->told().stages()) {
    const auto found = stages_.find(StageKeyOf(work.epoch(), work.stage()));
    if (found == stages_.end() || found->second.device != device) continue;
    Stage& stage = found->second;
    // The stage before of the same place may have told more.
    const bool goes_on = work.busy_us() >= stage.work.busy_us() && work.rows() >= stage.work.rows();
    if (stage.state == State::kServing && !stage.busy_us) {
      stage.busy_us.emplace(now_us);
      stage.rows.emplace(now_us);
    } else if (stage.busy_us && goes_on) {
      stage.busy_us->Add(now_us, static_cast<double>(work.busy_us() - stage.work.busy_us()));
      stage.rows->Add(now_us, static_cast<double>(work.rows() - stage.work.rows()));
    }
    stage.work = work;
  }
}

std::vector<wire::StageStatus> StageHost::Stages() const {
  std::vector<wire::StageStatus> all;
  for (const auto& [key, stage] : stages_) Tell(stage, &all.emplace_back());
  return all;
}

void StageHost::StartShutdown() {
  DCHECK(loop_->InLoopThread());
  if (std::exchange(stopping_, true)) return;
  for (auto& [key, stage] : stages_) {
    if (stage.state != State::kFetching && stage.state != State::kWaiting &&
        stage.state != State::kLoading) {
      continue;
    }
    stage.context->TryCancel();
    EndLoad(&stage, absl::UnavailableError("the node is stopping"));
  }
  for (auto& [name, device] : devices_) {
    if (device->worker != nullptr) device->worker->Stop();
  }
}

}  // namespace strata
