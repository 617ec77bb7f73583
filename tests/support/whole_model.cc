#include "tests/support/whole_model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "ggml-backend.h"

namespace strata::testing {

absl::StatusOr<std::unique_ptr<WholeModel>> WholeModel::Open(const std::string& path,
                                                             const WholeModelOptions& options) {
  auto whole = std::unique_ptr<WholeModel>(new WholeModel);
  llama_model_params model_params = llama_model_default_params();
  ggml_backend_dev_t no_devices[] = {nullptr};
  model_params.devices = no_devices;
  whole->model_ = llama_model_load_from_file(path.c_str(), model_params);
  if (whole->model_ == nullptr) return absl::InvalidArgumentError("libllama cannot load " + path);

  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.n_ctx * options.n_seq_max;
  params.n_seq_max = options.n_seq_max;
  params.n_batch = options.n_batch;
  params.n_ubatch = options.n_batch;
  params.kv_unified = options.kv_unified;
  params.swa_full = false;
  params.n_threads = 1;
  params.n_threads_batch = 1;
  whole->kv_unified_ = options.kv_unified;
  whole->context_ = llama_init_from_model(whole->model_, params);
  if (whole->context_ == nullptr) return absl::InternalError("no context for " + path);
  return whole;
}

WholeModel::~WholeModel() {
  if (context_ != nullptr) llama_free(context_);
  if (model_ != nullptr) llama_model_free(model_);
}

absl::StatusOr<std::vector<float>> WholeModel::Decode(const std::vector<BatchRow>& rows) {
  // With a stream for each slot, libllama makes the largest graphs of rows in the order of streams.
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!kv_unified_) std::ranges::stable_sort(order, {}, [&](size_t i) { return rows[i].slot; });
  std::vector<int32_t> place(rows.size());
  llama_batch batch = llama_batch_init(static_cast<int32_t>(rows.size()), 0, 1);
  batch.n_tokens = static_cast<int32_t>(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const BatchRow& row = rows[order[i]];
    batch.token[i] = row.token;
    batch.pos[i] = row.position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = row.slot;
    batch.logits[i] = row.wants_logits ? 1 : 0;
    place[order[i]] = static_cast<int32_t>(i);
  }
  const int32_t result = llama_decode(context_, batch);
  llama_batch_free(batch);
  if (result != 0) return absl::InternalError(absl::StrCat("llama_decode gives ", result));
  const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model_));
  std::vector<float> logits;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].wants_logits) continue;
    const float* row = llama_get_logits_ith(context_, place[i]);
    logits.insert(logits.end(), row, row + n_vocab);
  }
  return logits;
}

void WholeModel::Drop(int32_t slot) {
  llama_memory_seq_rm(llama_get_memory(context_), slot, -1, -1);
}

void WholeModel::Trim(int32_t slot, int32_t begin) {
  llama_memory_seq_rm(llama_get_memory(context_), slot, begin, -1);
}

void WholeModel::Copy(int32_t slot, int32_t from) {
  Drop(slot);
  llama_memory_seq_cp(llama_get_memory(context_), from, slot, -1, -1);
}

void WholeModel::Shift(int32_t slot, int32_t begin, int32_t delta) {
  llama_memory_seq_rm(llama_get_memory(context_), slot, begin + delta, begin);
  llama_memory_seq_add(llama_get_memory(context_), slot, begin, -1, delta);
}

absl::StatusOr<std::vector<float>> EmbeddingOf(const std::string& path,
                                               const std::vector<int32_t>& tokens,
                                               enum llama_pooling_type pooling) {
  llama_model_params model_params = llama_model_default_params();
  ggml_backend_dev_t no_devices[] = {nullptr};
  model_params.devices = no_devices;
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
      llama_model_load_from_file(path.c_str(), model_params), llama_model_free);
  if (model == nullptr) return absl::InvalidArgumentError("libllama cannot load " + path);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 256;
  params.embeddings = true;
  params.pooling_type = pooling;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.n_threads = params.n_threads_batch = 1;
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(
      llama_init_from_model(model.get(), params), llama_free);
  if (context == nullptr) return absl::InternalError("no context for " + path);
  std::vector<int32_t> copy = tokens;
  const llama_batch batch = llama_batch_get_one(copy.data(), static_cast<int32_t>(copy.size()));
  if (llama_decode(context.get(), batch) != 0) return absl::InternalError("llama_decode failed");
  const float* pooled = llama_get_embeddings_seq(context.get(), 0);
  if (pooled == nullptr) return absl::InternalError("libllama pools nothing");
  std::vector<float> embedding(pooled, pooled + llama_model_n_embd_out(model.get()));
  double squares = 0;
  for (const float value : embedding) squares += double{value} * value;
  for (float& value : embedding) value = static_cast<float>(value / std::sqrt(squares));
  return embedding;
}

}  // namespace strata::testing
