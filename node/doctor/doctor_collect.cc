#include "node/doctor/doctor_collect.h"

#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/models/node_match.h"
#include "node/base/data_dir.h"
#include "node/doctor/doctor_machine.h"
#include "node/doctor/doctor_node.h"
#include "node/doctor/doctor_reach.h"
#include "transport/base/event_loop.h"
#include "transport/base/node_id.h"
#include "transport/base/peer_addresses.h"
#include "transport/base/version.h"

namespace strata {
namespace {

constexpr uint64_t kListenMs = 2'000;  // for nodes that announce themselves
constexpr int64_t kClusterAnswerMs = 3'000;

class RecordListener final : public Discovery::Listener {
 public:
  explicit RecordListener(std::vector<DiscoveryRecord>* records) : records_(records) {}
  void OnFound(const DiscoveryRecord& record) override {
    OnLost(record.node_id);
    records_->push_back(record);
  }
  void OnLost(const std::string& node_id) override {
    std::erase_if(*records_, [&](const auto& each) { return each.node_id == node_id; });
  }

 private:
  std::vector<DiscoveryRecord>* const records_;
};

absl::Status ListenForNodes(std::vector<DiscoveryRecord>* records) {
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  RecordListener listener(records);
  auto discovery = Discovery::StartMdns(loop.get(), {.self = {.node_id = NewNodeId()}}, &listener);
  if (!discovery.ok()) return discovery.status();
  const auto timer = loop->StartTimer({.delay_ms = kListenMs}, [&loop] { loop->Stop(); });
  loop->Run();
  return absl::OkStatus();
}

std::string HostOf(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  return parsed.ok() ? parsed->host : "";
}

// The target as given: HOST, HOST:PORT, a bare IPv6 address, a name, the start of an id.
struct Target {
  explicit Target(const std::string& given) : text(given), host(given) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(given);
    if (!parsed.ok()) return;
    host = parsed->host;
    port = parsed->port;
  }
  bool IsAt(const std::string& address) const {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
    if (!parsed.ok() || (port != 0 && parsed->port != port)) return false;
    return parsed->host == host || ips.contains(parsed->host);
  }

  std::string text;
  std::string host;
  uint16_t port = 0;  // 0: not given
  std::set<std::string> ips;
};

class Collector {
 public:
  explicit Collector(const CollectOptions& options) : options_(options), target_(options.target) {}

  absl::StatusOr<DoctorFacts> Run();

 private:
  absl::Status FindCluster();
  bool IsHere(const std::string& address) const;
  void ChooseNodes();
  void ExamineHost();
  void QueryNodes(size_t first);
  bool Matches(const wire::NodeRecord& record) const;

  const CollectOptions& options_;
  Target target_;
  DoctorFacts facts_;
  std::vector<std::unique_ptr<DoorHandle>> doors_;  // as facts_.nodes
};

absl::Status Collector::FindCluster() {
  auto client = ConnectToCluster(options_.client);
  if (absl::IsInvalidArgument(client.status())) return client.status();
  facts_.cluster_status = client.status();
  facts_.first_address = options_.client.node;
  facts_.outside = !options_.client.node.empty() && !IsHere(options_.client.node);
  if (!client.ok()) {
    // Examines why the named node does not answer.
    if (target_.text.empty() && !options_.client.node.empty()) {
      target_ = Target(options_.client.node);
    }
    return absl::OkStatus();
  }
  facts_.first_address = (*client)->address();
  auto cluster = (*client)->GetCluster();
  facts_.cluster_status = cluster.status();
  if (cluster.ok()) facts_.cluster = *std::move(cluster);
  return absl::OkStatus();
}

bool Collector::IsHere(const std::string& address) const {
  const std::string host = HostOf(address);
  const std::vector<InterfaceAddress> own = ReadInterfaceAddresses();
  return IsLoopbackHost(host) || address == facts_.last_address ||
         std::any_of(own.begin(), own.end(), [&](const auto& each) { return each.ip == host; });
}

bool Collector::Matches(const wire::NodeRecord& record) const {
  if (MatchesNode(target_.text,
                  {.name = record.name(), .id_hex = absl::BytesToHexString(record.node_id())})) {
    return true;
  }
  return std::any_of(record.addresses().begin(), record.addresses().end(),
                     [this](const std::string& address) { return target_.IsAt(address); });
}

// The called node first, then those to examine.
void Collector::ChooseNodes() {
  const auto add = [this](const wire::ClusterNode& seen) {
    NodeFacts& node = facts_.nodes.emplace_back();
    node.seen = seen;
    return facts_.nodes.size() - 1;
  };
  for (const wire::ClusterNode& seen : facts_.cluster.nodes()) {
    if (seen.record().node_id() == facts_.cluster.asked()) add(seen);
  }
  if (facts_.nodes.empty()) return;
  facts_.nodes[0].here = IsHere(facts_.first_address);
  for (const wire::ClusterNode& seen : facts_.cluster.nodes()) {
    const bool is_asked = seen.record().node_id() == facts_.cluster.asked();
    if (target_.text.empty()) {
      if (!is_asked && facts_.nodes.size() < kDoctorNodesMax) add(seen);
    } else if (Matches(seen.record())) {
      // Several nodes may be on one host: takes one that is not alive, if any.
      if (facts_.target.has_value() && (is_asked || seen.state() == "alive")) continue;
      if (facts_.target.value_or(0) != 0) facts_.nodes.pop_back();
      facts_.target = is_asked ? 0 : add(seen);
    }
  }
}

void Collector::ExamineHost() {
  HostFacts& host = facts_.host.emplace();
  host.host = target_.host;
  host.port = target_.port;
  std::vector<std::string> candidates;
  const auto add = [&candidates](const std::string& address) {
    if (std::find(candidates.begin(), candidates.end(), address) == candidates.end()) {
      candidates.push_back(address);
    }
  };
  for (const DiscoveryRecord& record : facts_.heard) {
    const bool at = std::any_of(record.addresses.begin(), record.addresses.end(),
                                [this](const std::string& each) { return target_.IsAt(each); });
    if (!at && !MatchesNode(target_.text, {.name = record.name, .id_hex = record.node_id}))
      continue;
    host.heard.push_back(record);
    for (const std::string& address : record.addresses) add(address);
  }
  host.port_guessed = host.port == 0 && host.heard.empty();
  if (host.port_guessed) host.port = kDefaultPort;
  auto ips = ResolveHost(target_.host);
  host.resolved = ips.status();
  if (ips.ok()) host.ips = *std::move(ips);
  if (host.port != 0) {
    for (const std::string& ip : host.ips) add(JoinHostPort(ip, host.port));
  }

  NodeFacts node;
  node.known = false;
  std::unique_ptr<DoorHandle> door;
  QueryNode(candidates, /*through=*/"", &node, &door);
  host.tries = node.tries;
  if (node.address.empty()) return;
  for (const wire::ReachResult& tried : node.tries) {
    if (tried.address() != node.address) continue;
    node.seen.mutable_record()->set_cluster(tried.who().cluster());
    node.seen.mutable_record()->mutable_versions()->set_protocol(tried.who().protocol());
  }
  for (const wire::ClusterNode& seen : node.sees.nodes()) {
    if (seen.record().node_id() == node.id()) node.seen = seen;
  }
  // The cluster may know it by another address.
  for (size_t i = 0; i < facts_.nodes.size(); ++i) {
    if (facts_.nodes[i].id() != node.id()) continue;
    facts_.target = i;
    facts_.host.reset();
    return;
  }
  for (const wire::ClusterNode& seen : facts_.cluster.nodes()) {
    if (seen.record().node_id() != node.id()) continue;
    node.seen = seen;
    node.known = true;
    facts_.host.reset();
  }
  facts_.target = facts_.nodes.size();
  facts_.nodes.push_back(std::move(node));
  doors_.push_back(std::move(door));
}

void Collector::QueryNodes(size_t first) {
  doors_.resize(facts_.nodes.size());
  std::vector<std::thread> threads;
  for (size_t i = first; i < facts_.nodes.size(); ++i) {
    NodeFacts* node = &facts_.nodes[i];
    std::vector<std::string> candidates;
    const auto add = [&candidates](const std::string& address) {
      if (!address.empty() &&
          std::find(candidates.begin(), candidates.end(), address) == candidates.end()) {
        candidates.push_back(address);
      }
    };
    if (i == 0) {
      add(facts_.first_address);
    } else {
      // A scope is valid only on the machine of the node that was called.
      if (facts_.nodes[0].here || !absl::StrContains(node->seen.address(), '%')) {
        add(node->seen.address());
      }
      for (const std::string& address : node->seen.record().addresses()) {
        if (IsDialable(address)) add(address);
      }
    }
    std::unique_ptr<DoorHandle>* door = &doors_[i];
    const bool reached = i > 0 && node->seen.state() == "alive" && !node->seen.address().empty();
    threads.emplace_back(
        [candidates, node, door, through = reached ? facts_.first_address : std::string()] {
          QueryNode(candidates, through, node, door);
        });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::StatusOr<DoctorFacts> Collector::Run() {
  facts_.versions = LocalVersions();
  const absl::StatusOr<std::string> dir = DataDir::PathOf(options_.client.data_dir);
  if (dir.ok()) {
    if (auto address = DataDir::ReadAddress(*dir); address.ok()) facts_.last_address = *address;
  }
  {
    std::thread examine([this, folder = dir.ok() ? *dir : std::string()] {
      facts_.here =
          ExamineMachine({.data_dir = folder, .program = options_.program, .cancelled = nullptr});
    });
    std::thread listen([this] { facts_.mdns = ListenForNodes(&facts_.heard); });
    const absl::Cleanup join = [&] {
      examine.join();
      listen.join();
    };
    if (absl::Status status = FindCluster(); !status.ok()) return status;
    if (!target_.text.empty()) {
      if (auto ips = ResolveHost(target_.host); ips.ok()) target_.ips = {ips->begin(), ips->end()};
    }
    ChooseNodes();
    QueryNodes(0);
  }
  if (!target_.text.empty() && !facts_.target.has_value()) ExamineHost();

  std::vector<std::thread> threads;
  for (size_t i = 0; i < facts_.nodes.size(); ++i) {
    if (!facts_.nodes[i].status.ok() || facts_.nodes.size() == 1) continue;
    threads.emplace_back([this, i] { CheckLinksOf(i, &facts_.nodes); });
  }
  for (std::thread& thread : threads) thread.join();
  doors_.clear();
  if (facts_.cluster_status.ok() && facts_.cluster.coordinator().empty()) {
    // Nodes that have just started agree within this time.
    auto now = ClusterStub(facts_.first_address, kClusterAnswerMs).GetCluster();
    if (now.ok()) facts_.cluster = *std::move(now);
  }
  return std::move(facts_);
}

}  // namespace

absl::StatusOr<DoctorFacts> CollectFacts(const CollectOptions& options) {
  return Collector(options).Run();
}

}  // namespace strata
