// Which of the nodes a person means: one rule for all verbs.
#pragma once

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "node/model_match.h"

namespace strata {

struct NodeNames {
  absl::string_view name;
  absl::string_view id_hex;
};
// By its name, or the start of its id in hex. Case is not looked at: machines' names have none.
inline bool MeansNode(absl::string_view text, const NodeNames& node) {
  return absl::EqualsIgnoreCase(text, node.name) || StartsId(text, node.id_hex);
}

}  // namespace strata
