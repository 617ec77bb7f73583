// A connection between two simulated nodes, of the kind that gRPC has: messages arrive in their
// order or not at all. Each connection has delays of its own, so messages over different ones are
// reordered. A node that has crashed is noticed soon, one that is out of reach after a second of
// silence. One thread; shared by its ends and by the messages in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/sim/cluster_sim.h"

namespace strata {

class SimConnection;

// Counts the starts of each node: callbacks of an earlier process are dropped.
class SimProcesses {
 public:
  SimProcesses(ClusterSim* cluster, size_t nodes) : cluster_(cluster), starts_(nodes) {}
  // All connections drop their callbacks and messages; nothing runs any more.
  void ForgetConnections();
  ClusterSim& cluster() const { return *cluster_; }
  uint64_t start(size_t n) const { return starts_[n]; }
  void Started(size_t n) { ++starts_[n]; }
  bool IsAlive(size_t n, uint64_t start) const {
    return cluster_->running(n) && starts_[n] == start;
  }
  // Calls `fn` in the process that runs on the node now, unless it ends before; a process that
  // sleeps then calls it when it wakes.
  void In(size_t n, int64_t at_us, std::function<void()> fn);
  // After so much time of the node's own clock.
  void After(size_t n, int64_t local_us, std::function<void()> fn) {
    In(n, cluster_->AfterLocalUs(n, local_us), std::move(fn));
  }

 private:
  void Run(size_t n, uint64_t start, const std::function<void()>& fn);

  ClusterSim* const cluster_;
  std::vector<uint64_t> starts_;

  friend class SimConnection;
  std::vector<std::weak_ptr<SimConnection>> connections_;  // that were opened
};

class SimConnection : public std::enable_shared_from_this<SimConnection> {
 public:
  struct End {
    size_t node = 0;
    // Called once, in that node's process, when the connection is closed; not at the end that
    // closed it.
    std::function<void()> on_closed;
  };
  static std::shared_ptr<SimConnection> Open(SimProcesses* processes, End a, End b);

  // Calls `fn` at the other end, unless it breaks before. `from`: 0, 1.
  void Send(int from, std::function<void()> fn);
  // The other end notices after the messages that were sent before.
  void Close(int from);
  // The node refuses it: both ends notice.
  void Break();
  bool closed() const { return closed_; }

 private:
  friend class SimProcesses;
  SimConnection(SimProcesses* processes, End a, End b);
  void Arrive(int to);
  void Forget();
  void Watch();
  bool Reaches() const;
  bool IsAlive(int end) const { return processes_->IsAlive(ends_[end].node, starts_[end]); }
  void NotifyClosed(int end);

  SimProcesses* const processes_;
  End ends_[2];
  uint64_t starts_[2];
  std::deque<std::function<void()>> in_flight_[2];  // to this end
  int64_t last_us_[2] = {0, 0};  // when the last message to this end arrives at the earliest
  int64_t silent_us_ = -1;       // since when it is cut; -1: it is not
  bool closed_ = false;
};

// One request and its reply. `serve` runs on node `to` and gets the function that replies; `done`
// runs once on node `from`: true, after the reply was applied, or false where none came in time.
// `repeatable`: a request may arrive twice.
using SimReply = std::function<void(std::function<void()>)>;
void SimCall(SimProcesses* processes, size_t from, size_t to, int64_t timeout_us,
             std::function<void(const SimReply&)> serve, std::function<void(bool)> done,
             bool repeatable = false);

}  // namespace strata
