// Four nodes on a network of their own, each with a disk of its own, that faults may be let loose
// on (chaos_faults.h), and a `strata run` on one of them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/workers/child_process.h"
#include "tests/net/network.h"
#include "tests/net/slow_disk.h"
#include "tests/support/small_disk.h"

namespace strata {

// The strata program on a host, with `args`.
class StrataRun {
 public:
  StrataRun(const Host& host, std::vector<std::string> args);
  // False: it has not ended by then.
  bool WaitUntil(absl::Time limit);
  bool ok() const { return process_->exit().signal == 0 && process_->exit().code == 0; }  // ended
  // The JSON that it printed; where it failed, a string: its stderr.
  nlohmann::json Report();

 private:
  void Add(std::string* to, absl::string_view line);

  absl::Mutex mu_;
  std::string out_ ABSL_GUARDED_BY(mu_), err_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ChildProcess> process_;
};

class ChaosCluster {
 public:
  static constexpr size_t kNodes = 4;
  // The first nodes have the model's file, and the others fetch their layers. Of any two nodes that
  // are cut off from the others, one has it.
  static constexpr size_t kWithFile = 3;
  static constexpr char kInterface[] = "eth0";
  static constexpr absl::Duration kSettlesWithin = absl::Seconds(60);

  // Starts the nodes. They find `model` at model_path(); each has `disk_bytes` for its cache.
  ChaosCluster(const std::string& model, uint64_t disk_bytes);
  ~ChaosCluster();

  const std::string& model_path() const { return model_path_; }
  Switch& lan() { return lan_; }
  const Host& host(size_t node) const { return *hosts_[node]; }
  const NodeOn& node(size_t node) const { return *nodes_[node]; }
  testing::SmallDisk& disk(size_t node) { return *disks_[node]; }
  bool HasDisks() const;
  // The disk of the model's file; null: none can be made here.
  SlowDisk* slow_disk() { return slow_disk_.get(); }
  // The kinds of disks that cannot be made here, with the reason, a line each; empty: all can.
  const std::string& without() const { return without_; }

  // Starts the node with nothing on its disk.
  void StartNode(size_t node);
  void StopNode(size_t node) { nodes_[node]->Stop(); }
  // Lets a drained node take layers again. False: the command failed; `said` is its output.
  bool Undrain(size_t node, std::string* said);
  // Removes all weights in the cache of the node, while it runs.
  void RemoveCachedWeights(size_t node);
  // The node's process, and those it started.
  std::vector<pid_t> ProcessesOf(size_t node) const;

  // The JSON of `strata ARGS… --json` at a node; where it failed, a string: its stderr.
  nlohmann::json Strata(size_t node, std::vector<std::string> args);
  // Waits until all nodes see each other and name the same coordinator.
  bool Settles() const;
  // The node that coordinates, as node `at` reports; kNodes: none.
  size_t Coordinator(size_t at) const;

  // The longest load in the nodes' logs since ForgetLogs(), s.
  double LoadedFor() const;
  // How often `words` are in the logs since then.
  size_t Says(absl::string_view words) const;
  void ForgetLogs();

  // Processes and sockets of hosts that belong to no node, and those that a node without a model
  // should not have: workers, more listening ports than when it started, half-closed connections.
  std::vector<std::string> LeftOver() const;

 private:
  // Calls for each occurrence of `words` in the nodes' logs since ForgetLogs(): with its rest.
  void ForEachSaid(absl::string_view words, absl::FunctionRef<void(const char* rest)> call) const;

  Switch lan_{"lan"};
  std::string model_path_;
  std::unique_ptr<SlowDisk> slow_disk_;
  std::string without_;
  std::vector<std::unique_ptr<testing::SmallDisk>> disks_;  // of the nodes' caches
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<NodeOn>> nodes_;
  std::vector<size_t> doors_;           // ports at which each node listens when it has started
  std::vector<size_t> log_read_;        // by node, bytes
  std::vector<std::string> data_dirs_;  // by node: each start has a new one
};

}  // namespace strata
