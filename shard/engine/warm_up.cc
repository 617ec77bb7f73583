#include "shard/engine/warm_up.h"

#include <algorithm>
#include <numeric>

#include "absl/types/span.h"
#include "shard/engine/llama_stage.h"
#include "shard/engine/stage.h"

namespace strata {
namespace {

// ggml multiplies a matrix by up to 8 rows with a kernel for that exact number (Vulkan's
// mul_mat_vec_max_cols, CUDA's MMVQ_MAX_BATCH_SIZE), by more rows with tiles of about
// three sizes.
constexpr uint32_t kTileRows[] = {128, 64, 32};
constexpr uint32_t kVectorRowsMax = 8;
// Mesa's software device compiles for seconds, on the CPU: only the sizes of most steps.
constexpr uint32_t kSoftwareRows[] = {16, 1};

}  // namespace

std::vector<uint32_t> WarmUpRows(DeviceFacts::Kind kind, bool own_memory, uint32_t n_rows_max) {
  std::vector<uint32_t> rows;
  const auto add = [&](uint32_t n) {
    n = std::min(n, n_rows_max);
    if (rows.empty() || n < rows.back()) rows.push_back(n);
  };
  if (kind == DeviceFacts::Kind::kCpu) {
    for (const uint32_t n : kSoftwareRows) add(n);
    return rows;
  }
  if (own_memory) add(n_rows_max);
  for (const uint32_t n : kTileRows) add(n);
  for (uint32_t n = kVectorRowsMax; n > 0; --n) add(n);
  return rows;
}

absl::Status WarmUp(const std::vector<uint32_t>& rows, LlamaStage* stage) {
  const Stage::Facts& facts = stage->facts();
  for (const uint32_t n : rows) {
    std::vector<int32_t> positions(n);
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int32_t> zeros(n, 0);  // tokens, and slots
    const std::vector<float> activations(facts.is_first ? 0 : size_t{n} * facts.n_embd, 0.0f);
    const uint32_t last = n - 1;
    Stage::Batch batch;
    if (facts.is_first) batch.tokens = zeros;
    batch.activations = activations;
    batch.positions = positions;
    batch.slots = zeros;
    if (facts.is_last) batch.output_rows = absl::MakeConstSpan(&last, 1);
    if (absl::Status status = stage->Decode(batch); !status.ok()) return status;
    stage->Erase();
  }
  return absl::OkStatus();
}

}  // namespace strata
