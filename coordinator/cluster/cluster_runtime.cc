#include "coordinator/cluster/cluster_runtime.h"

#include <time.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/cluster/shared_ids.h"
#include "coordinator/membership/membership_wire.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

// How long others have to take a good-bye.
constexpr uint64_t kLeaveMs = 300;
// A heartbeat that waited longer for a path is not sent: the next one is newer.
constexpr int64_t kWaitingUsMax = 1'000'000;
// Shared ids and names are logged for so many nodes, each once in this time.
constexpr size_t kSharedLoggedMax = 16;
constexpr int64_t kSharedLoggedUs = 600'000'000;

class BootTimeClock final : public Clock {
 public:
  int64_t NowUs() const override {
#ifdef CLOCK_BOOTTIME
    constexpr clockid_t kClock = CLOCK_BOOTTIME;
#else
    constexpr clockid_t kClock = CLOCK_MONOTONIC;  // goes on while a Mac sleeps
#endif
    timespec now;
    CHECK_EQ(clock_gettime(kClock, &now), 0);
    return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
  }
};

}  // namespace

Clock* SleeplessClock() {
  static Clock* const clock = new BootTimeClock;
  return clock;
}

ClusterRuntime::ClusterRuntime(EventLoop* loop, const Clock* clock, Options options,
                               std::unique_ptr<PeerTransport> transport)
    : loop_(loop),
      clock_(clock),
      options_(std::move(options)),
      transport_(std::move(transport)),
      membership_(options_.membership, options_.self, clock->NowUs()),
      key_id_(options_.key_id) {
  for (const std::string& address : options_.peers) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
    if (static_peers_.size() + peer_names_.size() >= kStaticPeersMax) break;
    if (parsed.ok() && !IsNumericHost(parsed->host)) {
      peer_names_.push_back({.name = *parsed});
    } else {
      static_peers_[address];
    }
  }
  transport_->OnBroken([this](const std::string& address) {
    for (const auto& [node, peer] : peers_) {
      if (peer->paths.best() != address || leaving_) continue;
      ProbeAt(node);
      return;
    }
  });
}

ClusterRuntime::~ClusterRuntime() = default;

void ClusterRuntime::Start(Listening listening) {
  listening_ = std::move(listening);
  if (options_.discovery != nullptr) StartDiscovery();
  ReadInterfaces();
  const auto poll_ms = static_cast<uint64_t>(options_.interfaces_poll_ms);
  interfaces_timer_ =
      loop_->StartTimer({.delay_ms = poll_ms, .repeat_ms = poll_ms}, [this] { ReadInterfaces(); });
  if (!static_peers_.empty() || !peer_names_.empty()) StartProbingStaticPeers();
  Pump();
}

void ClusterRuntime::StartDiscovery() {
  DiscoveryRecord self = {.node_id = id().ToHex(),
                          .name = options_.self.name,
                          .cluster = options_.self.cluster,
                          .key_id = PrintableText::From(key_id_),
                          .protocol = options_.self.protocol,
                          .nonce = options_.self.nonce};
  absl::StatusOr<std::unique_ptr<Discovery>> discovery =
      options_.discovery(loop_, {.self = std::move(self), .port = listening_.address.port}, this);
  if (discovery.ok()) {
    discovery_ = *std::move(discovery);
  } else {
    LOG(WARNING) << "mDNS cannot be used, so nodes are found by --peer only: "
                 << discovery.status().message();
  }
}

std::string ClusterRuntime::OwnerLine() const {
  return absl::StrCat(id().ToHex(), " ", key_id_, " ", options_.self.cluster);
}

void ClusterRuntime::SetKeyId(std::string key_id) {
  if (key_id == key_id_) return;
  key_id_ = std::move(key_id);
  if (discovery_ == nullptr) return;
  discovery_.reset();  // withdraws what it announced, which no longer holds
  StartDiscovery();
  if (discovery_ != nullptr) discovery_->Announce(interfaces_);
}

void ClusterRuntime::Remove(const NodeId& node) {
  if (node == id()) return;
  removed_[node] = INT64_MAX;
  membership_.Remove(node, clock_->NowUs());
  Settle();
}

void ClusterRuntime::LetRemovedReturn() {
  for (auto& [node, may_return_us] : removed_) {
    may_return_us = std::min(may_return_us, clock_->NowUs() + kReturnMs * 1000);
  }
}

bool ClusterRuntime::MayReturn(const NodeId& node) {
  const auto it = removed_.find(node);
  if (it == removed_.end()) return true;
  if (clock_->NowUs() < it->second) return false;
  removed_.erase(it);
  // A connection from before does not prove that the node has the new key; the next one does.
  for (const std::string& address : PeerOf(node).paths.addresses()) transport_->Forget(address);
  return true;
}

void ClusterRuntime::Leave(absl::AnyInvocable<void() &&> done) {
  CHECK(!leaving_) << "a node leaves once";
  leaving_ = true;
  left_ = std::move(done);
  discovery_.reset();
  interfaces_timer_.reset();
  static_timer_.reset();
  for (PeerName& peer : peer_names_) peer.look_up.reset();
  membership_.Leave(clock_->NowUs());
  Pump();
  wake_.reset();
  leave_timer_ = loop_->StartTimer({.delay_ms = in_flight_ == 0 ? uint64_t{0} : kLeaveMs},
                                   [this] { LeaveNow(); });
}

void ClusterRuntime::LeaveNow() {
  if (left_) std::move(std::exchange(left_, nullptr))();
}

// --- what is due
// ----------------------------------------------------------------------------------

void ClusterRuntime::Pump() {
  for (OutgoingHeartbeat& each : membership_.Tick(clock_->NowUs())) {
    SendTo(each.to, std::move(each.message));
  }
  Settle();
}

void ClusterRuntime::Settle() {
  if (membership_.changes() != changes_) {
    changes_ = membership_.changes();
    TakeAddresses();
    LogSharedIds();
    LogSharedNames();
    if (on_change_ && !std::exchange(change_posted_, true)) {
      loop_->Post(WhileAlive([this] {
        change_posted_ = false;
        if (on_change_) on_change_();
      }));
    }
  }
  if (leaving_) return;
  const int64_t wait_us = std::max<int64_t>(0, membership_.next_wake_us() - clock_->NowUs());
  wake_ = loop_->StartTimer({.delay_ms = static_cast<uint64_t>((wait_us + 999) / 1000)},
                            [this] { Pump(); });
}

ClusterRuntime::Peer& ClusterRuntime::PeerOf(const NodeId& node) {
  std::unique_ptr<Peer>& peer = peers_[node];
  if (peer == nullptr) peer = std::make_unique<Peer>();
  return *peer;
}

// Takes the addresses that nodes announce, and drops nodes that are no longer known.
void ClusterRuntime::TakeAddresses() {
  const ClusterView& now = membership_.view();
  for (const ClusterView::Node& node : now.nodes) {
    if (node.record.id == id()) continue;
    std::vector<std::string> announced;
    absl::c_copy_if(node.record.addresses, std::back_inserter(announced), IsDialable);
    Peer& peer = PeerOf(node.record.id);
    peer.paths.SetAnnounced(announced);
    // Another process may be at the addresses of the one before, too.
    if (std::exchange(peer.nonce, node.record.nonce) != node.record.nonce) peer.paths.TryAgain();
  }
  std::erase_if(peers_, [&](const auto& each) {
    if (now.Find(each.first) != nullptr) return false;
    for (const std::string& address : each.second->paths.addresses()) transport_->Forget(address);
    return true;
  });
}

void ClusterRuntime::SendTo(const NodeId& node, Heartbeat message) {
  if (IsRemoved(node)) return;
  Peer& peer = PeerOf(node);
  SendProbes(node);
  const int64_t now_us = clock_->NowUs();
  if (peer.in_flight >= kHeartbeatsInFlightMax) return;
  const std::string address = peer.paths.TakeBest(now_us);
  if (address.empty()) {
    peer.waiting = std::make_unique<Heartbeat>(std::move(message));
    peer.waiting_us = now_us;
    return;
  }
  peer.waiting.reset();
  SendOver(node, address, message);
}

void ClusterRuntime::SendOver(const NodeId& node, const std::string& address,
                              const Heartbeat& message) {
  ++PeerOf(node).in_flight;
  ++in_flight_;
  const int64_t sent_us = clock_->NowUs();
  transport_->Exchange(
      address, ToWire(message), options_.answer_ms,
      WhileAlive([this, node, address, sent_us](absl::StatusOr<wire::Heartbeat> reply) {
        const int64_t now_us = clock_->NowUs();
        if (--in_flight_ == 0 && leaving_) LeaveNow();
        const auto it = peers_.find(node);
        if (it != peers_.end()) {
          --it->second->in_flight;
          if (reply.ok()) {
            it->second->paths.Answered(address, sent_us, now_us);
          } else if (absl::IsNotFound(reply.status())) {
            it->second->paths.Wrong(address, now_us);  // another node has the address by now
          } else {
            Failed(node, address, sent_us, reply.status());
          }
        }
        if (absl::IsPermissionDenied(reply.status())) OnRemoved(reply.status());
        if (!reply.ok() || IsRemoved(node)) return;
        absl::StatusOr<Heartbeat> parsed = FromWire(*reply);
        absl::Status status = parsed.status();
        if (status.ok()) status = membership_.OnReply(*parsed, now_us);
        if (absl::IsAlreadyExists(status) && peers_.contains(node)) {
          PeerOf(node).paths.Wrong(address, now_us);  // a process that is to be refused
        } else if (!status.ok()) {
          LOG(INFO) << node.ToHex() << " at " << address << ": " << status;
        }
        Settle();
      }));
}

void ClusterRuntime::OnRemoved(const absl::Status& why) {
  if (std::exchange(logged_removed_, true)) return;
  LOG(WARNING) << "the cluster's other nodes say: " << why.message()
               << "; to come back, stop this node, remove its key and be admitted (strata approve)";
}

void ClusterRuntime::Failed(const NodeId& node, const std::string& address, int64_t sent_us,
                            const absl::Status& why) {
  PeerOf(node).paths.Failed(address, sent_us, clock_->NowUs());
  // Its process may have ended; its machine's system knows.
  if (absl::IsUnavailable(why) && !leaving_) ProbeAt(node);
}

// Probes all addresses: one that refuses may be behind a firewall, or belong to another machine.
void ClusterRuntime::ProbeAt(const NodeId& node) {
  Peer& peer = PeerOf(node);
  const int64_t now_us = clock_->NowUs();
  const std::vector<std::string> addresses = peer.paths.Answering(now_us);
  const ClusterView::Node* const known = membership_.view().Find(node);
  const bool here = known != nullptr && (known->state == ClusterView::State::kAlive ||
                                         known->state == ClusterView::State::kSuspected);
  if (peer.connect_probing || addresses.empty() || !here) return;
  struct Round {
    size_t left;
    bool refused = true;
  };
  const auto round =
      std::make_shared<Round>(Round{addresses.size()});  // shared by its connect probes
  peer.connect_probing = true;
  for (const std::string& address : addresses) {
    transport_->IsRefused(address, options_.answer_ms,
                          WhileAlive([this, node, round, now_us](bool refused) {
                            round->refused = round->refused && refused;
                            if (--round->left == 0) OnConnectProbed(node, now_us, round->refused);
                          }));
  }
}

void ClusterRuntime::OnConnectProbed(const NodeId& node, int64_t tried_us, bool refused) {
  const auto it = peers_.find(node);
  if (it == peers_.end()) return;
  it->second->connect_probing = false;
  const ClusterView::Node* const known = membership_.view().Find(node);
  // A node that is heard lives.
  if (!refused || known == nullptr || known->last_heard_us >= tried_us) return;
  it->second->next_connect_probe = loop_->StartTimer(
      {.delay_ms = static_cast<uint64_t>(options_.connect_probe_ms)}, [this, node] {
        if (!leaving_ && peers_.contains(node)) ProbeAt(node);
      });
  membership_.OnRefused(node, tried_us, clock_->NowUs());
  Settle();
}

void ClusterRuntime::SendProbes(const NodeId& node) {
  const int64_t now_us = clock_->NowUs();
  for (const std::string& address : PeerOf(node).paths.TakeProbes(now_us)) {
    transport_->Identify(address, options_.answer_ms,
                         WhileAlive([this, node, address, now_us](
                                        const absl::StatusOr<wire::IdentifyResponse>& response) {
                           OnProbed(node, address, now_us, response);
                         }));
  }
}

void ClusterRuntime::OnProbed(const NodeId& node, const std::string& address, int64_t sent_us,
                              const absl::StatusOr<wire::IdentifyResponse>& response) {
  const auto it = peers_.find(node);
  if (it == peers_.end()) return;
  Peer& peer = *it->second;
  const int64_t now_us = clock_->NowUs();
  if (!response.ok()) {
    Failed(node, address, sent_us, response.status());
    return;
  }
  if (IdOf(response->node_id()) != node) {
    peer.paths.Wrong(address, now_us);
    transport_->Forget(address);
    return;
  }
  if (IsOfAnotherProcess(node, response->process())) {
    peer.paths.Wrong(address, now_us);
    OnProcess(node, address, response->process());
    return;
  }
  const bool first = peer.paths.best().empty();
  peer.paths.Answered(address, sent_us, now_us);
  if (first && peer.waiting != nullptr && now_us - peer.waiting_us < kWaitingUsMax) {
    const std::unique_ptr<Heartbeat> message = std::move(peer.waiting);
    SendOver(node, peer.paths.TakeBest(now_us), *message);
  }
  SendProbes(node);  // once more over the open connection, to time it
}

std::string ClusterRuntime::AddressOf(const NodeId& node) const {
  const auto it = peers_.find(node);
  return it == peers_.end() ? "" : it->second->paths.best();
}

// --- requests of others
// ---------------------------------------------------------------------------

absl::StatusOr<wire::Heartbeat> ClusterRuntime::Exchange(const wire::Heartbeat& request,
                                                         const std::string& from_host) {
  absl::StatusOr<Heartbeat> parsed = FromWire(request);
  if (!parsed.ok()) return parsed.status();
  // A node with the old key does not get here (transport/rpc/removed_peer_filter.h), except in
  // calls that were in flight.
  if (!MayReturn(parsed->body->from)) {
    return absl::PermissionDeniedError("this node was removed from the cluster");
  }
  const absl::StatusOr<Heartbeat> reply = membership_.OnRequest(*parsed, clock_->NowUs());
  Settle();
  if (!reply.ok()) return reply.status();
  if (!from_host.empty() && !reply->refused) Observe(parsed->body->from, from_host);
  return ToWire(*reply);
}

// A node that calls from an address can probably be reached there, at the port that it announces:
// the only source of addresses that are valid on one link only, or behind a tunnel's far end.
void ClusterRuntime::Observe(const NodeId& node, const std::string& from_host) {
  const auto it = peers_.find(node);
  if (it == peers_.end() || !it->second->paths.best().empty()) return;
  const ClusterView::Node* known = membership_.view().Find(node);
  if (known == nullptr || known->record.addresses.empty()) return;
  const absl::StatusOr<HostPort> announced = ParseHostPort(known->record.addresses.front());
  if (!announced.ok()) return;
  const std::string address = JoinHostPort(from_host, announced->port);
  if (!IsDialable(address)) return;
  it->second->paths.Observe(address);
  it->second->paths.TryAgain();
}

wire::IdentifyResponse ClusterRuntime::Identify() const {
  wire::IdentifyResponse response;
  response.set_node_id(IdBytes(id()));
  response.set_cluster(options_.self.cluster.str());
  response.set_protocol(options_.self.protocol);
  *response.mutable_process() = ToWire(membership_.Self(clock_->NowUs()));
  return response;
}

// --- shared ids and names
// -------------------------------------------------------------------

bool ClusterRuntime::IsOfAnotherProcess(const NodeId& node, const wire::OtherProcess& process) {
  const ClusterView::Node* const known = membership_.view().Find(node);
  if (process.nonce() == 0 || known == nullptr || known->record.nonce == 0) return false;
  const bool here =
      known->state == ClusterView::State::kAlive || known->state == ClusterView::State::kSuspected;
  return here && known->record.nonce != process.nonce();
}

void ClusterRuntime::OnProcess(const NodeId& node, const std::string& address,
                               const wire::OtherProcess& process) {
  OtherProcess other = FromWire(process);
  other.address = address;
  membership_.OnProcess(node, other, clock_->NowUs());
  Settle();
}

std::vector<wire::SharedId> ClusterRuntime::SharedIds() {
  const ClusterView& now = membership_.view();
  const int64_t now_us = clock_->NowUs();
  const auto shown = [](const std::string& address) {
    return IsDialable(address) ? address : std::string();
  };
  std::vector<wire::SharedId> all;
  for (const ClusterView::SharedId& shared : now.shared_ids) {
    wire::SharedId& wire = all.emplace_back();
    wire.set_node_id(IdBytes(shared.id));
    if (const ClusterView::Node* const node = now.Find(shared.id); node != nullptr) {
      wire.set_name(ToWire(node->record).name());
    }
    wire.set_taken_address(shown(shared.taken_address));
    wire.set_refused_address(shown(shared.refused_address));
    wire.set_since_ms((now_us - shared.since_us) / 1000);
    wire.set_asked_is_refused(shared.this_is_refused);
    if (shared.this_is_refused) wire.set_id_file(options_.id_file);
  }
  return all;
}

std::string ClusterRuntime::WhyRefused() {
  if (!membership_.view().refused) return "";
  for (const wire::SharedId& shared : SharedIds()) {
    if (shared.asked_is_refused()) return SharedIdMessage(shared);
  }
  return "";
}

void ClusterRuntime::LogSharedIds() {
  const ClusterView& now = membership_.view();
  if (now.refused != std::exchange(logged_refused_, now.refused)) {
    if (now.refused) {
      LOG(ERROR) << WhyRefused();
    } else {
      LOG(WARNING) << "the other machine with this node's id is gone: this one takes its place";
    }
  }
  const int64_t now_us = clock_->NowUs();
  std::erase_if(logged_shared_ids_,
                [&](const auto& each) { return now_us - each.second >= kSharedLoggedUs; });
  for (const wire::SharedId& shared : SharedIds()) {
    const NodeId node = IdOf(shared.node_id());
    if (shared.asked_is_refused() || logged_shared_ids_.contains(node) ||
        logged_shared_ids_.size() >= kSharedLoggedMax) {
      continue;
    }
    logged_shared_ids_[node] = now_us;
    LOG(WARNING) << SharedIdMessage(shared);
  }
}

void ClusterRuntime::LogSharedNames() {
  const int64_t now_us = clock_->NowUs();
  std::erase_if(logged_names_,
                [&](const auto& each) { return now_us - each.second >= kSharedLoggedUs; });
  std::map<PrintableText, int> names;
  bool any = false;
  for (const ClusterView::Node& node : membership_.view().nodes) {
    if (node.state == ClusterView::State::kAlive) any = ++names[node.record.name] > 1 || any;
  }
  if (!any) return;
  for (const std::string& problem : SharedNameProblems(Describe())) {
    const std::string name = problem.substr(0, problem.find(':'));  // addresses come and go
    if (logged_names_.contains(name) || logged_names_.size() >= kSharedLoggedMax) continue;
    logged_names_[name] = now_us;
    LOG(WARNING) << problem;
  }
}

wire::GetClusterResponse ClusterRuntime::Describe() {
  const ClusterView& now = membership_.view();
  const int64_t now_us = clock_->NowUs();
  wire::GetClusterResponse response;
  response.set_cluster(options_.self.cluster.str());
  response.set_asked(IdBytes(id()));
  response.set_key_id(key_id_);
  for (const auto& [node, record] : waiting_) {
    wire::WaitingNode* out = response.add_waiting();
    out->set_node_id(IdBytes(node));
    out->set_name(record.name.str());
    for (const std::string& address : record.addresses) out->add_addresses(address);
  }
  for (wire::SharedId& shared : SharedIds()) *response.add_shared_ids() = std::move(shared);
  if (!now.coordinator.is_nobody()) response.set_coordinator(IdBytes(now.coordinator));
  *response.mutable_epoch() = ToWire(now.epoch);
  for (const ClusterView::Node& node : now.nodes) {
    const bool self = node.record.id == id();
    wire::ClusterNode* out = response.add_nodes();
    *out->mutable_record() = ToWire(node.record);
    out->set_state(StateName(node.state));
    out->set_since_ms(node.since_us == 0 ? -1 : (now_us - node.since_us) / 1000);
    out->set_last_heard_ms(self                      ? 0
                           : node.last_heard_us == 0 ? -1
                                                     : (now_us - node.last_heard_us) / 1000);
    out->set_reachable(self || node.reachable);
    out->set_member(node.member);
    if (!node.obeys.is_nobody()) out->set_obeys(IdBytes(node.obeys));
    if (self) {
      if (!node.record.addresses.empty()) out->set_address(node.record.addresses.front());
    } else if (const auto it = peers_.find(node.record.id); it != peers_.end()) {
      out->set_address(it->second->paths.best());
      out->set_round_trip_us(it->second->paths.round_trip_us());
    }
  }
  MakePrintable(&response);
  return response;
}

absl::Status ClusterRuntime::ChangeDesired(std::vector<std::string> models) {
  const absl::Status status = membership_.ChangeDesired(std::move(models), clock_->NowUs());
  Settle();
  return status;
}

void ClusterRuntime::OnDesiredStored(const DesiredVersion& version) {
  const uint64_t changes = membership_.changes();
  membership_.OnDesiredStored(version, clock_->NowUs());
  if (membership_.changes() != changes) Settle();
}

absl::StatusOr<wire::Epoch> ClusterRuntime::NextEpoch() {
  absl::StatusOr<ClusterEpoch> epoch = membership_.NextEpoch(clock_->NowUs());
  Settle();
  if (!epoch.ok()) return epoch.status();
  return ToWire(*epoch);
}

}  // namespace strata
