// A cluster that serves requests while faults happen to it: membership (cluster_sim.h), and on the
// same clock and queue of events the stages, links, coordinators, gateways and clients of all
// nodes. Equal options give equal runs. Checked all the time: every output is the one that its
// request determines, position by position, and ends at most once; no stage runs a step of another
// epoch; no plan and no node takes more memory than there is; a node that was drained has no stages
// of the model; no queue is over its bound (looked at every 50 ms); no list of models to stay
// loaded that all disks had is lost, but with the disks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/cluster_sim.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_gateway.h"
#include "tests/sim/sim_host.h"

namespace strata {

class SimClient;
class SimRun;

class RecoverySim {
 public:
  struct Options {
    uint64_t seed = 1;
    size_t nodes = 4;
    uint32_t layers = 8;
    uint32_t step_failures_per_mille = 0;
    bool tight = false;        // of memory, queues and caches
    bool small_disks = false;  // of nodes without the file
    // Break the protocol, to show that it is noticed.
    bool plans_past_memory = false;
    bool forgets_pending_reloads = false;
    bool doubles_tokens = false;
    bool forgets_requests = false;
    bool ends_twice = false;
    bool forgets_bounds = false;
    bool takes_any_epoch = false;
    bool plans_on_drained_nodes = false;
    bool forgets_leases = false;
    bool forgets_stale_stages = false;
    bool forgets_to_write = false;
    bool forgets_unloads = false;
  };
  explicit RecoverySim(const Options& options);
  ~RecoverySim();

  ClusterSim& cluster() { return cluster_; }
  void Start(size_t n);
  void Crash(size_t n);
  // An orderly end: requests and models go to the next coordinator.
  void Stop(size_t n);
  void KillWorker(size_t n);
  // A client sends a request to node `n`.
  void SendRequest(size_t n);
  // A client cancels its request, or has enough output.
  void StopRequest();
  // A person loads the model, if there is a coordinator.
  bool Load();
  // A person unloads it, or gives it up.
  void Unload();
  // The power fails: no process is left.
  void CutPower();
  // The ways in which the disk of a node breaks that does not run.
  enum class DiskFault { kOldBackup, kCopyOfAnother, kDamage };
  void BreakDisk(size_t n, DiskFault fault);
  // It takes no more, or does again.
  void SetDiskFails(size_t n, bool fails);
  // Nodes differ in the list, or the model is not as the newest list says. Empty: neither.
  std::string Undesired();
  // A client on node `n` holds the model by a lease, until it ends.
  void HoldModel(size_t n);
  void EndHolds();
  // A person drains node `n`, if there is a coordinator.
  void Drain(size_t n);
  void UndoDrains();
  bool HasModel() const;
  // A node has stages that no plan uses, or no node coordinates.
  bool HasStaleStages();
  bool Serves() const;

  void RunMs(int64_t ms);

  // Requests whose clients still wait.
  size_t active_generations() const;
  struct Counts {
    uint64_t requests = 0, complete = 0, refused = 0, failed = 0, gone = 0, stopped = 0;
    uint64_t tokens = 0, recoveries = 0, reloads = 0, kept = 0, resumed = 0, doubled = 0,
             strays = 0;
    uint64_t moves = 0, moves_by_reload = 0, drains = 0, holds = 0, lists = 0, lost_lists = 0;
    std::map<std::string, uint64_t> failures, refusals;  // by their messages

    void Add(const Counts& other);
    std::string ToString() const;
  };
  Counts counts() const;
  // Checks that all requests have ended.
  void CheckEnded();

 private:
  class NodeClock;
  struct Node {
    std::unique_ptr<NodeClock> clock;
    uint64_t memory_bytes = 0;
    double truth = 1;
    bool has_file = false;
    SimDisk disk;
    SimStateDisk state_disk;
    std::vector<std::string> backups;  // of it
    std::unique_ptr<SimHost> host;
    std::unique_ptr<SimCoordinator> coordinator;
    std::unique_ptr<SimGateway> gateway;
  };

  void End(size_t n);  // its process ends, and all that runs in it
  void Acknowledge(size_t n);
  void ForgetLostLists();
  std::optional<size_t> Leader(size_t after = 0);  // a node that coordinates and may act
  void CheckBounds();
  static void AddCounts(const Node& node, Counts* counts);

  const Options options_;
  ClusterSim cluster_;
  SimProcesses processes_;
  SimModel model_;
  SchedulerPolicy policy_;
  std::vector<Node> nodes_;
  std::vector<std::shared_ptr<SimClient>> clients_;  // shared with the sources of their output
  std::vector<std::shared_ptr<SimRun>> holds_;       // shared with their calls
  DesiredVersion acknowledged_;  // the newest that all disks had, and that is not lost with them
  bool disks_fail_ = false;  // some had a fault: what a list's last node has in memory may be lost
  Counts ended_;             // of processes that have ended
};

}  // namespace strata
