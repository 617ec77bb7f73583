#include "node/status.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/plan_assign.h"
#include "nlohmann/json.hpp"
#include "node/standard_output.h"
#include "node/text_table.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

constexpr size_t kLinksShownMax = 40;

std::string Rate(double bytes_per_s) { return absl::StrFormat("%.1f GB/s", bytes_per_s / 1e9); }

// Links are sold by the bit.
std::string LinkRate(uint64_t bytes_per_s) {
  const double bits = static_cast<double>(bytes_per_s) * 8;
  return bits < 2e9 ? absl::StrFormat("%.0f Mbit/s", bits / 1e6)
                    : absl::StrFormat("%.1f Gbit/s", bits / 1e9);
}

std::string LayersOf(const wire::StageStatus& stage) {
  return absl::StrCat(stage.layers().begin(), "-", stage.layers().end() - 1);
}

std::string DeviceText(const wire::DeviceInfo& device) {
  if (device.has_speed()) return Rate(device.speed().memory_bytes_per_s());
  return device.problem().empty() ? "measuring" : "not usable";
}

// What a person should know or do something about.
std::vector<std::string> Problems(const ClusterReport& report) {
  std::vector<std::string> problems;
  if (report.cluster.coordinator().empty()) {
    problems.push_back("no node coordinates at present");
  }
  for (const NodeReport& node : report.nodes) {
    if (node.seen.state() == "other version") {
      problems.push_back(absl::StrCat(node.name(), " speaks protocol ",
                                      node.seen.record().versions().protocol(),
                                      " and is not used; run the same strata everywhere"));
      continue;
    }
    if (!node.status.ok()) {
      problems.push_back(absl::StrCat(node.name(), ": ", node.status.message()));
      continue;
    }
    for (const wire::DeviceInfo& device : node.info.devices()) {
      if (!device.problem().empty()) {
        problems.push_back(
            absl::StrCat(node.name(), "/", device.name(), " is not used: ", device.problem()));
      }
    }
    for (const wire::StageStatus& stage : node.info.stages()) {
      if (stage.status().code() == 0) continue;
      problems.push_back(absl::StrCat(node.name(), ": stage ", stage.stage(), ", layers ",
                                      LayersOf(stage), ": ", FromWire(stage.status()).message()));
    }
  }
  return problems;
}

}  // namespace

std::string StatusText(const ClusterReport& report) {
  std::string coordinator;
  std::vector<std::vector<std::string>> nodes = {
      {"NODE", "STATE", "DEVICE", "MEMORY FREE", "OF", "BANDWIDTH", "STAGES"}};
  for (const NodeReport& node : report.nodes) {
    if (node.id() == report.cluster.coordinator()) coordinator = node.name();
    std::string stages;
    for (const wire::StageStatus& stage : node.info.stages()) {
      absl::StrAppend(&stages, stages.empty() ? "" : ", ", stage.stage(), " (", LayersOf(stage),
                      stage.status().code() == 0 ? ")" : ") failed");
    }
    if (node.info.devices().empty()) nodes.push_back({node.name(), node.seen.state()});
    bool first = true;
    for (const wire::DeviceInfo& device : node.info.devices()) {
      nodes.push_back({first ? node.name() : "", first ? node.seen.state() : "", device.name(),
                       BytesText(device.memory_free()), BytesText(device.memory_total()),
                       DeviceText(device), first ? stages : ""});
      first = false;
    }
  }
  std::string out = absl::StrCat("Cluster ", report.cluster.cluster(), ", ",
                                 coordinator.empty() ? "nobody" : coordinator, " coordinates\n\n",
                                 TextTable(nodes));

  std::vector<std::vector<std::string>> links = {
      {"LINK", "", "16 KiB THERE AND BACK", "99 %", "THROUGHPUT"}};
  for (size_t i = 0; i < report.nodes.size() && links.size() <= kLinksShownMax; ++i) {
    for (size_t j = i + 1; j < report.nodes.size() && links.size() <= kLinksShownMax; ++j) {
      const wire::LinkSpeed* link = report.Link(i, j);
      if (link == nullptr) continue;
      links.push_back({report.nodes[i].name(), report.nodes[j].name(),
                       absl::StrFormat("%.2f ms", link->round_trip_p50_us() / 1e3),
                       absl::StrFormat("%.2f ms", link->round_trip_p99_us() / 1e3),
                       LinkRate(link->bytes_per_s())});
    }
  }
  if (links.size() > 1) absl::StrAppend(&out, "\n", TextTable(links));
  const std::vector<std::string> problems = Problems(report);
  if (!problems.empty()) absl::StrAppend(&out, "\n");
  for (const std::string& problem : problems) absl::StrAppend(&out, "! ", problem, "\n");
  return out;
}

std::string StatusJson(const ClusterReport& report) {
  using nlohmann::json;
  json nodes = json::array();
  for (size_t i = 0; i < report.nodes.size(); ++i) {
    const NodeReport& node = report.nodes[i];
    json devices = json::array();
    for (const wire::DeviceInfo& device : node.info.devices()) {
      json types = json::object();
      for (const wire::TypeSpeed& type : device.speed().types()) {
        json& rates = types[type.type()] = json::array();
        for (double rate : type.bytes_per_s()) rates.push_back(rate);
      }
      devices.push_back({{"name", device.name()},
                         {"description", device.description()},
                         {"memory_free", device.memory_free()},
                         {"memory_total", device.memory_total()},
                         {"memory_bytes_per_s", device.speed().memory_bytes_per_s()},
                         {"types_bytes_per_s", std::move(types)},
                         {"problem", device.problem()}});
    }
    json stages = json::array();
    for (const wire::StageStatus& stage : node.info.stages()) {
      stages.push_back(
          {{"stage", stage.stage()},
           {"layers", {stage.layers().begin(), stage.layers().end()}},
           {"worker_pid", stage.worker_pid()},
           {"ok", stage.status().code() == 0},
           {"problem",
            stage.status().code() == 0 ? "" : std::string(FromWire(stage.status()).message())}});
    }
    json links = json::object();
    for (size_t j = 0; j < report.nodes.size(); ++j) {
      const wire::LinkSpeed* link = i == j ? nullptr : report.Link(i, j);
      if (link == nullptr) continue;
      links[absl::BytesToHexString(report.nodes[j].id())] = {
          {"round_trip_p50_us", link->round_trip_p50_us()},
          {"round_trip_p99_us", link->round_trip_p99_us()},
          {"bytes_per_s", link->bytes_per_s()}};
    }
    nodes.push_back({{"id", absl::BytesToHexString(node.id())},
                     {"name", node.name()},
                     {"state", node.seen.state()},
                     {"address", node.seen.address()},
                     {"version", node.seen.record().versions().strata()},
                     {"answers", node.status.ok()},
                     {"measuring", node.info.measuring()},
                     {"devices", std::move(devices)},
                     {"stages", std::move(stages)},
                     {"links", std::move(links)}});
  }
  const json out = {{"cluster", report.cluster.cluster()},
                    {"coordinator", absl::BytesToHexString(report.cluster.coordinator())},
                    {"epoch", report.cluster.epoch().counter()},
                    {"nodes", std::move(nodes)},
                    {"problems", Problems(report)}};
  return out.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::Status RunStatus(const StatusOptions& options) {
  auto client = ClusterClient::Connect(options.client);
  if (!client.ok()) return client.status();
  auto report = CollectReport(client->get());
  if (!report.ok()) return report.status();
  const std::string text = options.json ? StatusJson(*report) : StatusText(*report);
  return WriteToStdout(text);
}

}  // namespace strata
