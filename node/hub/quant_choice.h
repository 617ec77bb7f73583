// Chooses a model among a repository's GGUF files: its quants, files in several parts, and the
// choice among them. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace strata {

struct HubFile {
  std::string name;    // path in the repository
  uint64_t bytes = 0;  // 0: unknown
  std::string sha256;  // 64 hex digits; empty: unknown
};

// One model of a repository.
struct ModelVariant {
  std::string quant;           // "Q4_K_M"; of a name that has none, the file's name without .gguf
  std::vector<HubFile> parts;  // in order, at least one
  uint64_t bytes = 0;          // of all parts
};

// The quant in a file's name, else in its folder's, in capitals: "UD-Q4_K_XL", "BF16"; else empty.
std::string QuantOf(absl::string_view file);

// The models among `files`, smallest first: those of several parts that are all there are one.
// `with_lacking`: also those with parts that are not there. Projectors (mmproj) and importance
// matrices are none.
std::vector<ModelVariant> VariantsOf(absl::Span<const HubFile> files, bool with_lacking = false);

struct QuantChoice {
  ModelVariant variant;
  std::string why;  // a sentence; empty: the name left no choice
};

// The variant that `quant`, in any case, or the path `file` means; where both are empty, the best
// one of at most `bytes_max`, not above Q8_0; where that is unknown, Q4_K_M or what is nearest.
// kNotFound, kInvalidArgument: none, or several; kResourceExhausted: none fits. Messages list what
// is there with sizes.
absl::StatusOr<QuantChoice> ChooseQuant(absl::Span<const ModelVariant> variants,
                                        absl::string_view quant, absl::string_view file,
                                        std::optional<uint64_t> bytes_max);

}  // namespace strata
