// Short names of well-known models (catalogue.txt, which the program has in itself), so that
// `strata run qwen3-8b` is enough. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

struct CatalogueModel {
  std::string name;
  std::string source;   // "hf:org/repo"
  double billions = 0;  // of weights

  // About what it has in the quant that is taken where nobody names one, Q4_K_M.
  uint64_t bytes() const;
};

// kInvalidArgument names the line that is wrong. Names are unique, whatever their case.
absl::StatusOr<std::vector<CatalogueModel>> ParseCatalogue(absl::string_view text);

// That of the program.
const std::vector<CatalogueModel>& Catalogue();
// The name of a hub's for a name of the catalogue, in any case, with ":QUANT" behind or without;
// nullopt: it has none such.
std::optional<std::string> CatalogueSource(absl::string_view name);

}  // namespace strata
