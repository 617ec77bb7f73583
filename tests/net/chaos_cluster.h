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
  // What it printed, or a string: why it failed.
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
  // The first nodes have the model's file, and the others fetch what they need of it. Whichever two
  // are cut off from the others, one of them has it.
  static constexpr size_t kWithFile = 3;
  static constexpr char kInterface[] = "eth0";
  static constexpr absl::Duration kSettlesWithin = absl::Seconds(60);

  // Starts the nodes. They find `model` at model_path(), and have so much room for what they fetch.
  ChaosCluster(const std::string& model, uint64_t disk_bytes);
  ~ChaosCluster();

  const std::string& model_path() const { return model_path_; }
  Switch& lan() { return lan_; }
  const Host& host(size_t node) const { return *hosts_[node]; }
  const NodeOn& node(size_t node) const { return *nodes_[node]; }
  testing::SmallDisk& disk(size_t node) { return *disks_[node]; }
  bool HasDisks() const;
  // Of the model's file; null: none can be made here.
  SlowDisk* slow_disk() { return slow_disk_.get(); }
  // What disks cannot be made here, and why, a line each; empty: all can.
  const std::string& without() const { return without_; }

  // With nothing on its disk.
  void StartNode(size_t node);
  void StopNode(size_t node) { nodes_[node]->Stop(); }
  // False: it could not be told that it takes layers again.
  bool Undrain(size_t node, std::string* said);
  // All that it has of models, under it while it runs.
  void RemoveCachedWeights(size_t node);
  // The node's, and those it started.
  std::vector<pid_t> ProcessesOf(size_t node) const;

  // What `strata ARGS… --json` says at a node, or a string: why it failed.
  nlohmann::json Strata(size_t node, std::vector<std::string> args);
  // Everybody sees everybody, and all name the same coordinator.
  bool Settles() const;
  // The node that coordinates, as another says; kNodes: nobody.
  size_t Coordinator(size_t asked) const;

  // What the nodes' logs say of loads since ForgetLogs(), s: the longest.
  double LoadedFor() const;
  // How often they say that since then.
  size_t Says(absl::string_view words) const;
  void ForgetLogs();

  // Processes and sockets of hosts that no node has, and what a node without a model should not
  // have: workers, more doors than when it started, ends of connections that are no more.
  std::vector<std::string> LeftOver() const;

 private:
  // Calls with what stands behind `words` in the nodes' logs since ForgetLogs(), each time.
  void ForEachSaid(absl::string_view words, absl::FunctionRef<void(const char* rest)> call) const;

  Switch lan_{"lan"};
  std::string model_path_;
  std::unique_ptr<SlowDisk> slow_disk_;
  std::string without_;
  std::vector<std::unique_ptr<testing::SmallDisk>> disks_;  // of the nodes' caches
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<NodeOn>> nodes_;
  std::vector<size_t> doors_;     // ports at which each node listens when it has started
  std::vector<size_t> log_read_;  // by node, bytes
};

}  // namespace strata
