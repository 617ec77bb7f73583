#include "shard/device/device_probe.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "shard/device/control_group.h"
#include "shard/device/engine.h"
#include "shard/device/memory.h"
#include "shard/device/prober.h"

namespace strata {
namespace {

constexpr uint64_t kWorkingSetMinBytes = 32ull << 20;
constexpr uint64_t kLargeWorkingSetBytes = 512ull << 20;  // of large matrices, at most: two of f32

DeviceFacts::Kind KindOf(const ggml_backend_dev_props& props) {
  // Mesa's Vulkan device without a GPU computes on the CPU, in its memory.
  if (absl::StartsWith(absl::StripAsciiWhitespace(props.description), "llvmpipe")) {
    return DeviceFacts::Kind::kCpu;
  }
  switch (props.type) {
    case GGML_BACKEND_DEVICE_TYPE_GPU:
      return DeviceFacts::Kind::kGpu;
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
      return DeviceFacts::Kind::kIntegratedGpu;
    default:
      return DeviceFacts::Kind::kCpu;
  }
}

bool SharesMachineMemory(const ggml_backend_dev_props& props) {
#ifdef __APPLE__
  return true;
#else
  return KindOf(props) != DeviceFacts::Kind::kGpu;
#endif
}

}  // namespace

DeviceFacts::Kind DeviceKind(ggml_backend_device* device) {
  ggml_backend_dev_props props;
  ggml_backend_dev_get_props(device, &props);
  return KindOf(props);
}

bool HasOwnMemory(ggml_backend_device* device) {
  ggml_backend_dev_props props;
  ggml_backend_dev_get_props(device, &props);
  return !SharesMachineMemory(props);
}

uint64_t DeviceFreeBytes(ggml_backend_device* device) {
  ggml_backend_dev_props props;
  ggml_backend_dev_get_props(device, &props);
  const uint64_t free_bytes = props.memory_free;
  return SharesMachineMemory(props) ? std::min(free_bytes, AvailableBytes()) : free_bytes;
}

std::vector<DeviceFacts> ListDevices() {
  StartEngine();
  std::vector<DeviceFacts> devices;
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    const bool computes = props.type == GGML_BACKEND_DEVICE_TYPE_CPU ||
                          props.type == GGML_BACKEND_DEVICE_TYPE_GPU ||
                          props.type == GGML_BACKEND_DEVICE_TYPE_IGPU;
    if (!computes) continue;
    DeviceFacts facts;
    facts.name = props.name;
    facts.description = absl::StripAsciiWhitespace(props.description);
    facts.kind = KindOf(props);
    if (props.device_id != nullptr) facts.bus_id = props.device_id;
    facts.memory_total_bytes = props.memory_total;
    facts.memory_free_bytes = DeviceFreeBytes(device);
    facts.shares_machine_memory = SharesMachineMemory(props);
    devices.push_back(std::move(facts));
  }
  return devices;
}

absl::StatusOr<DeviceSpeed> ProbeDevice(const ProbeOptions& options) {
  if (auto known = FindDevice(options.device); !known.ok()) return known.status();
  ggml_backend_dev_t device = ggml_backend_dev_by_name(options.device.c_str());
  const ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
  if (backend == nullptr) {
    return absl::InternalError(absl::StrCat(options.device, ": the device does not start"));
  }
  const auto set_n_threads =
      reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"));
  if (set_n_threads != nullptr) {
    set_n_threads(backend.get(), static_cast<int>(std::max(1u, options.n_threads)));
  }
  const uint64_t free = DeviceFreeBytes(device);
  ProbeOptions sized = options;
  ggml_backend_dev_props props;
  ggml_backend_dev_get_props(device, &props);
  sized.large_matrices =
      KindOf(props) == DeviceFacts::Kind::kGpu && free / 4 >= kLargeWorkingSetBytes;
  // Not so much that a measurement would push another program out of memory.
  sized.working_set_bytes = std::min<uint64_t>(sized.working_set_bytes, free / 4);
  std::optional<absl::Duration> quota_period;
  if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
    const ControlGroup limits = ReadControlGroup();
    const double share = limits.cpu_cores / std::max(1u, options.n_threads);
    if (share < 1) {
      quota_period = limits.cpu_period;
      // Smaller working sets, so that as many types fit into the budget.
      sized.working_set_bytes =
          std::max(kWorkingSetMinBytes,
                   static_cast<uint64_t>(static_cast<double>(options.working_set_bytes) * share));
      sized.working_set_bytes = std::min<uint64_t>(sized.working_set_bytes, free / 4);
    }
  }
  if (sized.working_set_bytes < kWorkingSetMinBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(options.device, ": ", free >> 20,
                                                     " MiB are free, a measurement needs 128 MiB"));
  }
  return Prober(device, backend.get(), sized, quota_period).Run();
}

}  // namespace strata
