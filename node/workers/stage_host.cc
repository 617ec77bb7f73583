// Workers and the status of stages; stage_host_load.cc loads them, stage_host_calls.cc has the
// calls on them.
#include "node/workers/stage_host.h"

#include <array>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "node/workers/stage_host_impl.h"
#include "shard/device/device_probe.h"
#include "transport/base/epoch.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/status_details.h"

namespace strata {

namespace {

// The status of a stage whose worker died before the stage served. The planner may then plan less
// for its device.
absl::Status Died(const WorkerDeath& death, absl::string_view during) {
  absl::Status status = death.ToStatus(during);
  if (!absl::IsResourceExhausted(status)) return status;
  return WithShortage(std::move(status), {.on_host = death.of_machine_memory});
}

}  // namespace

StageHost::StageHost(EventLoop* loop, Options options)
    : loop_(loop), options_(std::move(options)) {}

StageHost::~StageHost() {
  // All workers are asked to stop before the first wait.
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
  return Prefixed(Where(stage), status);
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
    // Names come from outside; names of devices without a worker make room.
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
  device->worker->Stop();  // frees the memory that it still holds
}

void StageHost::UpdateLoading(Device* device) {
  if (device->worker == nullptr) return;
  bool loading = false;
  for (const auto& [key, stage] : stages_) {
    loading |= stage.device == device && stage.state == State::kLoading;
  }
  device->worker->set_loading(loading);
}

void StageHost::OnWorkerReady(Device*) { BeginWaiting(); }

void StageHost::OnWorkerDied(Device* device, const WorkerDeath& death) {
  device->worker.reset();
  const bool was_stopped = death.code == absl::StatusCode::kOk;
  bool needed = false;
  for (auto& [key, stage] : stages_) {
    if (stage.device != device) continue;
    switch (stage.state) {
      case State::kFetching:
        break;  // not on a device yet
      case State::kWaiting:
        if (was_stopped && !stopping_) {
          needed = true;  // the load came while the worker before was stopping
        } else {
          EndLoad(&stage, Died(death, "before loading"));
        }
        break;
      case State::kLoading:
        EndLoad(&stage, Died(death, "while loading"));
        break;
      case State::kServing:
      case State::kUnloading:
        stage.state = State::kFailed;
        stage.status = death.ToStatus("while serving");
        ReleaseWeights(std::move(stage.weights));  // nobody reads them any more
        break;
      case State::kFailed:
        break;
    }
    if (!was_stopped && stage.state == State::kFailed) {
      LOG(WARNING) << At(stage, stage.status).message();
    }
  }
  if (!needed) return;
  const absl::Status started = StartWorker(device);
  for (auto& [key, stage] : stages_) {
    if (!started.ok() && stage.device == device && stage.state == State::kWaiting) {
      EndLoad(&stage, started);
    }
  }
}

bool StageHost::Busy() const {
  for (const auto& [name, device] : devices_) {
    if (device->worker != nullptr && device->worker->busy()) return true;
  }
  return false;
}

void StageHost::WatchWorkers() {
  for (const auto& [name, device] : devices_) {
    if (device->worker != nullptr) device->worker->Watch();
  }
}

void StageHost::FillStatus(const Stage& stage, wire::StageStatus* status) const {
  using Wire = wire::StageStatus;
  status->set_origin(stage.spec.origin());
  static constexpr std::array<Wire::State, 6> kStates = {
      Wire::FETCHING, Wire::WAITING, Wire::LOADING, Wire::SERVING, Wire::UNLOADING, Wire::FAILED};
  status->set_state(kStates.at(static_cast<size_t>(stage.state)));
  status->set_stage(stage.spec.stage());
  status->set_n_stages(stage.spec.n_stages());
  *status->mutable_epoch() = stage.spec.epoch();
  *status->mutable_layers() = stage.spec.layers();
  status->set_model_id(stage.spec.model_id());
  status->set_model_name(stage.model_name.str());
  status->set_device(stage.spec.device());
  status->set_n_cpu_moe(stage.spec.n_cpu_moe());
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
  status->set_told_ms(worker.report_ms());
  status->set_resident_bytes(worker.report().resident_bytes());
  status->set_busy_ms(stage.work.busy_ms());
  status->set_steps_done(stage.work.steps_done());
  status->set_busy_us(stage.work.busy_us());
  status->set_rows(stage.work.rows());
  status->set_bytes_in(stage.work.bytes_in());
  status->set_bytes_out(stage.work.bytes_out());
  status->set_kv_disk_bytes(stage.work.kv_disk_bytes());
  *status->mutable_replicas() = stage.work.replicas();
  *status->mutable_activations() = stage.work.activations();
  status->set_link_wire(stage.work.link_wire());
  status->set_link_note(stage.work.link_note());
  if (!stage.busy_us || !stage.rows) return;
  const int64_t now_us = worker.report_ms() * 1000;
  status->set_window_ms(static_cast<uint32_t>(stage.busy_us->SpanUs(now_us) / 1000));
  status->set_idle_share(static_cast<float>(IdleShare(*stage.busy_us, now_us)));
  status->set_rows_per_s(static_cast<float>(stage.rows->PerSecond(now_us)));
}

void StageHost::OnWorkerReport(Device* device) {
  const int64_t now_us = device->worker->report_ms() * 1000;
  for (const wire::StageWork& work : device->worker->report().stages()) {
    const auto found = stages_.find(StageKeyOf(work.epoch(), work.stage()));
    if (found == stages_.end() || found->second.device != device) continue;
    Stage& stage = found->second;
    // The counters of an earlier stage with the same key may have been greater.
    const bool continues =
        work.busy_us() >= stage.work.busy_us() && work.rows() >= stage.work.rows();
    if (stage.state == State::kServing && !stage.busy_us) {
      stage.busy_us.emplace(now_us);
      stage.rows.emplace(now_us);
    } else if (stage.busy_us && continues) {
      stage.busy_us->Add(now_us, static_cast<double>(work.busy_us() - stage.work.busy_us()));
      stage.rows->Add(now_us, static_cast<double>(work.rows() - stage.work.rows()));
    }
    stage.work = work;
  }
  UnloadUnknownStages(device);
}

std::vector<wire::StageStatus> StageHost::Stages() const {
  for (const auto& [name, device] : devices_) {
    if (device->worker != nullptr) device->worker->Refresh();
  }
  std::vector<wire::StageStatus> all;
  for (const auto& [key, stage] : stages_) FillStatus(stage, &all.emplace_back());
  return all;
}

uint64_t StageHost::BytesOn(const std::string& device) const {
  uint64_t bytes = 0;
  for (const auto& [key, stage] : stages_) {
    if (!stage.loaded || stage.state == State::kFailed) continue;
    const wire::StageInfo& info = stage.info;
    if (device == kCpuDevice) bytes += info.host_bytes() + info.checkpoint_bytes();
    if (stage.spec.device() != device) continue;
    bytes += info.device_bytes() + info.kv_bytes() + info.compute_bytes();
  }
  return bytes;
}

uint64_t StageHost::MemoryLeftOn(const std::string& device) const {
  const uint64_t limit = options_.limits.MemoryOf(device);
  const uint64_t used = BytesOn(device);
  if (limit == 0) return 0;
  return used < limit ? limit - used : 1;
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
