// Models of random weights in the shape of real ones, streamed to a file: the output is noise, the
// work is the same. Matrices are Q4_0, a vocabulary reads any text a byte at a time. For measuring
// and for tests that need weights to have a size; random_model.h makes small ones of any
// architecture.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace strata::testing {

struct SizedModel {
  std::string name = "Random llama 1.1B";
  uint32_t n_layer = 16;
  uint32_t n_embd = 2048;
  uint32_t n_ff = 8192;
  uint32_t n_head = 32;
  uint32_t n_head_kv = 8;
  uint32_t n_vocab = 32000;
  uint32_t n_ctx = 4096;
  // 0: a llama. Else a qwen3moe, whose every layer has so many experts of n_ff each.
  uint32_t n_expert = 0;
  uint32_t n_expert_used = 0;
};

// kUnavailable: it cannot be written. `path` is there only when it is whole.
absl::Status WriteSizedModel(const SizedModel& model, const std::string& path);

}  // namespace strata::testing
