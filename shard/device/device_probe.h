// Lists the compute devices of this machine, and measures how fast ggml is on them: the planner
// places layers by these figures, not by data sheets.
//
// Runs in a process of its own (node/measure/device_benchmark.h), because a device's driver may
// abort. Any thread; blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct ggml_backend_device;

namespace strata {

inline constexpr char kCpuDevice[] = "CPU";  // as ggml names it

// A device as ggml lists it. Accelerators that only help the CPU (BLAS) are part of it.
struct DeviceFacts {
  std::string name;         // "CPU", "CUDA0", "Vulkan0", "Metal"
  std::string description;  // the maker's name for it
  enum class Kind { kCpu, kGpu, kIntegratedGpu } kind = Kind::kCpu;
  std::string bus_id;  // of a PCI device, else empty
  uint64_t memory_total_bytes = 0;
  uint64_t memory_free_bytes = 0;
  // Its memory is the machine's, shared with the CPU (unified memory, integrated GPUs).
  bool shares_machine_memory = false;
};
std::vector<DeviceFacts> ListDevices();

// The kind of a ggml device. A software device, such as Mesa's, is the CPU.
DeviceFacts::Kind DeviceKind(ggml_backend_device* device);

// Whether a ggml device has memory of its own.
bool HasOwnMemory(ggml_backend_device* device);

// Free bytes of a ggml device: where its memory is the machine's, at most AvailableBytes(), since a
// control group or a busy machine may leave less than its driver reports.
uint64_t DeviceFreeBytes(ggml_backend_device* device);

// Rows of a batch for which speeds are measured: decoding one sequence, a few, many, and a prompt.
inline constexpr std::array<uint32_t, 5> kProbeBatches = {1, 4, 8, 16, 128};

// How fast a matrix of one type is multiplied by a batch.
struct TypeSpeed {
  std::string type;  // as ggml names it: "q4_K"
  // Bytes of the matrix processed per second, for each of kProbeBatches. For one row memory or
  // unpacking is the limit, for 128 rows arithmetic.
  std::array<double, kProbeBatches.size()> bytes_per_s = {};
  // The same for experts with as many rows each, which have other kernels; 0: not measured.
  std::array<double, kProbeBatches.size()> expert_bytes_per_s = {};
};

struct DeviceSpeed {
  double memory_bytes_per_s = 0;  // the fastest measured read of weights
  // Cost of a graph operation other than a matrix product: fixed, and for each number.
  double op_s = 0;
  double op_float_s = 0;
  std::vector<TypeSpeed> types;  // supported types for which the time sufficed
  absl::Duration took;
};

struct ProbeOptions {
  std::string device = "CPU";
  uint32_t n_threads = 1;                     // CPU only
  absl::Duration budget = absl::Seconds(4);   // types for which it does not suffice are omitted
  uint64_t working_set_bytes = 160ull << 20;  // of weights, larger than most caches
  bool large_matrices = false;                // ProbeDevice() sets it for a GPU
};

// kInvalidArgument: no such device; kResourceExhausted: not even a small working set fits;
// kInternal: ggml cannot compute on it.
absl::StatusOr<DeviceSpeed> ProbeDevice(const ProbeOptions& options);

}  // namespace strata
