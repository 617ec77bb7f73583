// Which node a name of a person refers to: one rule for all commands.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "coordinator/models/model_match.h"
#include "proto/cluster.pb.h"

namespace strata {

struct NodeNames {
  absl::string_view name;
  absl::string_view id_hex;
  bool gone = false;
};
// Matches the name, or the start of the id in hex, or both with a "-" between, as nodes of one name
// are shown. Case is ignored: machines' names have none.
inline bool MatchesNode(absl::string_view text, const NodeNames& node) {
  if (absl::EqualsIgnoreCase(text, node.name) || HasIdPrefix(text, node.id_hex)) return true;
  const size_t dash = text.rfind('-');
  return dash != text.npos && absl::EqualsIgnoreCase(text.substr(0, dash), node.name) &&
         HasIdPrefix(text.substr(dash + 1), node.id_hex);
}

// The error where a name matches several nodes: kInvalidArgument, with their ids.
inline absl::Status MatchesSeveralNodes(absl::string_view text,
                                        const std::vector<NodeNames>& nodes) {
  constexpr size_t kDigitsShown = 8;
  return absl::InvalidArgumentError(absl::StrCat(
      text, " means several nodes; say which by the first digits of its id: ",
      absl::StrJoin(nodes, ", ", [](std::string* out, const NodeNames& node) {
        absl::StrAppend(out, node.id_hex.substr(0, kDigitsShown), " (", node.name, ")");
      })));
}

// The index of the node that a command is for. A machine whose data dir is new has the name of the
// node that it was before, which is gone: a node that is gone counts only where no other matches.
// kNotFound; MatchesSeveralNodes().
inline absl::StatusOr<size_t> FindNode(absl::string_view text,
                                       const std::vector<NodeNames>& nodes) {
  for (const bool gone : {false, true}) {
    std::vector<NodeNames> meant;
    size_t found = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].gone != gone || !MatchesNode(text, nodes[i])) continue;
      meant.push_back(nodes[i]);
      found = i;
    }
    if (meant.size() > 1) return MatchesSeveralNodes(text, meant);
    if (meant.size() == 1) return found;
  }
  return absl::NotFoundError(
      absl::StrCat("no node ", text, ": there are ",
                   absl::StrJoin(nodes, ", ", [](std::string* out, const NodeNames& node) {
                     absl::StrAppend(out, node.name);
                   })));
}

// The index among the cluster's nodes.
inline absl::StatusOr<size_t> FindNode(absl::string_view text,
                                       const wire::GetClusterResponse& cluster) {
  std::vector<std::string> ids;
  for (const wire::ClusterNode& node : cluster.nodes()) {
    ids.push_back(absl::BytesToHexString(node.record().node_id()));
  }
  std::vector<NodeNames> nodes;
  for (const wire::ClusterNode& node : cluster.nodes()) {
    nodes.push_back({.name = node.record().name(),
                     .id_hex = ids[nodes.size()],
                     .gone = node.state() == "gone"});
  }
  return FindNode(text, nodes);
}

}  // namespace strata
