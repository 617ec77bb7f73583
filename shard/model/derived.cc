#include "shard/model/derived.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "llama.h"

namespace strata {

absl::Status CheckDerived(const llama_model* slice, const llama_model* whole,
                          const GgufHeader& header) {
  const std::string architecture = header.GetString("general.architecture").value_or("");
  const auto is_by_layer = [&](absl::string_view key) {
    const GgufValue* value = header.Find(absl::StrCat(architecture, ".", key));
    return value != nullptr && value->type == GgufType::kArray;
  };
  absl::Status status;
  const auto compare = [&](absl::string_view name, auto of_slice, auto of_whole) {
    if (of_slice == of_whole || !status.ok()) return;
    status = absl::FailedPreconditionError(
        absl::StrCat("libllama takes the slice for another model: its ", name, " is ", of_slice,
                     ", the whole model's ", of_whole));
  };
  const auto n_layer_in_header = [&](absl::string_view key) {
    return header.GetInteger(absl::StrCat(architecture, ".", key)).value_or(0);
  };
  const uint64_t n_trunk =
      n_layer_in_header("block_count") - n_layer_in_header("nextn_predict_layers");
  if (static_cast<uint64_t>(llama_model_n_layer(whole)) != n_trunk) {
    return absl::FailedPreconditionError(absl::StrCat("libllama runs ", llama_model_n_layer(whole),
                                                      " layers of the model, of which ", n_trunk,
                                                      " were to be cut"));
  }
  compare("embedding length", llama_model_n_embd(slice), llama_model_n_embd(whole));
  compare("input length", llama_model_n_embd_inp(slice), llama_model_n_embd_inp(whole));
  compare("output length", llama_model_n_embd_out(slice), llama_model_n_embd_out(whole));
  if (!is_by_layer("attention.head_count")) {
    compare("number of heads", llama_model_n_head(slice), llama_model_n_head(whole));
  }
  if (!is_by_layer("attention.head_count_kv")) {
    compare("number of key-value heads", llama_model_n_head_kv(slice),
            llama_model_n_head_kv(whole));
  }
  compare("attention window", llama_model_n_swa(slice), llama_model_n_swa(whole));
  compare("context length", llama_model_n_ctx_train(slice), llama_model_n_ctx_train(whole));
  compare("rotary embedding", static_cast<int>(llama_model_rope_type(slice)),
          static_cast<int>(llama_model_rope_type(whole)));
  compare("rotary frequency scale", llama_model_rope_freq_scale_train(slice),
          llama_model_rope_freq_scale_train(whole));
  compare("recurrence", llama_model_is_recurrent(slice), llama_model_is_recurrent(whole));
  compare("hybrid memory", llama_model_is_hybrid(slice), llama_model_is_hybrid(whole));
  return status;
}

}  // namespace strata
