#include "shard/model/experts.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr absl::string_view kMark = "_exps.";  // before "weight" or "bias"

}  // namespace

bool IsExpertTensor(absl::string_view name) {
  return absl::StartsWith(name, "blk.") && absl::StrContains(name, kMark);
}

uint64_t ExpertBytes(const GgufHeader& header, LayerRange layers) {
  uint64_t bytes = 0;
  for (const GgufTensor& tensor : header.tensors) {
    if (!IsExpertTensor(tensor.name)) continue;
    const std::optional<uint32_t> layer = LayerOfTensor(tensor.name);
    if (layer && *layer >= layers.begin && *layer < layers.end) bytes += tensor.bytes;
  }
  return bytes;
}

std::string ExpertPattern(uint32_t n_layer) {
  std::string layers;
  for (uint32_t i = 0; i < n_layer; ++i) absl::StrAppend(&layers, i == 0 ? "" : "|", i);
  return absl::StrCat("^blk\\.(", layers, ")\\.[^.]*_exps\\.");
}

}  // namespace strata
