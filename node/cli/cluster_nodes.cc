#include "node/cli/cluster_nodes.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cluster/shared_ids.h"
#include "nlohmann/json.hpp"
#include "node/base/json_line.h"
#include "node/base/standard_output.h"
#include "node/status/status.h"
#include "transport/base/short_id.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

// "3 s", "12 min", "5 h", "2 d"; -1: never.
std::string Ago(int64_t ms) {
  if (ms < 0) return "-";
  const int64_t seconds = ms / 1000;
  if (seconds < 120) return absl::StrCat(seconds, " s");
  if (seconds < 120 * 60) return absl::StrCat(seconds / 60, " min");
  if (seconds < 48 * 3600) return absl::StrCat(seconds / 3600, " h");
  return absl::StrCat(seconds / 86400, " d");
}

std::string RoundTrip(int64_t us) {
  return us == 0 ? "-" : absl::StrFormat("%.1f ms", static_cast<double>(us) / 1000);
}

}  // namespace

std::string NodesTable(const wire::GetClusterResponse& cluster) {
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "ID", "STATE", "ADDRESS", "ROUND TRIP", "HERE", "HEARD", "VERSION"}};
  std::string coordinator = "no node coordinates at present";
  for (const wire::ClusterNode& node : cluster.nodes()) {
    const wire::NodeRecord& record = node.record();
    const bool itself = record.node_id() == cluster.asked();
    std::string version = record.versions().strata();
    if (node.state() == "other version") {
      absl::StrAppend(&version, version.empty() ? "" : ", ", "protocol ",
                      record.versions().protocol());
    }
    std::string address = node.address();
    if (address.empty() && !record.addresses().empty()) address = record.addresses(0);
    rows.push_back({record.name().empty() ? "?" : record.name(), ShortNodeId(record.node_id()),
                    node.state(), address, itself ? "itself" : RoundTrip(node.round_trip_us()),
                    Ago(node.since_ms()), itself ? "" : Ago(node.last_heard_ms()), version});
    if (record.node_id() == cluster.coordinator()) {
      coordinator =
          absl::StrCat(record.name(), " (", ShortNodeId(record.node_id()), ") coordinates");
    }
  }
  for (const wire::WaitingNode& node : cluster.waiting()) {
    rows.push_back({node.name().empty() ? "?" : node.name(), ShortNodeId(node.node_id()), "waiting",
                    node.addresses().empty() ? "-" : node.addresses(0), "-", "-", "-", "-"});
  }
  std::string out = TextTable(rows).Text();
  absl::StrAppend(&out, "Cluster ", cluster.cluster(), ": ", coordinator, ".\n");
  for (const wire::SharedId& shared : AllSharedIds({&cluster})) {
    absl::StrAppend(&out, "! ", SharedIdMessage(shared), "\n");
  }
  for (const std::string& problem : SharedNameProblems(cluster)) {
    absl::StrAppend(&out, "! ", problem, "\n");
  }
  if (cluster.key_id().empty()) {
    absl::StrAppend(&out, "The cluster is open: anybody who reaches a node may use it (--open).\n");
  }
  if (!cluster.waiting().empty()) {
    absl::StrAppend(&out, "To admit a waiting node: strata approve NAME\n");
  }
  return out;
}

std::string NodesJson(const wire::GetClusterResponse& cluster) {
  nlohmann::json nodes = nlohmann::json::array();
  const auto id_or_null = [](const std::string& id) {
    return id.empty() ? nlohmann::json() : nlohmann::json(absl::BytesToHexString(id));
  };
  const auto ms_or_null = [](int64_t ms) { return ms < 0 ? nlohmann::json() : nlohmann::json(ms); };
  for (const wire::ClusterNode& node : cluster.nodes()) {
    const wire::NodeRecord& record = node.record();
    nlohmann::json addresses = nlohmann::json::array();
    for (const std::string& address : record.addresses()) addresses.push_back(address);
    nodes.push_back({{"id", absl::BytesToHexString(record.node_id())},
                     {"name", record.name()},
                     {"state", node.state()},
                     {"address", node.address()},
                     {"addresses", std::move(addresses)},
                     {"round_trip_us", node.round_trip_us()},
                     {"here_ms", ms_or_null(node.since_ms())},
                     {"heard_ms", ms_or_null(node.last_heard_ms())},
                     {"reachable", node.reachable()},
                     {"member", node.member()},
                     {"obeys", id_or_null(node.obeys())},
                     {"version", record.versions().strata()},
                     {"protocol", record.versions().protocol()},
                     {"libllama", record.versions().llama()}});
  }
  nlohmann::json shared_ids = nlohmann::json::array();
  for (const wire::SharedId& shared : cluster.shared_ids()) {
    shared_ids.push_back({{"id", absl::BytesToHexString(shared.node_id())},
                          {"taken", shared.taken_address()},
                          {"refused", shared.refused_address()},
                          {"asked_is_refused", shared.asked_is_refused()}});
  }
  return JsonLine({{"cluster", cluster.cluster()},
                   {"key_id", cluster.key_id()},
                   {"waiting", WaitingNodesJson(cluster)},
                   {"shared_ids", std::move(shared_ids)},
                   {"asked", id_or_null(cluster.asked())},
                   {"coordinator", id_or_null(cluster.coordinator())},
                   {"epoch", cluster.epoch().counter()},
                   {"nodes", std::move(nodes)}});
}

absl::Status RunNodes(const NodesOptions& options) {
  auto client = ConnectToCluster(options.client);
  if (!client.ok()) return client.status();
  const absl::StatusOr<wire::GetClusterResponse> cluster = (*client)->GetCluster();
  if (!cluster.ok()) return cluster.status();
  const std::string text = options.json ? NodesJson(*cluster) : NodesTable(*cluster);
  return WriteToStdout(text);
}

}  // namespace strata
