// Discovery of nodes by mDNS and by the addresses that the user gave, and the addresses that this
// node announces.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "coordinator/membership/membership_wire.h"
#include "transport/security/tls_look.h"

namespace strata {
namespace {

// Other keys of clusters with this one's name that are logged; more are not.
constexpr size_t kOtherKeysMax = 8;

// An address with a scope is meaningless on another machine.
bool HasScope(absl::string_view address) { return absl::StrContains(address, '%'); }

}  // namespace

void ClusterRuntime::OnFound(const DiscoveryRecord& record) {
  const absl::StatusOr<NodeId> node = NodeId::FromHex(record.node_id);
  if (leaving_ || !node.ok() || record.cluster != options_.self.cluster) return;
  if (record.waits) return OnWaiting(*node, record);
  waiting_.erase(*node);
  if (record.key_id != key_id_) {  // another cluster, of the same name
    if (!record.key_id.empty() && !key_id_.empty() && logged_keys_.size() < kOtherKeysMax &&
        logged_keys_.insert(record.key_id).second) {
      LOG(WARNING) << record.name
                   << " has another key than this node and is not of its cluster, though that has "
                      "the same name; if this node belongs there, and was restored from before the "
                      "key changed, stop it, move away the file cluster_key in its data dir, start "
                      "it again and admit it (strata approve)";
    }
    return;
  }
  if (*node == id()) return OnOwnIdFound(record);
  if (!MayReturn(*node)) return;  // it announces the new key; connections show whether it has it
  NodeRecord learned = {
      .id = *node, .name = record.name, .cluster = record.cluster, .protocol = record.protocol};
  for (const std::string& address : record.addresses) {
    if (!HasScope(address)) learned.addresses.push_back(address);
  }
  if (absl::Status status = membership_.Learn(learned, clock_->NowUs()); !status.ok()) {
    LOG(INFO) << record.name << ": " << status.message();
    return;
  }
  Peer& peer = PeerOf(*node);
  for (const std::string& address : record.addresses) {
    if (HasScope(address)) peer.paths.Observe(address);
  }
  peer.paths.TryAgain();
  Settle();
}

// Another process announces this node's id: it is probed like an address that the user gave.
void ClusterRuntime::OnOwnIdFound(const DiscoveryRecord& record) {
  for (const std::string& address : record.addresses) {
    if (static_peers_.contains(address) || static_peers_.size() >= kStaticPeersMax ||
        HasScope(address) || absl::c_linear_search(own_addresses_, address)) {
      continue;
    }
    static_peers_[address] = {.found = true};
    StartProbingStaticPeers();
  }
}

void ClusterRuntime::OnWaiting(const NodeId& node, const DiscoveryRecord& record) {
  if (key_id_.empty()) return;  // this cluster has no key
  const bool is_new = !waiting_.contains(node);
  if (is_new && waiting_.size() >= kWaitingNodesMax) return;
  waiting_[node] = record;
  if (is_new) {
    LOG(WARNING) << record.name << " has no key and waits to be admitted: strata approve "
                 << record.name;
  }
}

// Heartbeats are the better sign of life: multicast gets lost sooner than connections.
void ClusterRuntime::OnLost(const std::string& node_id) {
  if (const auto node = NodeId::FromHex(node_id); node.ok()) waiting_.erase(*node);
}

void ClusterRuntime::StartProbingStaticPeers() {
  if (static_timer_ != nullptr) return;
  static_timer_ =
      loop_->StartTimer({.delay_ms = 0, .repeat_ms = static_cast<uint64_t>(options_.peer_retry_ms)},
                        [this] { ProbeStaticPeers(); });
}

void ClusterRuntime::ProbeStaticPeers() {
  LookUpPeerNames();
  for (auto& [address, peer] : static_peers_) {
    if (peer.pending || peer.node == id()) continue;
    const ClusterView::Node* known = membership_.view().Find(peer.node);
    if (known != nullptr && known->state == ClusterView::State::kAlive) continue;
    peer.pending = true;
    transport_->Exchange(address, ToWire(membership_.Probe(clock_->NowUs())), options_.answer_ms,
                         WhileAlive([this, address](absl::StatusOr<wire::Heartbeat> reply) {
                           OnStaticReply(address, std::move(reply));
                         }));
  }
}

void ClusterRuntime::LookUpPeerNames() {
  for (PeerName& peer : peer_names_) {
    if (peer.look_up != nullptr || clock_->NowUs() < peer.next_us) continue;
    peer.look_up = options_.look_up(loop_, peer.name.host, [this, &peer](HostAddresses addresses) {
      OnLookedUp(&peer, std::move(addresses));
    });
  }
}

// Addresses that the name has no more are forgotten; where nobody can be asked, the last ones stay.
void ClusterRuntime::OnLookedUp(PeerName* peer, HostAddresses addresses) {
  peer->look_up.reset();
  peer->next_us = clock_->NowUs() + options_.look_up_ms * 1'000;
  const std::string name = JoinHostPort(peer->name.host, peer->name.port);
  if (!addresses.ok()) {
    if (peer->complaint != addresses.status().message()) {
      peer->complaint = std::string(addresses.status().message());
      LOG(WARNING) << "--peer " << name << ": " << peer->complaint
                   << "; it is looked up again every few seconds";
    }
    return;
  }
  peer->complaint.clear();
  std::set<std::string> now;
  for (const std::string& host : *addresses) now.insert(JoinHostPort(host, peer->name.port));
  std::erase_if(static_peers_, [&](const auto& each) {
    return each.second.name == name && !now.contains(each.first);
  });
  bool is_new = false;
  for (const std::string& address : now) {
    if (static_peers_.size() >= kStaticPeersMax) break;
    is_new |= static_peers_.try_emplace(address, StaticPeer{.name = name}).second;
  }
  if (is_new) ProbeStaticPeers();
}

void ClusterRuntime::OnStaticReply(const std::string& address,
                                   absl::StatusOr<wire::Heartbeat> reply) {
  const auto it = static_peers_.find(address);
  if (it == static_peers_.end()) return;  // its name has another address now
  StaticPeer& peer = it->second;
  peer.pending = false;
  absl::Status status = reply.status();
  if (absl::IsNotFound(status) && !peer.name.empty()) {
    peer.node = id();  // one name for all nodes of a cluster is this node's, too
    return;
  }
  if (status.ok()) {
    absl::StatusOr<Heartbeat> parsed = FromWire(*reply);
    status = parsed.status();
    if (status.ok() && parsed->body->from == id() && !parsed->refused) {
      peer.node = id();
      status = absl::FailedPreconditionError("this is the address of this node itself");
    } else if (status.ok() && !MayReturn(parsed->body->from)) {
      status = absl::PermissionDeniedError("that node was removed from the cluster");
    } else if (status.ok()) {
      status = membership_.OnReply(*parsed, clock_->NowUs());
      if (status.ok() && parsed->body->from != id()) peer.node = parsed->body->from;
    }
    Settle();
    if (status.ok() && membership_.view().Find(peer.node) != nullptr) {
      PeerOf(peer.node).paths.Observe(address);
    }
  }
  if (SaysWrongCertificate(status.message())) {
    status = absl::FailedPreconditionError(
        "a node with another key is there, or the clock of one of the two nodes is wrong; if this "
        "node belongs to that cluster (was it restored from before the key changed?), stop it, "
        "move away the file cluster_key in its data dir, and start it again");
  }
  // A machine that is not up yet is normal; all else is logged, once.
  if (!peer.found && !status.ok() && !absl::IsUnavailable(status) &&
      !absl::IsDeadlineExceeded(status) && peer.complaint != status.message()) {
    peer.complaint = std::string(status.message());
    LOG(WARNING) << "--peer "
                 << (peer.name.empty() ? address : absl::StrCat(peer.name, " (", address, ")"))
                 << ": " << peer.complaint;
  }
}

std::string ClusterRuntime::MissedNodes() {
  constexpr size_t kNamesMax = 4;
  const ClusterView& now = view();
  if (now.members.size() > 1) return "";
  std::vector<std::string> names;
  for (const ClusterView::Node& node : now.nodes) {
    if (node.record.id == id() || node.ended || node.state == ClusterView::State::kOtherVersion ||
        IsRemoved(node.record.id)) {
      continue;
    }
    names.push_back(node.record.name.str());
  }
  for (const auto& [address, peer] : static_peers_) {
    if (peer.node.is_nobody()) names.push_back(address);
  }
  const size_t more = names.size() - std::min(names.size(), kNamesMax);
  names.resize(names.size() - more);
  return absl::StrCat(absl::StrJoin(names, ", "), more > 0 ? absl::StrCat(" and ", more) : "");
}

void ClusterRuntime::ReadInterfaces() {
  std::vector<InterfaceAddress> addresses = ReadInterfaceAddresses();
  if (!IsAnyHost(listening_.address.host)) {
    std::erase_if(addresses, [this](const InterfaceAddress& each) {
      return each.ip != listening_.address.host;
    });
  }
  if (addresses == interfaces_ && !own_addresses_.empty()) return;
  interfaces_ = std::move(addresses);
  if (discovery_ != nullptr) discovery_->Announce(interfaces_);
  own_addresses_ = OwnAddresses();
  membership_.SetAddresses(own_addresses_, clock_->NowUs());
  for (auto& [node, peer] : peers_) peer->paths.TryAgain();
  Settle();
}

std::vector<std::string> ClusterRuntime::OwnAddresses() const {
  const auto& [host, port] = listening_.address;
  if (!listening_.advertise.empty()) return listening_.advertise;
  if (!IsAnyHost(host)) return {JoinHostPort(host, port)};
  // Loopback only if there is no other: for several nodes on a machine without a network.
  std::vector<std::string> own;
  for (const InterfaceAddress& each : interfaces_) {
    if (each.is_link_local || (each.is_loopback && !own.empty())) continue;
    if (own.size() < kNodeAddressesMax) own.push_back(JoinHostPort(each.ip, port));
  }
  return own;
}

}  // namespace strata
