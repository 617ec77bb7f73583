#include "tests/sim/recovery_sim.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "node/gateway/request_router.h"
#include "tests/coordinator/planner/planner_instance.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_run.h"
#include "tests/sim/sim_text.h"

namespace strata {
namespace {

constexpr uint64_t kLayerBytes = 256ull << 20;
constexpr uint64_t kRoomBytes = 700ull << 20;  // for vocabulary, graphs and caches
constexpr int64_t kBoundsEveryMs = 50;
constexpr size_t kBackupsMax = 8;

ClusterSim::Options ClusterOf(const RecoverySim::Options& options) {
  ClusterSim::Options cluster;
  cluster.seed = options.seed;
  cluster.nodes = options.nodes;
  return cluster;
}

}  // namespace

// The clock of a node, which goes on while its process does not run.
class RecoverySim::NodeClock final : public Clock {
 public:
  NodeClock(const ClusterSim* cluster, size_t node) : cluster_(cluster), node_(node) {}
  int64_t NowUs() const override { return cluster_->LocalUs(node_); }

 private:
  const ClusterSim* const cluster_;
  const size_t node_;
};

RecoverySim::RecoverySim(const Options& options)
    : options_(options),
      cluster_(ClusterOf(options)),
      processes_(&cluster_, options.nodes),
      nodes_(options.nodes) {
  model_.file = SimModelFile();
  model_.costs = testing::EqualLayers(options.layers, kLayerBytes);
  model_.rule = testing::CutAnywhere(options.layers);
  model_.cache = {
      .n_ctx = 96, .n_seqs = 2 + static_cast<uint32_t>(cluster_.Random(3)), .n_batch = 32};
  if (options.tight) model_.cache.kv_cells = 120 + cluster_.Random(80);
  model_.trims = cluster_.Random(3) != 0;
  model_.plans_past_memory = options.plans_past_memory;
  model_.plans_on_drained_nodes = options.plans_on_drained_nodes;
  policy_.chunk_tokens = 8 + static_cast<uint32_t>(cluster_.Random(32));
  if (options.tight) policy_.queue_max = 4 + static_cast<uint32_t>(cluster_.Random(8));
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    node.clock = std::make_unique<NodeClock>(&cluster_, n);
    // All but two hold the model, and none holds it alone: if that one coordinates and dies, no
    // node is left that knows the model. In tight runs anything may be.
    const auto share = static_cast<uint64_t>((options.layers + options.nodes - 3) /
                                             std::max<size_t>(options.nodes - 2, 2));
    const uint64_t layers =
        options.tight ? 1 + cluster_.Random(options.layers) : share + cluster_.Random(2);
    node.memory_bytes = layers * kLayerBytes + kRoomBytes;
    if (options.tight && cluster_.Random(4) == 0) node.truth = 1.2;
    model_.bytes_per_s.push_back(10e9 * (1 + static_cast<double>(cluster_.Random(8))));
    node.disk = {.free_bytes = UINT64_MAX, .layer_bytes = kLayerBytes};
    node.has_file = !options.tight || n == 0 || cluster_.Random(2) == 0;
    if (options.small_disks && options.tight) {
      node.disk.free_bytes = cluster_.Random(options.layers + 1) * kLayerBytes;
    } else if (options.small_disks && n + 1 == nodes_.size()) {
      node.has_file = false;
      node.disk.free_bytes = 0;
    }
    if (node.has_file) model_.sources.push_back(n);
  }
}

RecoverySim::~RecoverySim() {
  for (size_t n = 0; n < nodes_.size(); ++n) Crash(n);
  processes_.ForgetConnections();
  cluster_.ForgetCalls();
}

void RecoverySim::Start(size_t n) {
  Crash(n);
  cluster_.Start(n, 2);
  processes_.Started(n);
  Node& node = nodes_[n];
  SimCluster cluster;
  cluster.processes = &processes_;
  cluster.host_of = [this](size_t k) { return nodes_[k].host.get(); };
  cluster.violation = [this](const std::string& what) { cluster_.Fail(what); };
  SimHost::Options host;
  host.processes = &processes_;
  host.node = n;
  host.memory_bytes = node.memory_bytes;
  host.truth = node.truth;
  if (!node.has_file) host.disk = &node.disk;
  host.failures_per_mille = options_.step_failures_per_mille;
  host.host_of = cluster.host_of;
  host.violation = cluster.violation;
  host.takes_any_epoch = options_.takes_any_epoch;
  node.host = std::make_unique<SimHost>(std::move(host));
  SimCoordinator::Options coordinator;
  coordinator.cluster = cluster;
  coordinator.node = n;
  coordinator.nodes = nodes_.size();
  coordinator.model = &model_;
  coordinator.engine = {.policy = policy_, .clock = node.clock.get()};
  coordinator.state_disk = &node.state_disk;
  coordinator.forgets_to_write = options_.forgets_to_write;
  coordinator.forgets_unloads = options_.forgets_unloads;
  coordinator.forgets_pending_reloads = options_.forgets_pending_reloads;
  coordinator.forgets_bounds = options_.forgets_bounds;
  coordinator.forgets_leases = options_.forgets_leases;
  coordinator.forgets_stale_stages = options_.forgets_stale_stages;
  node.coordinator = std::make_unique<SimCoordinator>(std::move(coordinator));
  SimGateway::Options gateway;
  gateway.processes = &processes_;
  gateway.node = n;
  gateway.gateway_of = [this](size_t k) { return nodes_[k].gateway.get(); };
  gateway.coordinator = node.coordinator.get();
  gateway.doubles_tokens = options_.doubles_tokens;
  gateway.forgets_requests = options_.forgets_requests;
  gateway.ends_twice = options_.ends_twice;
  node.gateway = std::make_unique<SimGateway>(std::move(gateway));
  node.coordinator->Start();
}

void RecoverySim::End(size_t n) {
  Node& node = nodes_[n];
  if (node.host == nullptr) return;
  for (const auto& client : clients_) {
    if (client->node() == n) client->Gone();
  }
  for (const auto& hold : holds_) {
    if (hold->node() == n) hold->End();
  }
  AddCounts(node, &ended_);
  node.coordinator = nullptr;
  node.gateway = nullptr;
  node.host = nullptr;
  cluster_.SetLive(n, 0);
  const std::string bytes = std::exchange(node.state_disk.being_written, "");
  const size_t written = bytes.empty() || node.state_disk.fails ? 0 : cluster_.Random(3);
  if (written == 1) node.state_disk.file = bytes;
  if (written == 2) node.state_disk.file = bytes.substr(0, cluster_.Random(bytes.size()));
  disks_fail_ = disks_fail_ || written == 2 || node.state_disk.has_failed;
  if (disks_fail_) ForgetLostLists();
}

void RecoverySim::Acknowledge(size_t n) {
  acknowledged_ = std::max(acknowledged_, cluster_.membership(n).desired()->version);
  ++ended_.lists;
  for (Node& node : nodes_) {
    if (node.state_disk.file.ok() && node.backups.size() < kBackupsMax) {
      node.backups.push_back(*node.state_disk.file);
    }
  }
}

// With the disks that alone had them.
void RecoverySim::ForgetLostLists() {
  DesiredVersion newest;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (cluster_.running(n)) {
      newest = std::max(newest, cluster_.membership(n).desired()->version);
    } else if (nodes_[n].state_disk.file.ok()) {
      const auto kept = ParseDesiredState(*nodes_[n].state_disk.file, cluster_.IdOf(n).ToHex());
      if (kept.ok()) newest = std::max(newest, kept->version);
    }
  }
  if (newest >= acknowledged_) return;
  acknowledged_ = newest;
  ++ended_.lost_lists;
}

void RecoverySim::CutPower() {
  cluster_.Note("the power fails");
  for (size_t n = 0; n < nodes_.size(); ++n) Crash(n);
}

void RecoverySim::BreakDisk(size_t n, DiskFault fault) {
  if (nodes_[n].host != nullptr) return;
  SimStateDisk& disk = nodes_[n].state_disk;
  const std::vector<std::string>& backups = nodes_[n].backups;
  switch (fault) {
    case DiskFault::kOldBackup:
      if (!backups.empty()) disk.file = backups[cluster_.Random(backups.size())];
      break;
    case DiskFault::kCopyOfAnother:
      disk.file = nodes_[cluster_.Random(nodes_.size())].state_disk.file;
      break;
    case DiskFault::kDamage:
      if (disk.file.ok() && !disk.file->empty()) {
        (*disk.file)[cluster_.Random(disk.file->size())] ^= 1;
      }
      break;
  }
  cluster_.Note(absl::StrCat("the disk of ", n, " breaks: ", static_cast<int>(fault)));
  disks_fail_ = true;
  ForgetLostLists();
}

void RecoverySim::SetDiskFails(size_t n, bool fails) {
  if (std::exchange(nodes_[n].state_disk.fails, fails) == fails) return;
  cluster_.Note(absl::StrCat("the disk of ", n, fails ? " takes no more" : " takes more again"));
}

std::string RecoverySim::Undesired() {
  const std::optional<size_t> leader = Leader();
  if (!leader) return "no node coordinates";
  const DesiredState& desired = *cluster_.membership(*leader).desired();
  if (desired.version < acknowledged_) return "a list that all disks had is lost";
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (!cluster_.running(n)) continue;
    if (*cluster_.membership(n).desired() != desired) {
      return absl::StrCat("node ", n, " has another list than its coordinator");
    }
    const SimStateDisk& disk = nodes_[n].state_disk;
    if (disk.fails || desired.version == DesiredVersion()) continue;
    if (!disk.file.ok()) return absl::StrCat("the disk of node ", n, " has no list");
    const auto kept = ParseDesiredState(*disk.file, cluster_.IdOf(n).ToHex());
    if (!kept.ok() || *kept != desired) {
      return absl::StrCat("the disk of node ", n, " has another list");
    }
  }
  if (nodes_[*leader].coordinator->KeepsModel() != !desired.models.empty()) {
    return desired.models.empty() ? "a model that was unloaded is there"
                                  : "a model that is to stay loaded is forgotten";
  }
  return "";
}

void RecoverySim::AddCounts(const Node& node, Counts* counts) {
  counts->recoveries += node.coordinator->recoveries();
  counts->reloads += node.coordinator->reload_count();
  counts->moves += node.coordinator->moves();
  counts->moves_by_reload += node.coordinator->moves_by_reload();
  counts->drains += node.coordinator->drains();
  counts->resumed += node.gateway->resumed();
  counts->doubled += node.gateway->doubled();
  counts->strays += node.host->refused();
  counts->kept += node.host->kept();
}

void RecoverySim::Crash(size_t n) {
  cluster_.Crash(n);
  End(n);
}

void RecoverySim::Stop(size_t n) {
  Node& node = nodes_[n];
  if (node.host == nullptr || cluster_.paused_until_us(n) > cluster_.now_us()) return;
  for (const auto& client : clients_) {
    if (client->node() == n) client->Gone();
  }
  node.gateway->Stop();
  node.coordinator->Stop();
  SimStateDisk& disk = node.state_disk;
  if (std::string bytes = std::exchange(disk.being_written, ""); !bytes.empty() && !disk.fails) {
    disk.file = std::move(bytes);
  }
  cluster_.Leave(n);
  End(n);
}

void RecoverySim::KillWorker(size_t n) {
  if (nodes_[n].host == nullptr || !nodes_[n].host->holds_stages()) return;
  cluster_.Note(absl::StrCat("the worker of ", n, " dies"));
  nodes_[n].host->KillWorker();
}

void RecoverySim::SendRequest(size_t n) {
  if (nodes_[n].host == nullptr) return;
  SimClient::Options options;
  options.number = clients_.size();
  options.node = n;
  options.layers = options_.layers;
  options.n_ctx = model_.cache.n_ctx;
  options.steps_fail = options_.step_failures_per_mille > 0;
  options.violation = [this](const std::string& what) { cluster_.Fail(what); };
  wire::GenerateRequest& request = options.request;
  // Many begin alike.
  const size_t alike = cluster_.Random(24);
  const size_t length = 1 + alike + cluster_.Random(12);
  for (size_t i = 0; i < length; ++i) {
    request.add_tokens(static_cast<int32_t>(i < alike ? i * 7 : cluster_.Random(kSimVocabulary)));
  }
  request.set_tokens_max(1 + static_cast<uint32_t>(cluster_.Random(70)));
  request.mutable_sampler()->set_seed(cluster_.Random(1'000'000));
  request.set_client(absl::StrCat("client ", cluster_.Random(3)));
  // Drafts: right ones, now and then a wrong one, or hardly any.
  const uint64_t wrong_in = std::array{3, 10, 100, 0}[cluster_.Random(4)];
  SimSequence text(options_.layers, {request.tokens().begin(), request.tokens().end()});
  for (uint32_t i = 0; wrong_in != 0 && i < request.tokens_max(); ++i) {
    const SimChoice next = text.Next(request.sampler().seed());
    const bool is_wrong = cluster_.Random(wrong_in) == 0;
    request.add_prediction(is_wrong ? static_cast<int32_t>(cluster_.Random(kSimVocabulary))
                                    : next.token);
    text.Push(next.token);
  }
  clients_.push_back(std::make_shared<SimClient>(options));
  const std::shared_ptr<SimClient> client = clients_.back();  // shared with the request's source
  processes_.In(n, cluster_.now_us(), [this, n, client, request] {
    const auto handle = nodes_[n].gateway->Generate(request, client);
    if (client->open()) client->SetHandle(handle);
  });
}

void RecoverySim::StopRequest() {
  if (clients_.empty()) return;
  const std::shared_ptr<SimClient> client = clients_[cluster_.Random(clients_.size())];
  const bool finish = cluster_.Random(2) == 0;
  if (!client->open() || !client->has_handle()) return;
  processes_.In(client->node(), cluster_.now_us(), [client, finish] {
    if (client->open()) client->Stop(finish);
  });
}

std::optional<size_t> RecoverySim::Leader(size_t after) {
  for (size_t k = 0; k < nodes_.size(); ++k) {
    const size_t n = (after + k) % nodes_.size();
    if (nodes_[n].host == nullptr) continue;
    const ClusterView& view = cluster_.View(n);
    if (view.is_coordinator && view.settled) return n;
  }
  return std::nullopt;
}

bool RecoverySim::Load() {
  const std::optional<size_t> leader = Leader(cluster_.Random(nodes_.size()));
  if (!leader) return false;
  const size_t source = model_.sources[cluster_.Random(model_.sources.size())];
  processes_.In(*leader, cluster_.now_us(), [this, n = *leader, source] {
    nodes_[n].coordinator->Load(source, /*hold=*/false,
                                [this, n](const absl::StatusOr<uint64_t>& loaded) {
                                  if (!loaded.ok()) return;
                                  nodes_[n].coordinator->AwaitDesired([this, n](bool stored) {
                                    if (stored) Acknowledge(n);
                                  });
                                });
  });
  return true;
}

void RecoverySim::Unload() {
  const std::optional<size_t> leader = Leader(cluster_.Random(nodes_.size()));
  if (!leader) return;
  processes_.In(*leader, cluster_.now_us(), [this, n = *leader] {
    nodes_[n].coordinator->Unload([this, n](bool stored) {
      if (stored) Acknowledge(n);
    });
  });
}

void RecoverySim::HoldModel(size_t n) {
  if (nodes_[n].host == nullptr) return;
  SimRun::Options options;
  options.processes = &processes_;
  options.node = n;
  options.source = model_.sources[cluster_.Random(model_.sources.size())];
  options.coordinator_of = [this](size_t k) { return nodes_[k].coordinator.get(); };
  holds_.push_back(std::make_shared<SimRun>(std::move(options)));
  processes_.In(n, cluster_.now_us(), [hold = holds_.back()] { hold->Begin(); });
}

void RecoverySim::EndHolds() {
  for (const auto& hold : holds_) hold->End();
}

void RecoverySim::Drain(size_t n) {
  const std::optional<size_t> leader = Leader();
  if (!leader || nodes_[n].host == nullptr) return;
  cluster_.Note(absl::StrCat("node ", n, " is to be drained"));
  processes_.In(*leader, cluster_.now_us(), [this, by = *leader, n] {
    nodes_[by].coordinator->Drain(
        n, [this, by, n, start = processes_.start(n)](const absl::Status& drained) {
          cluster_.Note(absl::StrCat("node ", n, " is drained: ", drained.message()));
          // A node that was started again meanwhile takes stages again.
          if (!drained.ok() || !processes_.IsAlive(n, start) || !nodes_[n].host->draining()) return;
          if (!nodes_[by].coordinator->UsesNode(cluster_.IdOf(n).ToHex())) return;
          cluster_.Fail(absl::StrCat("node ", n, " was drained and has stages"));
        });
  });
}

void RecoverySim::UndoDrains() {
  for (const Node& node : nodes_) {
    if (node.host != nullptr) node.host->SetDraining(false);
  }
}

bool RecoverySim::HasModel() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.coordinator != nullptr && node.coordinator->HasModel();
  });
}

bool RecoverySim::HasStaleStages() {
  const std::optional<size_t> leader = Leader();
  if (!leader) return true;
  for (const Node& node : nodes_) {
    if (node.host == nullptr) continue;
    for (const wire::StageStatus& stage : node.host->Stages()) {
      if (!nodes_[*leader].coordinator->Wants(stage)) return true;
    }
  }
  return false;
}

bool RecoverySim::Serves() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.coordinator != nullptr && node.coordinator->serving();
  });
}

void RecoverySim::CheckBounds() {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].coordinator == nullptr) continue;
    std::string wrong = nodes_[n].coordinator->OverBound();
    if (nodes_[n].gateway->waiting() > kRequestsWaitingMax)
      wrong = "requests that wait at its gateway";
    if (!wrong.empty()) cluster_.Fail(absl::StrCat("node ", n, ": over its bound: ", wrong));
  }
}

void RecoverySim::RunMs(int64_t ms) {
  while (ms > 0 && cluster_.violation().empty()) {
    const int64_t step_ms = std::min(ms, kBoundsEveryMs);
    cluster_.RunMs(step_ms);
    ms -= step_ms;
    CheckBounds();
  }
}

size_t RecoverySim::active_generations() const {
  return static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(),
                                           [](const auto& client) { return client->open(); }));
}

RecoverySim::Counts RecoverySim::counts() const {
  Counts counts = ended_;
  for (const Node& node : nodes_) {
    if (node.host != nullptr) AddCounts(node, &counts);
  }
  counts.holds = holds_.size();
  for (const auto& client : clients_) {
    ++counts.requests;
    counts.tokens += client->tokens();
    switch (client->fate()) {
      case SimClient::Fate::kOpen:
        break;
      case SimClient::Fate::kComplete:
        ++counts.complete;
        break;
      case SimClient::Fate::kFailed:
        ++counts.failed;
        ++counts.failures[std::string(client->status().message())];
        break;
      case SimClient::Fate::kRefused:
        ++counts.refused;
        ++counts.refusals[std::string(client->status().message())];
        break;
      case SimClient::Fate::kStopped:
        ++counts.stopped;
        break;
      case SimClient::Fate::kGone:
        ++counts.gone;
        break;
    }
  }
  return counts;
}

void RecoverySim::Counts::Add(const Counts& other) {
  requests += other.requests;
  complete += other.complete;
  refused += other.refused;
  failed += other.failed;
  gone += other.gone;
  stopped += other.stopped;
  tokens += other.tokens;
  recoveries += other.recoveries;
  reloads += other.reloads;
  kept += other.kept;
  resumed += other.resumed;
  doubled += other.doubled;
  strays += other.strays;
  moves += other.moves;
  moves_by_reload += other.moves_by_reload;
  drains += other.drains;
  holds += other.holds;
  lists += other.lists;
  lost_lists += other.lost_lists;
  for (const auto& [words, n] : other.failures) failures[words] += n;
  for (const auto& [words, n] : other.refusals) refusals[words] += n;
}

std::string RecoverySim::Counts::ToString() const {
  return absl::StrCat(requests, " requests: ", complete, " complete, ", refused, " refused, ",
                      failed, " failed, ", stopped, " stopped, ", gone, " whose node went; ",
                      tokens, " tokens, ", recoveries, " recoveries, ", reloads, " reloads, ", kept,
                      " stages kept, ", resumed, " resumed, ", doubled, " messages doubled, ",
                      strays, " late steps refused, ", moves, " moves, ", moves_by_reload,
                      " moves by a reload, ", drains, " drains, ", holds, " holds, ", lists,
                      " lists kept, ", lost_lists, " lost with their disks");
}

void RecoverySim::CheckEnded() {
  for (const auto& client : clients_) {
    if (client->open()) cluster_.Fail(absl::StrCat("request ", client->number(), " never ends"));
  }
}

}  // namespace strata
