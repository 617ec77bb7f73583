#include "node/status/status.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/shared_ids.h"
#include "coordinator/planner/unit_text.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "nlohmann/json.hpp"
#include "node/base/json_line.h"
#include "node/base/standard_output.h"
#include "node/status/status_watch.h"
#include "proto/coordinator.grpc.pb.h"
#include "shard/engine/activation_codec.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

// The time for the answer of the called node, which waits for the others.
constexpr int64_t kOneReportMs = 15'000;
// The same for what nobody waits for long.
constexpr absl::Duration kModelsTime = absl::Seconds(1);

using nlohmann::json;

// True if the stage does not serve yet, and nothing is wrong.
bool IsLoading(const wire::StageStatus& stage) {
  return stage.state() == wire::StageStatus::FETCHING ||
         stage.state() == wire::StageStatus::WAITING || stage.state() == wire::StageStatus::LOADING;
}

// ", 97 % of 1300 draft tokens accepted", of tokens that stages computed ahead, and ", drafts by"
// the draft model; then the time that the model stays: ", pinned", ", goes after 4 min without
// requests", or nothing: for ever.
std::string UseText(const std::vector<wire::ModelStatus>& loaded, absl::string_view id) {
  for (const wire::ModelStatus& model : loaded) {
    if (model.model_id() != id) continue;
    std::string text;
    if (model.draft_tokens() > 0) {
      absl::StrAppend(&text, ", ", 100 * model.accepted_tokens() / model.draft_tokens(), " % of ",
                      model.draft_tokens(), " draft tokens accepted");
    }
    if (!model.draft().empty()) absl::StrAppend(&text, ", drafts by ", model.draft());
    if (model.pinned()) text += ", pinned";
    if (model.keep_alive_ms() == 0) return text;
    const int64_t left_ms = model.keep_alive_ms() - std::max<int64_t>(model.idle_ms(), 0);
    return absl::StrCat(text, ", goes after ", DurationText(std::max<int64_t>(left_ms, 0)),
                        " without requests");
  }
  return "";
}

}  // namespace

std::vector<wire::ModelStatus> LoadedModels(const std::string& address) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(kModelsTime));
  wire::ListModelsResponse models;
  const grpc::Status status = wire::Coordinator::NewStub(MakeChannel(address, kPatientTimeoutMs))
                                  ->ListModels(&context, wire::ListModelsRequest(), &models);
  if (!status.ok()) return {};
  MakePrintable(&models);
  return {models.models().begin(), models.models().end()};
}

std::string LinkRateText(uint64_t bytes_per_s) {
  // In bits, as the speeds of links usually are.
  const double bits = static_cast<double>(bytes_per_s) * 8;
  return bits < 2e9 ? absl::StrFormat("%.0f Mbit/s", bits / 1e6)
                    : absl::StrFormat("%.1f Gbit/s", bits / 1e9);
}

std::string BandwidthText(const wire::DeviceInfo& device) {
  if (device.has_speed()) {
    return absl::StrFormat("%.1f GB/s", device.speed().memory_bytes_per_s() / 1e9);
  }
  return device.problem().empty() ? "measuring" : "not usable";
}

std::string CoordinatorName(const ClusterSnapshot& report) {
  for (const NodeReport& node : report.nodes) {
    if (node.id() == report.cluster.coordinator()) return node.name();
  }
  return "";
}

std::vector<LinkView> LinksOf(const ClusterSnapshot& report) {
  std::vector<LinkView> links;
  for (size_t i = 0; i < report.nodes.size(); ++i) {
    for (size_t j = i + 1; j < report.nodes.size(); ++j) {
      const wire::LinkSpeed* link = report.Link(i, j);
      if (link == nullptr) continue;
      links.push_back(
          {.from = report.nodes[i].name(), .to = report.nodes[j].name(), .speed = link});
    }
  }
  return links;
}

std::vector<std::string> ProblemsOf(const ClusterSnapshot& report,
                                    const std::vector<ModelView>& models) {
  std::vector<std::string> problems;
  std::vector<const wire::GetClusterResponse*> seen = {&report.cluster};
  for (const NodeReport& node : report.nodes) seen.push_back(&node.sees);
  bool refused = false;
  for (const wire::SharedId& shared : AllSharedIds(seen)) {
    problems.push_back(SharedIdMessage(shared));
    refused = refused || shared.asked_is_refused();
  }
  if (report.cluster.coordinator().empty() && !refused) {
    problems.push_back("no node coordinates at present");
  }
  for (std::string& problem : SharedNameProblems(report.cluster)) {
    problems.push_back(std::move(problem));
  }
  for (const NodeReport& node : report.nodes) {
    if (node.seen.state() == "other version") {
      problems.push_back(absl::StrCat(node.name(), " uses protocol ",
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
    for (const std::string& problem : node.info.problems()) {
      problems.push_back(absl::StrCat(node.name(), ": ", problem));
    }
    for (const wire::StageStatus& stage : node.info.stages()) {
      if (stage.status().code() == 0 || IsLoading(stage)) continue;
      problems.push_back(absl::StrCat(node.name(), ": stage ", stage.stage(), ", layers ",
                                      LayersText(stage.layers()), ": ",
                                      FromWire(stage.status()).message()));
    }
  }
  for (const ModelView& model : models) {
    for (const StageView& stage : model.stages) {
      if (stage.n_missing == 0) continue;
      problems.push_back(absl::StrCat(
          model.name.empty() ? "a model" : model.name, ": stage", stage.n_missing > 1 ? "s " : " ",
          StageText(stage), stage.n_missing > 1 ? " are" : " is", " on no node that answers"));
    }
  }
  return problems;
}

std::string StatusText(const ClusterSnapshot& report,
                       const std::vector<wire::ModelStatus>& loaded) {
  const std::string coordinator = CoordinatorName(report);
  std::vector<std::vector<std::string>> nodes = {
      {"NODE", "STATE", "DEVICE", "MEMORY FREE", "OF", "BANDWIDTH"}};
  for (const NodeReport& node : report.nodes) {
    if (node.info.devices().empty()) nodes.push_back({node.name(), node.seen.state()});
    bool first = true;
    for (const wire::DeviceInfo& device : node.info.devices()) {
      nodes.push_back({first ? node.name() : "", first ? node.seen.state() : "", device.name(),
                       BytesText(device.memory_free()), BytesText(device.memory_total()),
                       BandwidthText(device)});
      first = false;
    }
  }
  std::string out = absl::StrCat("Cluster ", report.cluster.cluster(), ", ",
                                 coordinator.empty() ? "no node" : coordinator, " coordinates\n\n",
                                 TextTable(nodes).Text());

  const std::vector<ModelView> models = ModelsOf(report, nullptr);
  for (const ModelView& model : models) {
    std::vector<std::vector<std::string>> stages = {{"STAGE", "LAYERS", "NODE", "DEVICE", "MEMORY",
                                                     "STEPS", "TOK/S", "IDLE", "NEXT BY", "DOING"}};
    std::vector<std::string> notes;
    for (const StageView& stage : model.stages) {
      const wire::StageStatus& status = stage.status;
      stages.push_back({StageText(stage), LayersText(status.layers()), stage.node, status.device(),
                        status.resident_bytes() == 0 ? "" : BytesText(status.resident_bytes()),
                        stage.n_missing > 0 ? "" : absl::StrCat(status.steps_done()),
                        RowsText(stage), IdleText(stage), status.link_wire(), DoingText(stage)});
      if (!status.link_note().empty()) {
        notes.push_back(absl::StrCat("from stage ", status.stage(), " by ", status.link_wire(),
                                     ": ", status.link_note()));
      }
    }
    absl::StrAppend(&out, "\nModel ", model.name.empty() ? "without a name" : model.name,
                    ", epoch ", model.epoch.counter(), UseText(loaded, model.id), "\n",
                    TextTable(stages).Text());
    for (const std::string& note : notes) {
      absl::StrAppend(&out, PrintableText::From(note, kShownMessageBytesMax), "\n");
    }
  }

  std::vector<std::vector<std::string>> links = {
      {"LINK", "", "16 KiB THERE AND BACK", "99 %", "THROUGHPUT"}};
  const std::vector<LinkView> measured = LinksOf(report);
  for (const LinkView& link : measured) {
    if (links.size() > kLinksShownMax) break;
    links.push_back({link.from, link.to,
                     absl::StrFormat("%.2f ms", link.speed->round_trip_p50_us() / 1e3),
                     absl::StrFormat("%.2f ms", link.speed->round_trip_p99_us() / 1e3),
                     LinkRateText(link.speed->bytes_per_s())});
  }
  if (links.size() > 1) absl::StrAppend(&out, "\n", TextTable(links).Text());
  if (measured.size() > kLinksShownMax) {
    absl::StrAppend(&out, "and ", measured.size() - kLinksShownMax, " more; --json has them all\n");
  }
  const std::vector<std::string> problems = ProblemsOf(report, models);
  if (!problems.empty()) absl::StrAppend(&out, "\n");
  for (const std::string& problem : problems) {
    absl::StrAppend(&out, "! ", PrintableText::From(problem, kShownMessageBytesMax), "\n");
  }
  return out;
}

namespace {

json ReplicasJson(const wire::StageStatus& stage) {
  json replicas = json::array();
  for (const wire::ReplicaStatus& replica : stage.replicas()) {
    replicas.push_back({{"node", PrintableText::From(replica.node_name())},
                        {"layers", {replica.layers().begin(), replica.layers().end()}},
                        {"bytes_behind", replica.bytes_behind()},
                        {"problem", PrintableText::From(replica.note(), kShownPathBytesMax)}});
  }
  return replicas;
}

json StageJson(const wire::StageStatus& stage, const PrintableText& model_name) {
  const bool ok = stage.status().code() == 0;
  return {
      {"stage", stage.stage()},
      {"layers", {stage.layers().begin(), stage.layers().end()}},
      {"model", model_name},
      {"epoch", stage.epoch().counter()},
      {"n_stages", stage.n_stages()},
      {"device", stage.device()},
      {"state", StateText(stage.state())},
      {"bytes_done", stage.progress().bytes_done()},
      {"bytes_total", stage.progress().bytes_total()},
      {"worker_pid", stage.worker_pid()},
      {"resident_bytes", stage.resident_bytes()},
      {"busy_ms", stage.busy_ms()},
      {"steps_done", stage.steps_done()},
      {"busy_us", stage.busy_us()},
      {"rows", stage.rows()},
      {"bytes_in", stage.bytes_in()},
      {"bytes_out", stage.bytes_out()},
      {"kv_disk_bytes", stage.kv_disk_bytes()},
      {"replicas", ReplicasJson(stage)},
      {"activations", ActivationTypeName(stage.activations().type())},
      {"f32_rows_max", stage.activations().f32_rows_max()},
      {"link_wire", stage.link_wire()},
      {"link_note", stage.link_note()},
      {"idle_share", stage.window_ms() == 0 ? json() : json(stage.idle_share())},
      {"tokens_per_s", stage.window_ms() == 0 ? json() : json(stage.rows_per_s())},
      {"told_ms", stage.told_ms()},
      {"ok", ok},
      {"problem", ok || IsLoading(stage) ? "" : std::string(FromWire(stage.status()).message())}};
}

}  // namespace

json StatusJson(const ClusterSnapshot& report, const std::vector<wire::ModelStatus>& loaded) {
  const std::vector<ModelView> models = ModelsOf(report, nullptr);
  std::map<std::string, PrintableText> shown;  // by id
  for (const ModelView& model : models) shown.emplace(model.id, model.name);
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
      stages.push_back(StageJson(stage, stage.model_id().empty()
                                            ? PrintableText::From(stage.model_name())
                                            : shown[stage.model_id()]));
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
  json stays = json::array();
  for (const wire::ModelStatus& model : loaded) {
    stays.push_back({{"id", absl::BytesToHexString(model.model_id())},
                     {"name", model.name()},
                     {"keep_alive_ms", model.keep_alive_ms()},
                     {"idle_ms", model.idle_ms()},
                     {"pinned", model.pinned()},
                     {"draft", model.draft()},
                     {"draft_tokens", model.draft_tokens()},
                     {"accepted_tokens", model.accepted_tokens()}});
  }
  return {{"cluster", report.cluster.cluster()},
          {"coordinator", absl::BytesToHexString(report.cluster.coordinator())},
          {"epoch", report.cluster.epoch().counter()},
          {"nodes", std::move(nodes)},
          {"models", std::move(stays)},
          {"waiting", WaitingNodesJson(report.cluster)},
          {"problems", ProblemsOf(report, models)}};
}

json WaitingNodesJson(const wire::GetClusterResponse& cluster) {
  json waiting = json::array();
  for (const wire::WaitingNode& node : cluster.waiting()) {
    json addresses = json::array();
    for (const std::string& address : node.addresses()) addresses.push_back(address);
    waiting.push_back({{"id", absl::BytesToHexString(node.node_id())},
                       {"name", node.name()},
                       {"addresses", std::move(addresses)}});
  }
  return waiting;
}

absl::Status RunStatus(const StatusOptions& options) {
  if (options.watch) return options.json ? RunStatusLines(options) : RunStatusWatch(options);
  auto client = ConnectToCluster(options.client);
  if (!client.ok()) return client.status();
  auto report = FetchReport((*client)->address(), kOneReportMs);
  if (!report.ok()) return report.status();
  if (!options.json) DisambiguateNodeNames(&*report);
  const std::vector<wire::ModelStatus> loaded = LoadedModels((*client)->address());
  return WriteToStdout(options.json ? JsonLine(StatusJson(*report, loaded))
                                    : StatusText(*report, loaded));
}

}  // namespace strata
