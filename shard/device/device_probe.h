// What the compute devices of this machine are, and how fast ggml really is on them: the planner
// places layers by these figures and by nothing that a data sheet says.
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
  // Its memory is the machine's: what it takes, the CPU lacks (unified memory, integrated GPUs).
  bool shares_machine_memory = false;
};
std::vector<DeviceFacts> ListDevices();

// What a device of ggml's is. A software device, as Mesa's, is the CPU.
DeviceFacts::Kind DeviceKind(ggml_backend_device* device);

// Whether a device of ggml's has memory that is not the machine's.
bool HasOwnMemory(ggml_backend_device* device);

// What a device of ggml's still has, bytes: where its memory is the machine's, no more than
// AvailableBytes(), since a control group or a busy machine may leave less than its driver
// believes.
uint64_t DeviceFreeBytes(ggml_backend_device* device);

// Rows of a batch for which speeds are measured: decoding one text, a few, many, and a prompt.
inline constexpr std::array<uint32_t, 5> kProbeBatches = {1, 4, 8, 16, 128};

// How fast a matrix of one type is multiplied by a batch.
struct TypeSpeed {
  std::string type;  // as ggml names it: "q4_K"
  // Bytes of the matrix done with per second, for each of kProbeBatches. For one row this is what
  // memory allows or what unpacking costs, for 128 it is arithmetic.
  std::array<double, kProbeBatches.size()> bytes_per_s = {};
  // The same for experts with so many rows each, which have other kernels; 0: not measured.
  std::array<double, kProbeBatches.size()> expert_bytes_per_s = {};
};

struct DeviceSpeed {
  double memory_bytes_per_s = 0;  // the fastest that weights were read at
  // Of one operation of a graph that multiplies no matrix: that it is there, and for each number.
  double op_s = 0;
  double op_float_s = 0;
  std::vector<TypeSpeed> types;  // those that the device can multiply and time allowed
  absl::Duration took;
};

struct ProbeOptions {
  std::string device = "CPU";
  uint32_t n_threads = 1;                     // CPU only
  absl::Duration budget = absl::Seconds(4);   // types for which it does not suffice are left out
  uint64_t working_set_bytes = 160ull << 20;  // of weights, larger than most caches
  bool large_matrices = false;                // ProbeDevice() sets it for a GPU
};

// kInvalidArgument: no such device; kResourceExhausted: not even a small working set fits;
// kInternal: ggml cannot compute on it.
absl::StatusOr<DeviceSpeed> ProbeDevice(const ProbeOptions& options);

}  // namespace strata
