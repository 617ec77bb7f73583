#include "node/run.h"

#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/layer_costs.h"
#include "coordinator/plan_options.h"
#include "coordinator/planner.h"
#include "node/cluster_report.h"
#include "node/machine.h"
#include "node/peer_addresses.h"
#include "node/plan_text.h"
#include "node/standard_output.h"
#include "shard/architecture.h"
#include "shard/model_file.h"

namespace strata {
namespace {

// For nodes that have just come and still measure.
constexpr absl::Duration kMeasureTime = absl::Seconds(20);
constexpr int64_t kEpochMs = 5'000;  // for the coordinator's answer

// A model, the cluster, and the plan for the one on the other.
struct Planned {
  std::string model_path;
  std::shared_ptr<const ModelFile> model;  // shared with the run
  LayerCosts costs;                        // inputs.request points to it
  std::unique_ptr<ClusterClient> client;
  ClusterReport report;
  PlanInputs inputs;
  Plan plan;
};

absl::Status OpenModel(const PlanOptions& options, Planned* planned) {
  std::error_code error;
  planned->model_path = std::filesystem::absolute(options.model, error).string();
  if (error) return absl::InvalidArgumentError(absl::StrCat(options.model, ": ", error.message()));
  auto model = ModelFile::Open(planned->model_path);
  if (!model.ok()) return model.status();
  planned->model = *std::move(model);
  auto costs = CountLayerCosts(planned->model->header(), {.unverified = options.unverified});
  if (!costs.ok()) return costs.status();
  planned->costs = *std::move(costs);
  return absl::OkStatus();
}

using Cancelled = absl::FunctionRef<bool()>;

absl::Status Ask(const PlanOptions& options, Cancelled cancelled, Planned* planned) {
  auto client = ClusterClient::Connect(options.client);
  if (!client.ok()) return client.status();
  planned->client = *std::move(client);
  const absl::Time until = absl::Now() + kMeasureTime;
  for (bool told = false;; told = true) {
    auto report = CollectReport(planned->client.get());
    if (!report.ok()) return report.status();
    planned->report = *std::move(report);
    if (!planned->report.measuring() || absl::Now() > until) return absl::OkStatus();
    if (cancelled()) return absl::CancelledError("interrupted");
    if (!told) fprintf(stderr, "The nodes are measuring their devices and links…\n");
    absl::SleepFor(absl::Milliseconds(500));
  }
}

absl::Status Place(const PlanOptions& options, Planned* planned) {
  planned->inputs = PlanInputsOf(planned->report);
  PlanRequest& request = planned->inputs.request;
  request.costs = &planned->costs;
  auto rule = CutRuleFor(planned->model->header(), options.unverified);
  if (!rule.ok()) return rule.status();
  request.rule = *std::move(rule);
  request.cache.n_ctx = ContextFor({.n_ctx = options.n_ctx}, *planned->model);
  request.cache.n_seqs = options.n_seqs;
  request.cache.n_batch = std::min(request.cache.n_ctx, 512u);
  auto objective = ParseObjective(options.objective);
  if (!objective.ok()) return objective.status();
  request.objective = *objective;
  if (!options.assign.empty()) {
    auto assign = ParseAssign(options.assign);
    if (!assign.ok()) return assign.status();
    request.assignments = *std::move(assign);
  }
  if (!options.exclude.empty()) {
    auto exclude = ParseExclude(options.exclude);
    if (!exclude.ok()) return exclude.status();
    request.exclude = *std::move(exclude);
  }
  if (!options.reserve.empty()) {
    auto reserve = ParseReserve(options.reserve);
    if (!reserve.ok()) return reserve.status();
    request.reserve = *std::move(reserve);
  }
  auto plan = MakePlan(request);
  if (!plan.ok()) return plan.status();
  planned->plan = *std::move(plan);
  return absl::OkStatus();
}

// The address of this machine's by which `address` (host:port) reaches it: what the system would
// send from.
absl::StatusOr<std::string> HostTowards(const std::string& address) {
  auto target = ParseHostPort(address);
  if (!target.ok()) return target.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(target->host.c_str(), absl::StrCat(target->port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat(address, ": ", gai_strerror(error)));
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
    if (fd < 0) continue;
    absl::Cleanup close_fd = [fd] { close(fd); };
    sockaddr_storage own = {};
    socklen_t own_bytes = sizeof own;
    char host[NI_MAXHOST];
    // Nothing is sent: connecting a datagram socket only chooses the way.
    if (connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), own_bytes, host, sizeof host, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return own.ss_family == AF_INET6 ? absl::StrCat("[", host, "]") : std::string(host);
    }
  }
  return absl::UnavailableError(absl::StrCat("no way leads to ", address));
}

// Only the coordinator gives epochs.
absl::StatusOr<wire::Epoch> NextEpoch(const ClusterReport& report) {
  for (const NodeReport& node : report.nodes) {
    if (node.id() != report.cluster.coordinator() || node.client == nullptr) continue;
    return ClusterClient::At(node.client->address(), kEpochMs)->NextEpoch();
  }
  return absl::UnavailableError("no node coordinates at present; try again in a few seconds");
}

absl::Status MakePlanned(const PlanOptions& options, Cancelled cancelled, Planned* planned) {
  if (auto s = OpenModel(options, planned); !s.ok()) return s;
  if (auto s = Ask(options, cancelled, planned); !s.ok()) return s;
  return Place(options, planned);
}

}  // namespace

absl::Status RunPlan(const PlanOptions& options) {
  Planned planned;
  if (auto s = MakePlanned(options, [] { return false; }, &planned); !s.ok()) return s;
  const PlanRequest& request = planned.inputs.request;
  const std::string text = options.json ? PlanJson(*planned.model, request, planned.plan)
                                        : PlanText(*planned.model, request, planned.plan);
  return WriteToStdout(text);
}

absl::Status RunRun(const RunOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error of a write
  TextRun run(options.text);
  Planned planned;
  PlanOptions plan = options.plan;
  plan.n_ctx = options.text.n_ctx;
  plan.unverified = options.text.unverified;
  if (auto s = MakePlanned(plan, [&run] { return run.interrupted(); }, &planned); !s.ok())
    return run.Explain(s);
  auto epoch = NextEpoch(planned.report);
  if (!epoch.ok()) return run.Explain(epoch.status());

  TextStages stages;
  stages.model = planned.model;
  stages.model_path = planned.model_path;
  stages.epoch = *std::move(epoch);
  for (const PlannedStage& stage : planned.plan.stages) {
    const PlanDevice& device = planned.inputs.request.devices[stage.device];
    stages.layers.push_back(stage.layers);
    stages.nodes.push_back(planned.report.nodes[planned.inputs.places[device.node]].client.get());
    stages.devices.push_back(device.name);
  }
  for (const NodeReport& node : planned.report.nodes) {
    // The node that can read the file: one on this machine.
    if (node.client == nullptr || node.info.machine_id().empty()) continue;
    if (node.info.machine_id() != MachineId()) continue;
    if (stages.source == nullptr || node.id() == planned.report.cluster.asked()) {
      stages.source = node.client.get();
    }
  }
  auto host = HostTowards(stages.nodes.back()->address());
  if (!host.ok()) return host.status();
  stages.listen_host = *std::move(host);
  return run.Run(std::move(stages));
}

}  // namespace strata
