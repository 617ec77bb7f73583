#include "shard/device_probe.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "shard/control_group.h"
#include "shard/engine.h"
#include "shard/memory.h"

namespace strata {
namespace {

// Of one matrix: wide and tall enough that starting an operation costs little beside it.
constexpr int64_t kColumns = 4096;
constexpr int64_t kRows = 4096;
constexpr int kPasses = 3;  // the fastest counts: others may use the machine meanwhile
constexpr int kTinyOps = 256;
constexpr int kSourceRows = 16;
// Of a quota: what a thread gets over so long does not depend on where in a period it began.
constexpr int kQuotaPeriods = 5;
constexpr absl::Duration kQuotaTimeMin = absl::Milliseconds(200);
constexpr uint64_t kWorkingSetMinBytes = 32ull << 20;
constexpr uint64_t kWorkingSetQuotaBytes = 64ull << 20;

// The types that models are made of, the commonest first; f16 is the cache's as well.
constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_K, GGML_TYPE_F16,  GGML_TYPE_Q8_0,   GGML_TYPE_Q4_0,
                                GGML_TYPE_Q6_K, GGML_TYPE_Q5_K, GGML_TYPE_MXFP4,  GGML_TYPE_BF16,
                                GGML_TYPE_Q3_K, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_NL, GGML_TYPE_F32};

template <typename Fn>
Fn ProcAddress(ggml_backend_dev_t device, const char* name) {
  return reinterpret_cast<Fn>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

ggml_context_ptr NoAllocContext(size_t n_tensors) {
  return ggml_context_ptr(ggml_init({
      .mem_size = n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false),
      .mem_buffer = nullptr,
      .no_alloc = true,
  }));
}

// A matrix's bytes: a few rows of numbers around zero, packed as `type`, over and over.
std::vector<uint8_t> PackedMatrix(ggml_type type) {
  std::vector<float> numbers(kSourceRows * kColumns);
  uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' linear congruence
    number = static_cast<float>(state >> 8) / 16777216.0f - 0.5f;
  }
  const size_t part = ggml_row_size(type, kColumns) * kSourceRows;
  std::vector<uint8_t> bytes(part * (kRows / kSourceRows));
  ggml_quantize_chunk(type, numbers.data(), bytes.data(), 0, kSourceRows, kColumns, nullptr);
  for (size_t at = part; at < bytes.size(); at += part) {
    std::copy_n(bytes.begin(), part, bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return bytes;
}

class Prober {
 public:
  // `quota_period`: of a control group's quota that the threads exceed; none: they do not.
  Prober(ggml_backend_dev_t device, ggml_backend_t backend, const ProbeOptions& options,
         std::optional<absl::Duration> quota_period)
      : device_(device),
        backend_(backend),
        options_(options),
        quota_period_(quota_period),
        start_(absl::Now()) {}

  absl::StatusOr<DeviceSpeed> Run();

 private:
  // The buffer type in which libllama would keep such weights: one that repacks them for the
  // device's kernels if there is one.
  ggml_backend_buffer_type_t WeightBuffer(ggml_type type) const;
  bool Multiplies(ggml_type type, ggml_backend_buffer_type_t buffer_type) const;
  std::optional<TypeSpeed> MeasureType(ggml_type type) const;
  // Seconds for one pass over `matrices` with `batch` rows of input; none if it failed.
  std::optional<double> TimePass(const std::vector<ggml_tensor*>& matrices, uint32_t batch) const;
  std::optional<double> TimeGraph(ggml_cgraph* graph, int passes) const;
  std::optional<double> MeasureOp() const;
  std::optional<double> MeasureSlowdown() const;

  // Seconds since some moment, as far as this process was let run: a quota lets it run at full
  // speed for a part of each period, and what a pass takes would depend on when it began.
  double Seconds() const;
  bool OutOfTime() const { return absl::Now() - start_ > options_.budget; }

  ggml_backend_dev_t const device_;
  ggml_backend_t const backend_;
  const ProbeOptions& options_;
  const std::optional<absl::Duration> quota_period_;
  const absl::Time start_;
};

bool Prober::Multiplies(ggml_type type, ggml_backend_buffer_type_t buffer_type) const {
  const ggml_context_ptr context = NoAllocContext(3);
  ggml_tensor* weights = ggml_new_tensor_2d(context.get(), type, kColumns, kRows);
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kColumns, 1);
  ggml_tensor* product = ggml_mul_mat(context.get(), weights, input);
  const ggml_backend_buffer_ptr none(ggml_backend_buft_alloc_buffer(buffer_type, 0));
  weights->buffer = none.get();
  return ggml_backend_dev_supports_op(device_, product);
}

ggml_backend_buffer_type_t Prober::WeightBuffer(ggml_type type) const {
  const auto extra =
      ProcAddress<ggml_backend_dev_get_extra_bufts_t>(device_, "ggml_backend_dev_get_extra_bufts");
  if (extra != nullptr) {
    for (ggml_backend_buffer_type_t* each = extra(device_); each != nullptr && *each != nullptr;
         ++each) {
      if (Multiplies(type, *each)) return *each;
    }
  }
  ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(device_);
  return Multiplies(type, plain) ? plain : nullptr;
}

double Prober::Seconds() const {
  if (!quota_period_) return absl::ToDoubleSeconds(absl::Now() - start_);
  timespec used = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(used)) / std::max(1u, options_.n_threads);
}

std::optional<double> Prober::TimeGraph(ggml_cgraph* graph, int passes) const {
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const double begin = Seconds();
    if (ggml_backend_graph_compute(backend_, graph) != GGML_STATUS_SUCCESS) return std::nullopt;
    ggml_backend_synchronize(backend_);
    const double seconds = Seconds() - begin;
    best = pass == 0 ? seconds : std::min(best, seconds);
    if (OutOfTime()) break;
  }
  return best;
}

std::optional<double> Prober::TimePass(const std::vector<ggml_tensor*>& matrices,
                                       uint32_t batch) const {
  const ggml_context_ptr context = NoAllocContext(matrices.size() + 1);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), matrices.size() + 1, false);
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kColumns, batch);
  for (ggml_tensor* matrix : matrices) {
    ggml_build_forward_expand(graph, ggml_mul_mat(context.get(), matrix, input));
  }
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend_));
  if (buffer == nullptr) return std::nullopt;
  const std::vector<float> ones(static_cast<size_t>(kColumns) * batch, 1.0f);
  ggml_backend_tensor_set(input, ones.data(), 0, ones.size() * sizeof(float));
  if (!TimeGraph(graph, 1)) return std::nullopt;  // warms up: kernels are compiled, pages touched
  return TimeGraph(graph, kPasses);
}

std::optional<TypeSpeed> Prober::MeasureType(ggml_type type) const {
  ggml_backend_buffer_type_t buffer_type = WeightBuffer(type);
  if (buffer_type == nullptr) return std::nullopt;
  if (ggml_row_size(type, kColumns) * kRows > options_.working_set_bytes) return std::nullopt;
  const std::vector<uint8_t> bytes = PackedMatrix(type);
  const size_t n =
      std::max<size_t>(1, static_cast<size_t>(options_.working_set_bytes) / bytes.size());
  const ggml_context_ptr context = NoAllocContext(n);
  std::vector<ggml_tensor*> matrices;
  for (size_t i = 0; i < n; ++i) {
    matrices.push_back(ggml_new_tensor_2d(context.get(), type, kColumns, kRows));
  }
  const ggml_backend_buffer_ptr buffer(
      ggml_backend_alloc_ctx_tensors_from_buft(context.get(), buffer_type));
  if (buffer == nullptr) return std::nullopt;
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (ggml_tensor* matrix : matrices) {
    ggml_backend_tensor_set(matrix, bytes.data(), 0, bytes.size());
    if (OutOfTime()) return std::nullopt;
  }

  TypeSpeed speed;
  speed.type = ggml_type_name(type);
  for (size_t i = 0; i < kProbeBatches.size(); ++i) {
    const uint32_t batch = kProbeBatches[i];
    // The more rows, the more arithmetic counts and the less memory: fewer bytes will do.
    matrices.resize(std::max<size_t>(1, n / batch));
    const std::optional<double> seconds = TimePass(matrices, batch);
    if (!seconds || *seconds <= 0 || OutOfTime()) return std::nullopt;
    speed.bytes_per_s[i] =
        static_cast<double>(bytes.size()) * static_cast<double>(matrices.size()) / *seconds;
  }
  return speed;
}

std::optional<double> Prober::MeasureOp() const {
  const ggml_context_ptr context = NoAllocContext(kTinyOps + 1);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kTinyOps + 1, false);
  ggml_tensor* x = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 32);
  ggml_tensor* input = x;
  for (int i = 0; i < kTinyOps; ++i) x = ggml_scale(context.get(), x, 1.0f);
  ggml_build_forward_expand(graph, x);
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend_));
  if (buffer == nullptr) return std::nullopt;
  const std::vector<float> ones(32, 1.0f);
  ggml_backend_tensor_set(input, ones.data(), 0, ones.size() * sizeof(float));
  const std::optional<double> seconds = TimeGraph(graph, 2 * kPasses);
  if (!seconds) return std::nullopt;
  return *seconds / kTinyOps;
}

// How many times longer things take than Seconds() says.
std::optional<double> Prober::MeasureSlowdown() const {
  if (!quota_period_) return 1;
  const ggml_context_ptr context = NoAllocContext(3);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 3, false);
  ggml_tensor* matrix = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kColumns, 64);
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kColumns, 4);
  ggml_build_forward_expand(graph, ggml_mul_mat(context.get(), matrix, input));
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend_));
  if (buffer == nullptr) return std::nullopt;
  ggml_backend_buffer_clear(buffer.get(), 0);
  const absl::Duration enough = std::max(kQuotaTimeMin, kQuotaPeriods * *quota_period_);
  // It ends with the first graph that is done after that, at the beginning of a period then.
  const absl::Time begin = absl::Now();
  const double used = Seconds();
  while (absl::Now() - begin < enough) {
    if (!TimeGraph(graph, 1)) return std::nullopt;
  }
  return std::max(1.0, absl::ToDoubleSeconds(absl::Now() - begin) / (Seconds() - used));
}

absl::StatusOr<DeviceSpeed> Prober::Run() {
  DeviceSpeed speed;
  const std::optional<double> op_s = MeasureOp(), slowdown = MeasureSlowdown();
  if (!op_s || !slowdown) {
    return absl::InternalError(
        absl::StrCat(options_.device, ": ggml cannot compute on this device"));
  }
  speed.op_s = *op_s * *slowdown;
  for (ggml_type type : kTypes) {
    if (OutOfTime()) break;
    std::optional<TypeSpeed> measured = MeasureType(type);
    if (!measured) continue;
    for (double& bytes_per_s : measured->bytes_per_s) bytes_per_s /= *slowdown;
    speed.memory_bytes_per_s = std::max(speed.memory_bytes_per_s, measured->bytes_per_s[0]);
    speed.types.push_back(*std::move(measured));
  }
  if (speed.types.empty()) {
    return absl::InternalError(
        absl::StrCat(options_.device, ": no type of weights could be measured in ",
                     absl::FormatDuration(options_.budget), "; a longer time may do"));
  }
  speed.took = absl::Now() - start_;
  return speed;
}

}  // namespace

std::vector<DeviceFacts> ListDevices() {
  StartEngine();
  std::vector<DeviceFacts> devices;
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(ggml_backend_dev_get(i), &props);
    DeviceFacts facts;
    switch (props.type) {
      case GGML_BACKEND_DEVICE_TYPE_CPU:
        facts.kind = DeviceFacts::Kind::kCpu;
        break;
      case GGML_BACKEND_DEVICE_TYPE_GPU:
        facts.kind = DeviceFacts::Kind::kGpu;
        break;
      case GGML_BACKEND_DEVICE_TYPE_IGPU:
        facts.kind = DeviceFacts::Kind::kIntegratedGpu;
        break;
      default:
        continue;
    }
    facts.name = props.name;
    facts.description = absl::StripAsciiWhitespace(props.description);
    if (props.device_id != nullptr) facts.bus_id = props.device_id;
    facts.memory_total_bytes = props.memory_total;
    facts.memory_free_bytes = props.memory_free;
    facts.shares_machine_memory = facts.kind != DeviceFacts::Kind::kGpu;
#ifdef __APPLE__
    facts.shares_machine_memory = true;
#endif
    if (facts.shares_machine_memory) {
      // A control group or a busy machine may leave less than the driver believes.
      facts.memory_free_bytes = std::min(facts.memory_free_bytes, AvailableBytes());
    }
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
      ProcAddress<ggml_backend_set_n_threads_t>(device, "ggml_backend_set_n_threads");
  if (set_n_threads != nullptr) {
    set_n_threads(backend.get(), static_cast<int>(std::max(1u, options.n_threads)));
  }
  size_t free = 0, total = 0;
  ggml_backend_dev_memory(device, &free, &total);
  if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_GPU) {
    free = std::min<size_t>(free, AvailableBytes());
  }
  ProbeOptions sized = options;
  // Not so much that somebody else's program is pushed out for a measurement.
  sized.working_set_bytes = std::min<uint64_t>(sized.working_set_bytes, free / 4);
  std::optional<absl::Duration> quota_period;
  if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
    const ControlGroup limits = ReadControlGroup();
    const double share = limits.cpu_cores / std::max(1u, options.n_threads);
    if (share < 1) {
      quota_period = limits.cpu_period;
      // Less of everything, so that as many types fit into the budget.
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
