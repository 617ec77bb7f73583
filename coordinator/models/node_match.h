// Which of the nodes a person means: one rule for all verbs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "coordinator/models/model_match.h"

namespace strata {

struct NodeNames {
  absl::string_view name;
  absl::string_view id_hex;
};
// By its name, or the start of its id in hex, or both with a "-" between, as nodes of one name are
// shown. Case is not looked at: machines' names have none.
inline bool MeansNode(absl::string_view text, const NodeNames& node) {
  if (absl::EqualsIgnoreCase(text, node.name) || StartsId(text, node.id_hex)) return true;
  const size_t dash = text.rfind('-');
  return dash != text.npos && absl::EqualsIgnoreCase(text.substr(0, dash), node.name) &&
         StartsId(text.substr(dash + 1), node.id_hex);
}

// What is said where a person means several nodes: kInvalidArgument, with what tells them apart.
inline absl::Status MeansSeveralNodes(absl::string_view text, const std::vector<NodeNames>& nodes) {
  constexpr size_t kDigitsShown = 8;
  return absl::InvalidArgumentError(absl::StrCat(
      text, " means several nodes; say which by the first digits of its id: ",
      absl::StrJoin(nodes, ", ", [](std::string* out, const NodeNames& node) {
        absl::StrAppend(out, node.id_hex.substr(0, kDigitsShown), " (", node.name, ")");
      })));
}

}  // namespace strata
