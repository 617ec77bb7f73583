// A connection between two simulated nodes, of the kind that gRPC has: what is sent arrives in its
// order or not at all. Each connection has delays of its own, so what goes over different ones is
// reordered. A node that has crashed is noticed soon, one that is out of reach after a second of
// silence. One thread; shared by its ends and by what is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/sim/cluster_sim.h"

namespace strata {

class SimWire;

// Counts the starts of each node: what belongs to an earlier one is no more.
class SimProcesses {
 public:
  SimProcesses(ClusterSim* cluster, size_t nodes) : cluster_(cluster), starts_(nodes) {}
  // All wires forget what they would have told; nothing runs any more.
  void ForgetWires();
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

  friend class SimWire;
  std::vector<std::weak_ptr<SimWire>> wires_;  // that were opened
};

class SimWire : public std::enable_shared_from_this<SimWire> {
 public:
  struct End {
    size_t node = 0;
    // Once, in that node's process: nothing passes any more. Not to who closed it.
    std::function<void()> on_closed;
  };
  static std::shared_ptr<SimWire> Open(SimProcesses* processes, End a, End b);

  // Calls `fn` at the other end, unless it breaks before. `from`: 0, 1.
  void Send(int from, std::function<void()> fn);
  // The other end hears of it after what was sent before.
  void Close(int from);
  // The node refuses it: both ends hear.
  void Break();
  bool closed() const { return closed_; }

 private:
  friend class SimProcesses;
  SimWire(SimProcesses* processes, End a, End b);
  void Arrive(int to);
  void Forget();
  void Watch();
  bool Reaches() const;
  bool IsAlive(int end) const { return processes_->IsAlive(ends_[end].node, starts_[end]); }
  void Tell(int end);

  SimProcesses* const processes_;
  End ends_[2];
  uint64_t starts_[2];
  std::deque<std::function<void()>> under_way_[2];  // to this end
  int64_t last_us_[2] = {0, 0};  // when what was sent last to this end arrives at the earliest
  int64_t silent_us_ = -1;       // since when it reaches nobody
  bool closed_ = false;
};

// One question and its answer. `ask` runs on node `to` and gets what it answers by; `done` runs
// once on node `from`: true, after what was answered, or false where none came in time.
using SimAnswer = std::function<void(std::function<void()>)>;
void SimAsk(SimProcesses* processes, size_t from, size_t to, int64_t timeout_us,
            std::function<void(const SimAnswer&)> ask, std::function<void(bool)> done);

}  // namespace strata
