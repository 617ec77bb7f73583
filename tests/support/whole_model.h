// A whole model run by libllama alone, with which chained stages are compared. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llama.h"

namespace strata::testing {

struct BatchRow {
  int32_t token = 0;
  int32_t position = 0;
  int32_t slot = 0;
  bool wants_logits = false;
};

struct WholeModelOptions {
  uint32_t n_ctx = 128;  // positions per slot
  uint32_t n_seq_max = 4;
  uint32_t n_batch = 64;
  bool kv_unified = false;  // all slots share the cells of one cache
};

class WholeModel {
 public:
  static absl::StatusOr<std::unique_ptr<WholeModel>> Open(const std::string& path,
                                                          const WholeModelOptions& options);
  ~WholeModel();

  // Logits of the rows that want them, one after the other: [outputs, n_vocab].
  absl::StatusOr<std::vector<float>> Decode(const std::vector<BatchRow>& rows);

  void Drop(int32_t slot);
  void Trim(int32_t slot, int32_t begin);
  void Copy(int32_t slot, int32_t from);
  // Forgets positions [begin + delta, begin) and moves those from `begin` on into their place.
  void Shift(int32_t slot, int32_t begin, int32_t delta);

  const llama_model* model() const { return model_; }

 private:
  WholeModel() = default;

  bool kv_unified_ = false;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
};

// The embedding of a sequence that libllama pools itself, in one batch, made of length 1.
absl::StatusOr<std::vector<float>> EmbeddingOf(const std::string& path,
                                               const std::vector<int32_t>& tokens,
                                               enum llama_pooling_type pooling);

}  // namespace strata::testing
