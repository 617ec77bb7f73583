#include "shard/device/prober.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ggml-alloc.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// Of one matrix, as models of one or two billion weights have them. On a CPU larger ones are faster
// by a tenth or less.
constexpr int64_t kColumns = 2048;
constexpr int64_t kRows = 4096;
// A GPU takes about as long to begin with a matrix as for those: an H200 read 0.44 TB/s of them,
// and 1.1 TB/s of a model of 7 billion weights. So it has the matrices of such a model.
constexpr int64_t kGpuColumns = 4096;
constexpr int64_t kGpuRows = 14336;
constexpr int64_t kExpertRows = 768;
constexpr uint64_t kExpertBytesMax = 64ull << 20;  // of all experts
constexpr int kPasses = 3;  // the middle one counts: that is what steps take, mostly
// Longer passes are measured once.
constexpr double kLongPassSeconds = 0.02;
// Still longer passes use fewer bytes. Software devices would take seconds otherwise.
constexpr double kPassSecondsMax = 0.2;
constexpr int kBudgetsForTheFirst = 10;
constexpr int kOpBlocks = 16;
constexpr int64_t kOpRowsMore = 15;
constexpr int kSourceRows = 16;
// Of a quota: what a thread gets over so long does not depend on where in a period it began.
constexpr int kQuotaPeriods = 5;
constexpr absl::Duration kQuotaTimeMin = absl::Milliseconds(200);
constexpr size_t kSlowdownsMore = 2;

// The usual types of models, the commonest first; f16 is also the cache's.
constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_K, GGML_TYPE_F16,  GGML_TYPE_Q8_0,   GGML_TYPE_Q4_0,
                                GGML_TYPE_Q6_K, GGML_TYPE_Q5_K, GGML_TYPE_MXFP4,  GGML_TYPE_BF16,
                                GGML_TYPE_Q3_K, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_NL, GGML_TYPE_F32};
// The usual types of experts.
constexpr ggml_type kExpertTypes[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K,
                                      GGML_TYPE_Q8_0, GGML_TYPE_Q5_K, GGML_TYPE_MXFP4,
                                      GGML_TYPE_Q3_K, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_NL};

ggml_context_ptr NoAllocContext(size_t n_tensors) {
  return ggml_context_ptr(ggml_init({
      .mem_size = n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false),
      .mem_buffer = nullptr,
      .no_alloc = true,
  }));
}

// A matrix's bytes: a few rows of numbers around zero, packed as `type`, over and over.
std::vector<uint8_t> PackedRows(ggml_type type, int64_t columns, int64_t rows) {
  std::vector<float> numbers(static_cast<size_t>(kSourceRows * columns));
  uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' linear congruence
    number = static_cast<float>(state >> 8) / 16777216.0f - 0.5f;
  }
  const size_t part = ggml_row_size(type, columns) * kSourceRows;
  std::vector<uint8_t> bytes(part * static_cast<size_t>(rows / kSourceRows));
  ggml_quantize_chunk(type, numbers.data(), bytes.data(), 0, kSourceRows, columns, nullptr);
  for (size_t at = part; at < bytes.size(); at += part) {
    std::copy_n(bytes.begin(), part, bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return bytes;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Everything takes so many times longer.
void Slow(double slowdown, DeviceSpeed* speed) {
  speed->op_s *= slowdown;
  speed->op_float_s *= slowdown;
  for (TypeSpeed& type : speed->types) {
    for (double& each : type.bytes_per_s) each /= slowdown;
    for (double& each : type.expert_bytes_per_s) each /= slowdown;
  }
}

}  // namespace

Prober::Prober(ggml_backend_dev_t device, ggml_backend_t backend, const ProbeOptions& options,
               std::optional<absl::Duration> quota_period)
    : device_(device),
      backend_(backend),
      columns_(options.large_matrices ? kGpuColumns : kColumns),
      rows_(options.large_matrices ? kGpuRows : kRows),
      options_(options),
      quota_period_(quota_period),
      start_(SteadyTime::Now()),
      limit_(kBudgetsForTheFirst * options.budget) {}

bool Prober::Multiplies(ggml_type type, Use use, ggml_backend_buffer_type_t buffer_type) const {
  const ggml_context_ptr context = NoAllocContext(4);
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns_, 1);
  ggml_tensor* weights = nullptr;
  ggml_tensor* product = nullptr;
  if (use == Use::kDense) {
    weights = ggml_new_tensor_2d(context.get(), type, columns_, rows_);
    product = ggml_mul_mat(context.get(), weights, input);
  } else {
    weights = ggml_new_tensor_3d(context.get(), type, columns_, kExpertRows, 8);
    ggml_tensor* ids = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 8, 1);
    product = ggml_mul_mat_id(context.get(), weights, input, ids);
  }
  const ggml_backend_buffer_ptr none(ggml_backend_buft_alloc_buffer(buffer_type, 0));
  weights->buffer = none.get();
  return ggml_backend_dev_supports_op(device_, product);
}

ggml_backend_buffer_type_t Prober::WeightBuffer(ggml_type type, Use use) const {
  const auto extra =
      reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device_), "ggml_backend_dev_get_extra_bufts"));
  if (extra != nullptr) {
    for (ggml_backend_buffer_type_t* each = extra(device_); each != nullptr && *each != nullptr;
         ++each) {
      if (Multiplies(type, use, *each)) return *each;
    }
  }
  ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(device_);
  return Multiplies(type, use, plain) ? plain : nullptr;
}

std::optional<Prober::Weights> Prober::MakeWeights(ggml_type type, Use use) const {
  ggml_backend_buffer_type_t buffer_type = WeightBuffer(type, use);
  if (buffer_type == nullptr) return std::nullopt;
  const bool dense = use == Use::kDense;
  const std::vector<uint8_t> bytes = PackedRows(type, columns_, dense ? rows_ : kExpertRows);
  uint64_t bytes_max =
      dense ? options_.working_set_bytes : std::min(options_.working_set_bytes, kExpertBytesMax);
  if (dense && options_.large_matrices) bytes_max = std::max<uint64_t>(bytes_max, 2 * bytes.size());
  if (bytes.size() > bytes_max) return std::nullopt;
  Weights weights;
  weights.bytes_each = bytes.size();
  weights.n = static_cast<size_t>(bytes_max) / bytes.size();
  const size_t n_tensors = dense ? weights.n : 1;
  weights.context = NoAllocContext(n_tensors);
  for (size_t i = 0; i < n_tensors; ++i) {
    weights.tensors.push_back(
        dense ? ggml_new_tensor_2d(weights.context.get(), type, columns_, rows_)
              : ggml_new_tensor_3d(weights.context.get(), type, columns_, kExpertRows,
                                   static_cast<int64_t>(weights.n)));
  }
  weights.buffer.reset(
      ggml_backend_alloc_ctx_tensors_from_buft(weights.context.get(), buffer_type));
  if (weights.buffer == nullptr) return std::nullopt;
  ggml_backend_buffer_set_usage(weights.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  if (dense) {
    for (ggml_tensor* matrix : weights.tensors) {
      ggml_backend_tensor_set(matrix, bytes.data(), 0, bytes.size());
      if (OutOfTime()) return std::nullopt;
    }
  } else {  // buffers that repack take a tensor only as a whole
    std::vector<uint8_t> all(bytes.size() * weights.n);
    for (size_t at = 0; at < all.size(); at += bytes.size()) {
      std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ggml_backend_tensor_set(weights.tensors[0], all.data(), 0, all.size());
  }
  return weights;
}

double Prober::Seconds() const {
  if (!quota_period_) return absl::ToDoubleSeconds(SteadyTime::Now() - start_);
  timespec used = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(used)) / std::max(1u, options_.n_threads);
}

std::optional<double> Prober::TimeGraph(ggml_cgraph* graph) const {
  const double begin = Seconds();
  if (ggml_backend_graph_compute(backend_, graph) != GGML_STATUS_SUCCESS) return std::nullopt;
  ggml_backend_synchronize(backend_);
  return Seconds() - begin;
}

std::optional<double> Prober::TimePass(const Weights& weights, size_t first, size_t n,
                                       uint32_t batch) const {
  const bool dense = weights.tensors.size() == weights.n;
  const size_t n_tensors = dense ? n + 1 : 3;
  const ggml_context_ptr context = NoAllocContext(n_tensors);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), n_tensors, false);
  ggml_tensor* input = nullptr;
  ggml_tensor* ids = nullptr;
  if (dense) {
    input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns_, batch);  // [batch, columns]
    for (size_t i = 0; i < n; ++i) {
      ggml_tensor* matrix = weights.tensors[(first + i) % weights.n];
      ggml_build_forward_expand(graph, ggml_mul_mat(context.get(), matrix, input));
    }
  } else {  // every row takes all n experts
    input = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, columns_, 1, batch);
    ids = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, static_cast<int64_t>(n), batch);
    ggml_build_forward_expand(graph,
                              ggml_mul_mat_id(context.get(), weights.tensors[0], input, ids));
  }
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend_));
  if (buffer == nullptr) return std::nullopt;
  const std::vector<float> ones(static_cast<size_t>(columns_) * batch, 1.0f);
  ggml_backend_tensor_set(input, ones.data(), 0, ones.size() * sizeof(float));
  if (ids != nullptr) {
    std::vector<int32_t> which(n * batch);
    for (size_t i = 0; i < which.size(); ++i) {
      which[i] = static_cast<int32_t>((first + i % n) % weights.n);
    }
    ggml_backend_tensor_set(ids, which.data(), 0, which.size() * sizeof(int32_t));
  }
  return TimeGraph(graph);
}

std::optional<Prober::Speeds> Prober::Measure(ggml_type type, Use use) const {
  const std::optional<Weights> weights = MakeWeights(type, use);
  if (!weights) return std::nullopt;
  Speeds speeds = {};
  size_t next = 0;
  for (size_t i = 0; i < kProbeBatches.size(); ++i) {
    const uint32_t batch = kProbeBatches[i];
    // The more rows, the more arithmetic counts and the less memory: fewer bytes will do. But other
    // ones in each pass, which are in no cache any more, as those of a model.
    size_t n = std::max<size_t>(1, weights->n / batch);
    if (i > 0) {  // as slow for each row as with fewer of them, at worst
      const double bytes_max =
          kPassSecondsMax * speeds[i - 1] * kProbeBatches[i - 1] / static_cast<double>(batch);
      n = std::clamp<size_t>(static_cast<size_t>(bytes_max) / weights->bytes_each, 1, n);
    }
    const auto pass = [&] {
      const std::optional<double> seconds = TimePass(*weights, next, n, batch);
      next += n;
      return seconds;
    };
    // The first warms up: kernels are compiled, pages touched.
    const std::optional<double> first = pass();
    if (!first) return std::nullopt;
    std::vector<double> passes;
    for (int j = 0; j < (*first > kLongPassSeconds ? 1 : kPasses); ++j) {
      const std::optional<double> seconds = OutOfTime() ? std::nullopt : pass();
      if (!seconds || *seconds <= 0) return std::nullopt;
      passes.push_back(*seconds);
    }
    speeds[i] = static_cast<double>(weights->bytes_each) * static_cast<double>(n) / Median(passes);
  }
  return speeds;
}

// The average of what lies between the matrices of a layer: a norm, its weights, an activation, a
// sum, each over a row.
std::optional<double> Prober::MeasureOp(int64_t rows) const {
  constexpr int kOps = 4 * kOpBlocks;
  const ggml_context_ptr context = NoAllocContext(kOps + 1);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kOps + 1, false);
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns_, rows);
  ggml_tensor* x = input;
  for (int i = 0; i < kOpBlocks; ++i) {
    ggml_tensor* norm = ggml_mul(context.get(), ggml_rms_norm(context.get(), x, 1e-5f), input);
    x = ggml_add(context.get(), ggml_silu(context.get(), norm), x);
  }
  ggml_build_forward_expand(graph, x);
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend_));
  if (buffer == nullptr) return std::nullopt;
  const std::vector<float> ones(static_cast<size_t>(columns_ * rows), 1.0f);
  ggml_backend_tensor_set(input, ones.data(), 0, ones.size() * sizeof(float));
  std::vector<double> passes;
  for (int i = 0; i < 4 * kPasses; ++i) {
    const std::optional<double> seconds = TimeGraph(graph);
    if (!seconds) return std::nullopt;
    passes.push_back(*seconds);
  }
  return Median(std::move(passes)) / kOps;
}

std::optional<double> Prober::MeasureSlowdown() const {
  if (!quota_period_) return 1;
  const ggml_context_ptr context = NoAllocContext(3);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 3, false);
  ggml_tensor* matrix = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns_, 64);
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, columns_, 4);
  ggml_build_forward_expand(graph, ggml_mul_mat(context.get(), matrix, input));
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend_));
  if (buffer == nullptr) return std::nullopt;
  ggml_backend_buffer_clear(buffer.get(), 0);
  const absl::Duration enough = std::max(kQuotaTimeMin, kQuotaPeriods * *quota_period_);
  // It ends with the first graph that is done after that, at the beginning of a period then.
  const SteadyTime begin = SteadyTime::Now();
  const double used = Seconds();
  while (SteadyTime::Now() - begin < enough) {
    if (!TimeGraph(graph)) return std::nullopt;
  }
  return std::max(1.0, absl::ToDoubleSeconds(SteadyTime::Now() - begin) / (Seconds() - used));
}

absl::StatusOr<DeviceSpeed> Prober::Run() {
  DeviceSpeed speed;
  const std::optional<double> one_row_s = MeasureOp(1), more_rows_s = MeasureOp(1 + kOpRowsMore);
  std::optional<double> slowdown = MeasureSlowdown();
  if (!one_row_s || !more_rows_s || !slowdown) {
    return absl::InternalError(
        absl::StrCat(options_.device, ": ggml cannot compute on this device"));
  }
  const double row_s = std::clamp((*more_rows_s - *one_row_s) / kOpRowsMore, 0.0, *one_row_s);
  speed.op_s = *one_row_s - row_s;
  speed.op_float_s = row_s / columns_;
  for (ggml_type type : kTypes) {
    if (OutOfTime()) break;
    const std::optional<Speeds> dense = Measure(type, Use::kDense);
    if (!dense) continue;
    TypeSpeed& each = speed.types.emplace_back();
    each.type = ggml_type_name(type);
    each.bytes_per_s = *dense;
    limit_ = options_.budget;
    // Other programs may have been busy during the other passes.
    if (quota_period_ && speed.types.size() <= kSlowdownsMore && !OutOfTime()) {
      slowdown = std::min(*slowdown, MeasureSlowdown().value_or(*slowdown));
    }
    if (std::find(std::begin(kExpertTypes), std::end(kExpertTypes), type) ==
        std::end(kExpertTypes)) {
      continue;
    }
    const std::optional<Speeds> experts = Measure(type, Use::kExperts);
    if (experts) each.expert_bytes_per_s = *experts;
  }
  if (speed.types.empty()) {
    return absl::InternalError(
        absl::StrCat(options_.device, ": no type of weights could be measured in ",
                     absl::FormatDuration(options_.budget), "; a longer time may do"));
  }
  Slow(*slowdown, &speed);
  for (const TypeSpeed& each : speed.types) {
    speed.memory_bytes_per_s = std::max(speed.memory_bytes_per_s, each.bytes_per_s[0]);
  }
  speed.took = SteadyTime::Now() - start_;
  return speed;
}

}  // namespace strata
