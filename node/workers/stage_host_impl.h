// Shared by the parts of StageHost: stage_host.cc has the workers and the status of stages,
// stage_host_load.cc loading, stage_host_calls.cc the calls on a stage. Loop thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "node/workers/stage_host.h"
#include "transport/base/epoch.h"

namespace strata {

inline StageKey KeyOf(const wire::StageSpec& spec) {
  return StageKeyOf(spec.epoch(), spec.stage());
}

class StageHost::Device final : public WorkerProcess::Observer {
 public:
  Device(StageHost* host, std::string name) : name(std::move(name)), host_(host) {}
  void OnWorkerReady() override { host_->OnWorkerReady(this); }
  void OnWorkerDied(const WorkerDeath& death) override { host_->OnWorkerDied(this, death); }
  void OnWorkerReport() override { host_->OnWorkerReport(this); }

  const std::string name;
  std::unique_ptr<WorkerProcess> worker;  // while it runs

 private:
  StageHost* const host_;
};

// The progress of a fetch, written by its thread and read on the loop.
struct StageHost::FetchProgress {
  std::atomic<uint64_t> bytes_done{0}, bytes_total{0};
};

}  // namespace strata
