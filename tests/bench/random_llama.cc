// Writes the models of random weights that the benchmarks measure. random_llama FILE [SHAPE]
#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/support/sized_model.h"

namespace strata::testing {
namespace {

bool Find(absl::string_view shape, SizedModel* model) {
  if (shape == "1b") return true;
  if (shape == "100m") {  // 0.1 billion weights
    *model = {.name = "Random llama 0.1B",
              .n_layer = 12,
              .n_embd = 640,
              .n_ff = 2048,
              .n_head = 10,
              .n_head_kv = 2};
    return true;
  }
  if (shape == "400m") {  // 0.4 billion weights, 16 layers
    *model = {
        .name = "Random llama 0.4B", .n_embd = 1280, .n_ff = 5120, .n_head = 20, .n_head_kv = 4};
    return true;
  }
  if (shape == "8b") {  // 7.2 billion weights, the matrices of an 8B llama
    *model = {.name = "Random llama 7B",
              .n_layer = 32,
              .n_embd = 4096,
              .n_ff = 14336,
              .n_head = 32,
              .n_head_kv = 8};
    return true;
  }
  if (shape == "moe") {  // 0.5 billion, of which 0.2 for each token
    *model = {.name = "Random qwen3moe 0.5B",
              .n_layer = 12,
              .n_embd = 1024,
              .n_ff = 768,
              .n_head = 16,
              .n_head_kv = 4,
              .n_expert = 16,
              .n_expert_used = 4};
    return true;
  }
  return false;
}

}  // namespace
}  // namespace strata::testing

int main(int argc, char** argv) {
  strata::testing::SizedModel model;
  if (argc < 2 || argc > 3 || !strata::testing::Find(argc == 3 ? argv[2] : "1b", &model)) {
    std::fprintf(stderr, "usage: random_llama FILE [1b|8b|400m|100m|moe]\n");
    return 2;
  }
  const absl::Status status = strata::testing::WriteSizedModel(model, argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "random_llama: %s\n", std::string(status.message()).c_str());
  return 1;
}
