// The rows behind shard/model/architecture.h: one for each architecture that has been tried, with
// what libllama derives from the number or the place of its layers. Internal to shard/.
//
// Properties that all architectures share need no row: the block count, per-layer arrays in the
// metadata, and the count of leading dense layers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/model/architecture.h"
#include "shard/model/gguf.h"

namespace strata {

// Which layers see only a window, where the file does not list them: all but one in `period`.
struct WindowPattern {
  uint32_t period = 0;  // 0: this architecture has no pattern
  bool full_first =
      false;  // the layer that sees everything is the first of its period, not the last
  bool needs_full = false;  // a stage must have a layer that sees everything
  bool if_stated = false;   // without a window in the file there is none, else libllama's default
};

// The kinds of cache that libllama has of a sequence.
enum class Memory {
  kAttention,    // keys and values of every position, in windowed layers of the last ones
  kUnshiftable,  // the same, but positions cannot be added to
  kRecurrent,    // one state, in all or some layers
};

struct ArchitectureRow {
  absl::string_view name;
  Exactness exactness = Exactness::kExact;
  double tolerance = 0;  // as in CutRule, when exactness is kTolerance
  // A stage begins at a multiple of `step`, and of what the file has under `step_key`, because the
  // graph counts layers from the model's first.
  uint32_t step = 1;
  absl::string_view step_key = "";
  WindowPattern window = {};
  // Hybrids: every Nth layer has attention, the others a state, when the file does not list them.
  uint32_t attention_interval = 0;
  bool kv_heads_mark_attention =
      false;  // or: a layer has attention when its head_count_kv is not 0
  bool some_layers_are_feed_forward =
      false;  // and has neither when its feed_forward_length is not 0
  // The model's input is multiplied by embedding_scale, which a slice sets to 1.
  bool scales_input = false;
  // As InputTensor().
  absl::string_view input_tensor = "";
  absl::string_view output_tensor = "l_out-";  // as OutputTensor(); the layer follows a dash
  Memory memory = Memory::kAttention;
  // Its files may have layers for multi-token prediction at the end. They stay in the last slice,
  // and libllama skips them there as it does in the model. Elsewhere such a file is refused.
  bool may_predict = false;
  // Why the architecture is refused, or what a slice needs; for people.
  absl::string_view reason = "";

  // Rules that depend on more than the name; each may be null. Metadata comes from a file: anything
  // may be missing. Changes the rule of a model with these metadata.
  void (*refine)(const GgufHeader& whole, uint32_t n_layer, CutRule* rule) = nullptr;
  // Further changes that a slice needs.
  void (*adjust)(const GgufHeader& whole, LayerRange layers, GgufHeader* slice) = nullptr;
};

// Sorted by name.
absl::Span<const ArchitectureRow> ArchitectureTable();

// Nullptr when there is none.
const ArchitectureRow* FindArchitecture(absl::string_view name);

}  // namespace strata
