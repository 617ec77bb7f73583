// One measurement of one device (device_probe.h): multiplies matrices with ggml as libllama does,
// in the buffers that it would choose. Used by one thread; blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "shard/device/device_probe.h"
#include "transport/base/steady_time.h"

namespace strata {

class Prober {
 public:
  // All outlive it. `quota_period`: of a control group's quota that the threads exceed; none: they
  // do not.
  Prober(ggml_backend_dev_t device, ggml_backend_t backend, const ProbeOptions& options,
         std::optional<absl::Duration> quota_period);

  // kInternal: ggml cannot compute on it, or there is not time for one type.
  absl::StatusOr<DeviceSpeed> Run();

 private:
  // Matrices that every row passes, or experts of which each row has its own.
  enum class Use { kDense, kExperts };
  struct Weights {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor*> tensors;  // kDense: [rows, columns] each; kExperts: one for all
    size_t n = 0;                       // matrices or experts
    size_t bytes_each = 0;
  };
  using Speeds = decltype(TypeSpeed::bytes_per_s);

  // The buffer type in which libllama would keep such weights: one that repacks them for the
  // device's kernels if there is one.
  ggml_backend_buffer_type_t WeightBuffer(ggml_type type, Use use) const;
  bool Multiplies(ggml_type type, Use use, ggml_backend_buffer_type_t buffer_type) const;
  std::optional<Weights> MakeWeights(ggml_type type, Use use) const;
  // Bytes per second for each of kProbeBatches; none on failure or when time ran out.
  std::optional<Speeds> Measure(ggml_type type, Use use) const;
  // Seconds for one pass over `n` matrices from `first` on, cyclically, with `batch` rows for each;
  // none if it failed.
  std::optional<double> TimePass(const Weights& weights, size_t first, size_t n,
                                 uint32_t batch) const;
  std::optional<double> TimeGraph(ggml_cgraph* graph) const;
  // Seconds of an operation on so many rows.
  std::optional<double> MeasureOp(int64_t rows) const;
  // Factor by which real times are longer than Seconds().
  std::optional<double> MeasureSlowdown() const;

  // Seconds since some moment, as far as this process was let run: a quota lets it run at full
  // speed for a part of each period, and what a pass takes would depend on when it began.
  double Seconds() const;
  bool OutOfTime() const { return SteadyTime::Now() - start_ > limit_; }

  ggml_backend_device* const device_;
  ggml_backend* const backend_;
  const int64_t columns_, rows_;  // of a matrix
  const ProbeOptions& options_;
  const std::optional<absl::Duration> quota_period_;
  const SteadyTime start_;
  absl::Duration limit_;  // the budget; longer for the first type, so that slow devices have one
};

}  // namespace strata
