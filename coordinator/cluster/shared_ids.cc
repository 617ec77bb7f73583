#include "coordinator/cluster/shared_ids.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "transport/base/short_id.h"

namespace strata {
namespace {

constexpr size_t kProblemsMax = 8;
constexpr size_t kNodesShownMax = 4;

std::string At(const std::string& address) {
  return address.empty() ? "one at an unknown address" : address;
}

std::string AddressOf(const wire::ClusterNode& node) {
  if (!node.address().empty()) return node.address();
  return node.record().addresses().empty() ? "" : node.record().addresses(0);
}

}  // namespace

std::string SharedIdMessage(const wire::SharedId& shared) {
  const std::string name = shared.name().empty() ? ShortNodeId(shared.node_id()) : shared.name();
  std::string text =
      absl::StrCat("two machines have the id of ", name, ": ", At(shared.taken_address()),
                   " is taken, ", At(shared.refused_address()), " is refused");
  if (shared.asked_is_refused()) {
    absl::StrAppend(
        &text,
        ", which is this one: it is in no cluster until the other is gone. If "
        "this machine or its data dir is a copy, stop strata here, remove ",
        shared.id_file().empty() ? "the file node_id in its data dir" : shared.id_file(),
        ", and start it again");
  } else {
    absl::StrAppend(&text,
                    "; if one was cloned or restored, stop strata on the copy, remove the "
                    "file node_id in its data dir, and start it again");
  }
  return text;
}

std::vector<wire::SharedId> AllSharedIds(
    const std::vector<const wire::GetClusterResponse*>& clusters) {
  std::vector<wire::SharedId> all;
  for (const wire::GetClusterResponse* cluster : clusters) {
    for (const wire::SharedId& shared : cluster->shared_ids()) {
      const bool known = std::any_of(all.begin(), all.end(), [&](const wire::SharedId& other) {
        return other.node_id() == shared.node_id();
      });
      if (!known && all.size() < kProblemsMax) all.push_back(shared);
    }
  }
  return all;
}

std::vector<std::string> SharedNameProblems(const wire::GetClusterResponse& cluster) {
  std::map<std::string, std::vector<const wire::ClusterNode*>> by_name;
  for (const wire::ClusterNode& node : cluster.nodes()) {
    const bool there = node.state() == "alive" || node.state() == "suspected";
    if (!there || node.record().name().empty()) continue;
    by_name[absl::AsciiStrToLower(node.record().name())].push_back(&node);
  }
  std::vector<std::string> problems;
  for (const auto& [name, nodes] : by_name) {
    if (nodes.size() < 2 || problems.size() >= kProblemsMax) continue;
    std::vector<std::string> shown;
    for (const wire::ClusterNode* node : nodes) {
      if (shown.size() == kNodesShownMax) break;
      shown.push_back(
          absl::StrCat(ShortNodeId(node->record().node_id()), " at ", At(AddressOf(*node))));
    }
    problems.push_back(absl::StrCat(
        nodes.size() == 2 ? "two" : absl::StrCat(nodes.size()), " nodes have the name ",
        nodes[0]->record().name(), ": ", absl::StrJoin(shown, ", "),
        shown.size() < nodes.size() ? ", …" : "",
        "; name a node by the first digits of its id, or restart one with another --name"));
  }
  return problems;
}

std::string DistinctName(const wire::GetClusterResponse& cluster, const wire::NodeRecord& node) {
  const bool shared =
      std::any_of(cluster.nodes().begin(), cluster.nodes().end(), [&](const auto& other) {
        return other.record().node_id() != node.node_id() &&
               absl::EqualsIgnoreCase(other.record().name(), node.name());
      });
  return shared ? absl::StrCat(node.name(), "-", ShortNodeId(node.node_id())) : node.name();
}

}  // namespace strata
