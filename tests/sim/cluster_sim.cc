#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/membership/membership_wire.h"
#include "transport/base/version.h"

namespace strata {
namespace {

constexpr size_t kNone = SIZE_MAX;
constexpr uint32_t kNoMessage = UINT32_MAX;
constexpr uint32_t kNoNode = UINT32_MAX;  // the message is one of calls_
constexpr size_t kTraceLinesMax = 60;
constexpr size_t kFetchAhead = 6;  // events
// Between tries to connect to a node that may have ended.
constexpr int64_t kConnectProbeUs = 100'000;
// After which a firewall is known not to say that a node has ended.
constexpr int64_t kFirewallUs = 1'000'000;

}  // namespace

ClusterSim::ClusterSim(const Options& options)
    : options_(options),
      random_(options.seed),
      nodes_(options.nodes),
      cut_(options.nodes * options.nodes, 0),
      refuses_(cut_),
      refused_since_(cut_.size(), 0),
      connect_probes_(cut_) {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    node.id = NodeId{absl::Uniform<uint64_t>(random_), n + 1};
    node.boot = 1000;
    node.clock_offset_us = absl::Uniform<int64_t>(random_, 0, 1'000'000'000'000);
    node.clock_rate = 1 + absl::Uniform(random_, -options.drift_max, options.drift_max);
  }
}

int64_t ClusterSim::Local(const Node& node) const {
  return node.clock_offset_us +
         static_cast<int64_t>(static_cast<double>(now_us_) * node.clock_rate);
}

int64_t ClusterSim::Global(const Node& node, int64_t local_us) const {
  if (local_us == INT64_MAX) return INT64_MAX;
  return static_cast<int64_t>(static_cast<double>(local_us - node.clock_offset_us) /
                              node.clock_rate) +
         1;
}

NodeRecord ClusterSim::RecordOf(size_t n) const {
  NodeRecord record;
  record.id = nodes_[n].id;
  record.name = PrintableText::From(absl::StrCat("node", n));
  record.cluster = "home";
  record.protocol = kProtocolVersion;
  record.addresses = {absl::StrCat("10.0.0.", n, ":7000")};
  return record;
}

void ClusterSim::Start(size_t n, size_t introduce) {
  Crash(n);
  Node& node = nodes_[n];
  // Some machines come back with their wall clock reset.
  node.boot = Random(5) == 0 ? 500 + Random(100) : node.boot + 10'000 + Random(1000);
  NodeRecord self = RecordOf(n);
  self.boot = node.boot;
  self.nonce = node.nonce = ++starts_ * 0x9e3779b97f4a7c15;
  node.membership = std::make_unique<Membership>(options_.membership, self, Local(node));
  node.membership->SetLiveRequests(node.live);
  node.paused_until_us = 0;
  node.wake_us = INT64_MAX;
  node.obeys = NodeId();
  node.epoch = ClusterEpoch();
  Note(absl::StrCat("start ", n));
  std::vector<size_t> others;
  for (size_t k = 0; k < nodes_.size(); ++k) {
    if (k != n && running(k)) others.push_back(k);
  }
  for (; introduce > 0 && !others.empty(); --introduce) {
    const size_t other = others[Random(others.size())];
    (void)node.membership->Learn(RecordOf(other), Local(node));
  }
  Schedule(n);
}

void ClusterSim::Clone(size_t n, size_t of) {
  nodes_[n].id = nodes_[of].id;
  nodes_[n].boot = nodes_[of].boot;
  has_clones_ = true;
}

void ClusterSim::StartAll() {
  for (size_t n = 0; n < nodes_.size(); ++n) Start(n);
}

void ClusterSim::Crash(size_t n) {
  if (!running(n)) return;
  Note(absl::StrCat("crash ", n));
  nodes_[n].membership = nullptr;
  for (const uint32_t slot : nodes_[n].waiting) free_slots_.push_back(slot);
  nodes_[n].waiting.clear();
}

void ClusterSim::Leave(size_t n) {
  if (!running(n)) return;
  Note(absl::StrCat("leave ", n));
  Node& node = nodes_[n];
  node.membership->Leave(Local(node));
  for (OutgoingHeartbeat& out : node.membership->Tick(Local(node))) {
    Send(n, Receiver(n, out), false, std::move(out.message));
  }
  Crash(n);
}

void ClusterSim::Pause(size_t n, int64_t ms) {
  Note(absl::StrCat("pause ", n, " for ", ms, " ms"));
  if (!running(n)) return;
  for (size_t k = 0; k < nodes_.size(); ++k) DropNewFirewalls(k, n);
  nodes_[n].paused_until_us = now_us_ + ms * 1000;
  nodes_[n].wake_us = INT64_MAX;
  WakeAt(n, nodes_[n].paused_until_us);
}

void ClusterSim::SetLive(size_t n, uint32_t requests) {
  Note(absl::StrCat("node ", n, " has ", requests, " requests"));
  nodes_[n].live = requests;
  if (running(n)) nodes_[n].membership->SetLiveRequests(requests);
}

bool ClusterSim::Plan(size_t n) {
  if (!running(n) || nodes_[n].paused_until_us > now_us_) return false;
  const absl::StatusOr<ClusterEpoch> epoch = nodes_[n].membership->NextEpoch(Local(nodes_[n]));
  Schedule(n);
  CheckNode(n);
  if (epoch.ok()) Note(absl::StrCat("node ", n, " plans, epoch ", epoch->counter));
  return epoch.ok();
}

void ClusterSim::Partition(const std::vector<size_t>& group_of) {
  std::string text = "partition";
  for (const size_t group : group_of) absl::StrAppend(&text, " ", group);
  Note(text);
  for (size_t a = 0; a < nodes_.size(); ++a) {
    for (size_t b = 0; b < nodes_.size(); ++b) Cut(a, b, group_of[a] != group_of[b]);
  }
}

void ClusterSim::Isolate(size_t n, bool cut) {
  Note(absl::StrCat(cut ? "isolate " : "reconnect ", n));
  for (size_t k = 0; k < nodes_.size(); ++k) {
    if (k == n) continue;
    Cut(n, k, cut);
    Cut(k, n, cut);
  }
}

void ClusterSim::Heal() {
  Note("heal");
  std::fill(cut_.begin(), cut_.end(), 0);
  std::fill(refuses_.begin(), refuses_.end(), 0);
}

void ClusterSim::Cut(size_t from, size_t to, bool cut) {
  cut_[from * nodes_.size() + to] = cut;
  if (!cut) return;
  DropNewFirewalls(from, to);
  DropNewFirewalls(to, from);
}

void ClusterSim::Refuse(size_t from, size_t to) {
  const bool reach = Linked(from, to) && nodes_[to].paused_until_us <= now_us_;
  if (from == to || !reach) return;
  Note(absl::StrCat("a firewall refuses requests of ", from, " to ", to));
  refuses_[from * nodes_.size() + to] = 1;
  refused_since_[from * nodes_.size() + to] = now_us_;
}

// membership.h does not cover a node that falls silent just after a firewall came up before it.
void ClusterSim::DropNewFirewalls(size_t from, size_t to) {
  const size_t pair = from * nodes_.size() + to;
  if (now_us_ - refused_since_[pair] < kFirewallUs) refuses_[pair] = 0;
}

bool ClusterSim::IsRefused(size_t from, size_t to) const {
  const size_t pair = from * nodes_.size() + to;
  if (cut_[pair] != 0 || cut_[to * nodes_.size() + from] != 0) return false;
  return !running(to) || refuses_[pair] != 0;
}

// As coordinator/cluster/cluster_runtime.cc does when a request fails.
void ClusterSim::ConnectProbe(size_t from, size_t to, int64_t delay_us) {
  char& connect_probes = connect_probes_[from * nodes_.size() + to];
  if (std::exchange(connect_probes, 1) != 0) return;
  At(now_us_ + delay_us, [this, from, to, boot = nodes_[from].boot] {
    connect_probes_[from * nodes_.size() + to] = 0;
    Node& node = nodes_[from];
    if (!running(from) || node.boot != boot || node.paused_until_us > now_us_) return;
    const ClusterView::Node* const seen = View(from).Find(nodes_[to].id);
    const bool here = seen != nullptr && (seen->state == ClusterView::State::kAlive ||
                                          seen->state == ClusterView::State::kSuspected);
    if (!here || !IsRefused(from, to)) return;
    const int64_t tried_us = Local(node);
    if (seen->last_heard_us >= tried_us) return;
    node.membership->OnRefused(nodes_[to].id, tried_us, tried_us);
    CheckNode(from);
    Schedule(from);
    ConnectProbe(from, to, kConnectProbeUs);
  });
}

void ClusterSim::Introduce() {
  for (size_t a = 0; a < nodes_.size(); ++a) {
    for (size_t step = 1; step < nodes_.size() && running(a); ++step) {
      const size_t b = (a + step) % nodes_.size();
      if (!Linked(a, b)) continue;
      (void)nodes_[a].membership->Learn(RecordOf(b), Local(nodes_[a]));
      Schedule(a);
      break;
    }
  }
}

void ClusterSim::RunMs(int64_t ms) {
  const int64_t end_us = now_us_ + ms * 1000;
  while (violation_.empty()) {
    const std::optional<EventQueue::Event> event = events_.PopUntil(end_us);
    if (!event.has_value()) break;
    FetchAhead();
    now_us_ = event->at_us;
    if (event->node == kNoNode) {
      const std::function<void()> call = std::exchange(calls_[event->message], nullptr);
      free_calls_.push_back(event->message);
      call();
      continue;
    }
    Node& node = nodes_[event->node];
    const bool wake = event->message == kNoMessage;
    if (wake && event->at_us != node.wake_us) continue;  // another came before it
    if (!wake && node.paused_until_us > now_us_ && running(event->node)) {
      node.waiting.push_back(event->message);
    } else if (wake) {
      Wake(event->node);
    } else {
      Deliver(event->node, event->message);
    }
  }
  now_us_ = end_us;
}

void ClusterSim::At(int64_t at_us, std::function<void()> fn) {
  auto call = static_cast<uint32_t>(calls_.size());
  if (free_calls_.empty()) {
    calls_.push_back(std::move(fn));
  } else {
    call = free_calls_.back();
    free_calls_.pop_back();
    calls_[call] = std::move(fn);
  }
  events_.Push({std::max(at_us, now_us_), order_++, kNoNode, call});
}

void ClusterSim::ForgetCalls() {
  while (!calls_.empty()) {
    // The destructors of the calls may add others.
    const std::vector<std::function<void()>> forgotten = std::exchange(calls_, {});
    free_calls_.clear();
  }
}

void ClusterSim::Fail(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = what;
  Note(what);
}

void ClusterSim::Push(int64_t at_us, size_t node, uint32_t message) {
  events_.Push({at_us, order_++, static_cast<uint32_t>(node), message});
}

void ClusterSim::Schedule(size_t n) {
  Node& node = nodes_[n];
  if (node.membership == nullptr) return;
  const int64_t due_us = Global(node, node.membership->next_wake_us());
  WakeAt(n, std::max({due_us, now_us_, node.paused_until_us}));
}

void ClusterSim::WakeAt(size_t n, int64_t at_us) {
  if (at_us >= nodes_[n].wake_us) return;
  nodes_[n].wake_us = at_us;
  Push(at_us, n, kNoMessage);
}

void ClusterSim::Wake(size_t n) {
  Node& node = nodes_[n];
  node.wake_us = INT64_MAX;
  if (node.membership == nullptr) return;
  for (const uint32_t slot : std::exchange(node.waiting, {})) Deliver(n, slot);
  for (OutgoingHeartbeat& out : node.membership->Tick(Local(node))) {
    Send(n, Receiver(n, out), false, std::move(out.message));
  }
  CheckNode(n);
  Schedule(n);
}

// Of the nodes with the id, the one that was heard, as coordinator/cluster/peer_paths.h keeps its
// address; else any.
size_t ClusterSim::Receiver(size_t from, const OutgoingHeartbeat& out) {
  const size_t number = NumberOf(out.to);
  if (!has_clones_) return number;
  std::vector<size_t> of_id;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (n == from || nodes_[n].id != out.to || !running(n)) continue;
    if (nodes_[n].nonce == out.message.your_nonce) return n;
    of_id.push_back(n);
  }
  return of_id.empty() ? number : of_id[Random(of_id.size())];
}

void ClusterSim::Send(size_t from, size_t to, bool reply, Heartbeat&& heartbeat) {
  ++messages_;
  if (cut_[from * nodes_.size() + to] != 0) return;
  if (!reply && IsRefused(from, to)) {
    ConnectProbe(from, to, absl::Uniform<int64_t>(random_, 100, options_.delay_max_us));
    return;
  }
  if (loss_ > 0 && absl::Bernoulli(random_, loss_)) return;
  if (Doubles()) Fly(from, to, reply, Heartbeat(heartbeat));
  Fly(from, to, reply, std::move(heartbeat));
}

void ClusterSim::Fly(size_t from, size_t to, bool reply, Heartbeat&& heartbeat) {
  auto slot = static_cast<uint32_t>(in_flight_.size());
  if (free_slots_.empty()) {
    in_flight_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  InFlightMessage& flying = in_flight_[slot];
  flying.from = static_cast<uint32_t>(from);
  flying.reply = reply;
  flying.heartbeat = std::move(heartbeat);
  Push(now_us_ + absl::Uniform<int64_t>(random_, 100, options_.delay_max_us), to, slot);
}

// Thousands of messages are in flight, more than the nearest cache keeps.
void ClusterSim::FetchAhead() const {
  const EventQueue::Event* const event = events_.Upcoming(kFetchAhead);
  if (event == nullptr || event->message == kNoMessage || event->node == kNoNode) return;
  const auto* const flying = reinterpret_cast<const char*>(&in_flight_[event->message]);
  for (size_t offset = 0; offset < sizeof(InFlightMessage); offset += 64) {
    __builtin_prefetch(flying + offset);
  }
}

void ClusterSim::Deliver(size_t to, uint32_t slot) {
  const size_t from = in_flight_[slot].from;
  const bool is_reply = in_flight_[slot].reply;
  // Taken out, so that the answer may fly in its place.
  Heartbeat heartbeat = std::move(in_flight_[slot].heartbeat);
  free_slots_.push_back(slot);
  Node& node = nodes_[to];
  if (node.membership == nullptr) return;
  if (options_.through_wire) {
    absl::StatusOr<Heartbeat> parsed = FromWire(ToWire(heartbeat));
    if (!parsed.ok()) {
      violation_ = parsed.status().ToString();
      return;
    }
    heartbeat = *std::move(parsed);
  }
  if (is_reply) {
    (void)node.membership->OnReply(heartbeat, Local(node));
  } else {
    absl::StatusOr<Heartbeat> reply = node.membership->OnRequest(heartbeat, Local(node));
    if (reply.ok()) Send(to, from, true, *std::move(reply));
  }
  CheckNode(to);
  CheckHeld(to, from);
  Schedule(to);
}

void ClusterSim::CheckHeld(size_t by, size_t n) {
  if (by == n || !running(by) || !running(n)) return;
  if (!nodes_[by].membership->HoldsLease(nodes_[n].id, Local(nodes_[by]))) return;
  if (has_clones_) {
    if (nodes_[by].id == nodes_[n].id) return;                                 // its own
    if (View(by).Find(nodes_[n].id)->record.nonce != nodes_[n].nonce) return;  // another's
  }
  const NodeId obeys = nodes_[n].membership->obeys(Local(nodes_[n]));
  if (!obeys.is_nobody() && obeys != nodes_[by].id && violation_.empty()) {
    violation_ =
        absl::StrCat("node ", n, " obeys ", NumberOf(obeys), " while ", by, " holds its lease");
    Note(violation_);
  }
}

void ClusterSim::CheckNode(size_t n) {
  Node& node = nodes_[n];
  const NodeId obeys = node.membership->obeys(Local(node));
  const ClusterEpoch& epoch = node.membership->epoch();
  if (epoch.counter != 0 && epoch != node.epoch) {
    if (epoch < node.epoch && violation_.empty()) {
      violation_ = absl::StrCat("node ", n, " went back from epoch ", node.epoch.counter, " to ",
                                epoch.counter);
    }
    node.epoch = epoch;
  }
  if (obeys == node.obeys) return;
  node.obeys = obeys;
  Note(absl::StrCat("node ", n, " obeys ",
                    obeys.is_nobody() ? -1 : static_cast<int>(NumberOf(obeys))));
  if (obeys.is_nobody()) return;
  for (size_t by = 0; by < nodes_.size(); ++by) {
    if (by != n) CheckHeld(by, n);
  }
}

bool ClusterSim::Linked(size_t a, size_t b) const {
  return running(a) && running(b) && cut_[a * nodes_.size() + b] == 0 &&
         cut_[b * nodes_.size() + a] == 0 && !Refuses(a, b) && !Refuses(b, a);
}

size_t ClusterSim::NumberOf(const NodeId& id) const { return static_cast<size_t>(id.low) - 1; }

bool ClusterSim::Holds(size_t coordinator, size_t n) const {
  const Node& node = nodes_[coordinator];
  return node.membership->HoldsLease(nodes_[n].id, Local(node));
}

size_t ClusterSim::CoordinatorOf(size_t n) {
  const NodeId id = nodes_[n].membership->obeys(Local(nodes_[n]));
  return id.is_nobody() ? kNone : NumberOf(id);
}

const ClusterView& ClusterSim::View(size_t n) { return nodes_[n].membership->view(); }

void ClusterSim::Note(const std::string& what) {
  trace_.push_back(absl::StrFormat("%9.3f %s", static_cast<double>(now_us_) * 1e-6, what));
  // FNV-1a
  for (const char c : trace_.back()) {
    digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  if (trace_.size() > kTraceLinesMax) trace_.pop_front();
}

std::string ClusterSim::Trace() const {
  std::string text = "\n";
  for (const std::string& line : trace_) absl::StrAppend(&text, line, "\n");
  return text;
}

}  // namespace strata
