// Small random models of any architecture that libllama knows, as GGUF files: metadata by hand, the
// tensors that libllama asks for, and weights from a seed. For tests; a model takes a few hundred
// KB.
//
//   RandomModelSpec spec = {.name = "llama", .architecture = "llama", .n_layer = 4, ...};
//   absl::StatusOr<std::string> path = WriteRandomModel(spec, testing::TempDir());
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata::testing {

using MetadataValue = std::variant<uint32_t, float, bool, std::string, std::vector<uint32_t>,
                                   std::vector<float>, std::vector<std::string>>;

struct RandomModelSpec {
  std::string name;          // names the test; the file is NAME.gguf
  std::string architecture;  // as general.architecture
  uint32_t n_layer = 4;
  uint32_t n_vocab = 96;
  // Added to the metadata that every model gets, or instead of it. A key without a dot in front is
  // the architecture's own ("attention.head_count"); ".general.x" is the key "general.x" itself.
  // "nextn_predict_layers" makes so many of the n_layer, at the end, layers for multi-token
  // prediction, with their tensors.
  std::vector<std::pair<std::string, MetadataValue>> metadata;
  // Tensors that files of this architecture do not have, by what their names contain. libllama asks
  // for every tensor that may be there.
  std::vector<std::string> without;
  int weight_type = 0;  // ggml_type of matrices whose rows it fits; F32
  uint64_t seed = 1;
};

// Writes `spec` below `directory` and returns the file's path. kInvalidArgument when libllama
// refuses the metadata.
absl::StatusOr<std::string> WriteRandomModel(const RandomModelSpec& spec,
                                             const std::string& directory);

}  // namespace strata::testing
