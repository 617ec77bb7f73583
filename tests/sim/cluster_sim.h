// A cluster of Membership state machines on one fake clock: messages with delays, losses, cuts in
// one direction or both, crashes whose machines refuse connections, firewalls that do so in the
// name of the living, restarts, processes that sleep, clocks that run at different rates. Equal
// seeds give equal runs. After each event it checks that nobody obeys, or is held by, two
// coordinators.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/random/distributions.h"
#include "coordinator/membership/membership.h"
#include "tests/sim/event_queue.h"

namespace strata {

class ClusterSim {
 public:
  struct Options {
    uint64_t seed = 1;
    size_t nodes = 3;
    MembershipOptions membership;
    int64_t delay_max_us = 20'000;
    double drift_max = 1e-3;
    // Each message goes through protobuf and back.
    bool through_wire = false;
  };

  explicit ClusterSim(const Options& options);

  // Starts a node, or starts it again under its id. It learns of `introduce` others at random, of
  // those that run.
  void Start(size_t n, size_t introduce = 1);
  void StartAll();
  // Node `n`, which does not run, becomes another machine with the id of `of`.
  void Clone(size_t n, size_t of);
  void Crash(size_t n);
  void Leave(size_t n);
  // The process does nothing for that long; its clock goes on and messages wait for it.
  void Pause(size_t n, int64_t ms);
  void SetLive(size_t n, uint32_t requests);
  // What a coordinator does before it plans; false if it is none.
  bool Plan(size_t n);

  void Cut(size_t from, size_t to, bool cut = true);
  // A firewall answers `from` that no process listens at `to`; requests of `to` come through.
  void Refuse(size_t from, size_t to);
  bool Refuses(size_t from, size_t to) const { return refuses_[from * options_.nodes + to] != 0; }
  // Nodes of different groups cannot reach each other.
  void Partition(const std::vector<size_t>& group_of);
  void Isolate(size_t n, bool cut);
  void Heal();
  void SetLoss(double loss) { loss_ = loss; }
  // So many heartbeats, and requests that may be repeated, arrive twice.
  void SetDoubled(double doubled) { doubled_ = doubled; }
  bool Doubles() { return doubled_ > 0 && absl::Bernoulli(random_, doubled_); }
  // What mDNS does after a change: nodes that are linked hear of one more each, in a ring.
  void Introduce();

  void RunMs(int64_t ms);

  // Calls `fn` at that time, for what else is simulated on this clock. A process that sleeps then
  // is up to the caller.
  void At(int64_t at_us, std::function<void()> fn);
  // Those that are not due yet never are; RunMs() is over.
  void ForgetCalls();
  int64_t now_us() const { return now_us_; }
  int64_t LocalUs(size_t n) const { return Local(nodes_[n]); }
  // When that much time of the node's own clock has passed.
  int64_t AfterLocalUs(size_t n, int64_t us) const {
    return now_us_ + static_cast<int64_t>(static_cast<double>(us) / nodes_[n].clock_rate) + 1;
  }
  int64_t paused_until_us(size_t n) const { return nodes_[n].paused_until_us; }
  Membership& membership(size_t n) { return *nodes_[n].membership; }
  // For a node that is running; its wake is looked up again.
  void Touch(size_t n) { Schedule(n); }
  bool IsCut(size_t from, size_t to) const { return cut_[from * options_.nodes + to] != 0; }
  double loss() const { return loss_; }
  // A promise of something else was broken; the first one counts.
  void Fail(const std::string& what);

  bool running(size_t n) const { return nodes_[n].membership != nullptr; }
  bool Linked(size_t a, size_t b) const;
  const ClusterView& View(size_t n);
  size_t NumberOf(const NodeId& id) const;
  const NodeId& IdOf(size_t n) const { return nodes_[n].id; }
  bool Holds(size_t coordinator, size_t n) const;
  // The coordinator that it obeys; SIZE_MAX: none.
  size_t CoordinatorOf(size_t n);

  // The first broken promise; empty: none.
  const std::string& violation() const { return violation_; }
  // Why the cluster has not come to rest, or empty: every node is in exactly one group whose nodes
  // agree on coordinator, epoch and members and are all linked, and no two groups could be one.
  std::string Unrest();
  // Whether each node is in a group with live requests. At rest.
  std::vector<bool> InWorkingGroups();
  // Which member should move to a greater group that it is linked with, if one should. At rest.
  std::string Unmoved();

  // The last things that happened.
  std::string Trace() const;
  void Note(const std::string& what);
  size_t Random(size_t n) { return absl::Uniform<size_t>(random_, 0, n); }
  uint64_t messages() const { return messages_; }
  // Of all notes and of the number of messages.
  uint64_t digest() const { return digest_ ^ messages_; }

 private:
  struct Node {
    NodeId id;  // its low half is the number plus 1, or that of the node it is a clone of
    uint64_t nonce = 0;
    std::unique_ptr<Membership> membership;
    uint64_t boot = 0;
    int64_t clock_offset_us = 0;
    double clock_rate = 1;
    int64_t paused_until_us = 0;
    int64_t wake_us = INT64_MAX;    // scheduled
    std::vector<uint32_t> waiting;  // messages that came while it was paused
    NodeId obeys;                   // as last seen
    ClusterEpoch epoch;             // newest with a counter
    uint32_t live = 0;
  };
  struct InFlightMessage {
    uint32_t from = 0;
    bool reply = false;
    Heartbeat heartbeat;
  };

  int64_t Local(const Node& node) const;
  int64_t Global(const Node& node, int64_t local_us) const;
  void Push(int64_t at_us, size_t node, uint32_t message);
  void ConnectProbe(size_t from, size_t to, int64_t delay_us);
  bool IsRefused(size_t from, size_t to) const;
  size_t Receiver(size_t from, const OutgoingHeartbeat& out);
  void DropNewFirewalls(size_t from, size_t to);
  void Send(size_t from, size_t to, bool reply, Heartbeat&& heartbeat);
  void Fly(size_t from, size_t to, bool reply, Heartbeat&& heartbeat);
  void Deliver(size_t to, uint32_t slot);
  void FetchAhead() const;
  void Wake(size_t n);
  void Schedule(size_t n);
  void WakeAt(size_t n, int64_t at_us);
  void CheckNode(size_t n);
  void CheckHeld(size_t by, size_t n);
  NodeRecord RecordOf(size_t n) const;

  const Options options_;
  std::mt19937_64 random_;
  std::vector<Node> nodes_;
  std::vector<char> cut_;               // [from, to]
  std::vector<char> refuses_;           // the same
  std::vector<int64_t> refused_since_;  // the same: when the firewall came up
  std::vector<char> connect_probes_;    // the same: it is being found out whether `to` has ended
  double loss_ = 0;
  double doubled_ = 0;
  int64_t now_us_ = 0;
  uint64_t order_ = 0;
  uint64_t starts_ = 0;
  bool has_clones_ = false;
  uint64_t messages_ = 0;
  uint64_t digest_ = 0xcbf29ce484222325;
  EventQueue events_;
  std::vector<InFlightMessage> in_flight_;
  std::vector<uint32_t> free_slots_;
  std::vector<std::function<void()>> calls_;  // of At(), until they are due
  std::vector<uint32_t> free_calls_;
  std::string violation_;
  std::deque<std::string> trace_;
};

}  // namespace strata
