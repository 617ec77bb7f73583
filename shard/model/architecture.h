// The rules for cutting each model architecture into stages. A slice is a smaller model of the same
// architecture, and libllama derives some behaviour from the number of layers or from their place
// in the model; a table lists where that matters. Every row is proved by
// tests/shard/model/architecture_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/model/gguf.h"

namespace strata {

// More layers than libllama supports.
inline constexpr uint64_t kModelLayersMax = 4096;

// Layers [begin, end).
struct LayerRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t size() const { return end - begin; }
  bool operator==(const LayerRange&) const = default;
};

enum class Exactness {
  kExact,      // chained stages give the whole model's logits bit for bit
  kTolerance,  // within `tolerance` of them
  kRefused,
};

// Where one model may be cut.
struct CutRule {
  std::string architecture;
  Exactness exactness = Exactness::kRefused;
  double tolerance = 0;  // largest difference of a logit ÷ largest logit, kTolerance only
  std::vector<uint32_t> cut_points;  // where a stage may begin, without 0, rising
  // Layer counts that a stage must not have, because libllama takes a model with that count for
  // another one. AdjustMetadata refuses them.
  std::vector<uint32_t> forbidden_sizes;
  std::string reason;  // why refused, or why only at these points; for people
};

// The rule for the model with this header, from its architecture, block count and metadata.
// kUnimplemented when the architecture is not in the table (the message says so and names
// --unverified); with `unverified`, it may then be cut anywhere. A model that must not be cut has a
// rule with no cut points. kInvalidArgument when the header lacks keys that the rule needs.
absl::StatusOr<CutRule> CutRuleFor(const GgufHeader& header, bool unverified);

// Changes the metadata of a slice for its place in the model: block count, per-layer arrays, layer
// patterns, counts of leading dense layers, scales that libllama would derive from the block count.
// `slice` holds the whole model's metadata on entry; its tensors are not touched.
// kFailedPrecondition when the range is not allowed by the rule.
absl::Status AdjustMetadata(const GgufHeader& whole, LayerRange layers, bool unverified,
                            GgufHeader* slice);

// Where the activations enter a stage with layers.begin > 0. Empty for most: libllama takes them as
// llama_batch.embd. Some architectures scale, normalise or refuse that input; there the stage feeds
// dummy tokens (id 0), and once libllama has computed the tensor of this name, which the first
// layer reads, overwrites it with the activations.
std::string InputTensor(const GgufHeader& whole, LayerRange layers);

// The tensor in which a stage that is not the last ends: the activations after the slice's last
// layer.
std::string OutputTensor(const GgufHeader& whole, LayerRange layers);

// The operations of this architecture's KV cache, besides dropping a whole sequence.
struct CacheAbility {
  bool trim = true;  // in windowed layers, only within the cached window
  bool copy = true;
  bool shift = true;
  // Not 0: the oldest positions of a longer sequence may be gone. Set from the loaded model, as is
  // `rewind`, and not by CacheAbilityFor().
  uint32_t window_tokens = 0;
  // A sequence can go back to a saved state, which does not need trim.
  bool checkpoint = false;
  // A sequence that stays open can forget its last positions, of whatever number.
  bool rewind = false;

  bool operator==(const CacheAbility&) const = default;
};
CacheAbility CacheAbilityFor(const GgufHeader& header);

// Names in the table, sorted, for docs and tests.
std::vector<std::string> KnownArchitectures();

}  // namespace strata
