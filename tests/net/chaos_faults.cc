#include "tests/net/chaos_faults.h"

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/integration/processes.h"
#include "tests/net/network.h"

namespace strata {
namespace {

constexpr size_t kNodes = ChaosCluster::kNodes;
constexpr uint64_t kSlowDiskBytesPerS = 2'000'000;
constexpr int kLossPercent = 30;
constexpr uint32_t kSlowMbitPerS = 2;

// The first six are as unlike each other as they can be, for short runs. Those that cannot be made
// everywhere come last.
constexpr FaultKind kFaults[] = {
    {Fault::kKill, "killed"},
    {Fault::kFreeze, "frozen"},
    {Fault::kCable, "cable pulled"},
    {Fault::kDeaf, "hearing nothing"},
    {Fault::kLoss, "30 % lost"},
    {Fault::kSplit, "cut off from half of the others"},
    {Fault::kStop, "stopped"},
    {Fault::kAbort, "its worker aborted"},
    {Fault::kMute, "not heard"},
    {Fault::kSlow, "at 2 Mbit/s"},
    {Fault::kWorkerThenCoordinator, "its worker aborted, then the coordinator killed"},
    {Fault::kTwoNodes, "killed with another"},
    {Fault::kCableInDrain, "cable pulled while it is drained"},
    {Fault::kDrainThenCoordinator, "drained, meanwhile the coordinator killed"},
    {Fault::kWeights, "its cached weights removed, then its worker aborted"},
    {Fault::kFullDisk, "killed while all disks are full"},
    {Fault::kSlowDisk, "its worker aborted while all disks have 2 MB/s"},
};

void Signal(const std::vector<pid_t>& pids, int signal) {
  for (const pid_t pid : pids) kill(pid, signal);
}

void AbortWorkers(const ChaosCluster& cluster, size_t node) {
  const std::vector<pid_t> workers = OfVerb(cluster.ProcessesOf(node), "worker");
  EXPECT_FALSE(workers.empty()) << cluster.host(node).name() << " has no worker";
  Signal(workers, SIGABRT);
}

// Between two faults: the second comes during the recovery from the first, or just after it.
void PauseBetween(std::mt19937* random, std::string* what) {
  const absl::Duration pause = absl::Milliseconds((*random)() % 1000);
  absl::StrAppend(what, " (", absl::ToInt64Milliseconds(pause), " ms between)");
  absl::SleepFor(pause);
}

// Asks `via`, or the next node where that is the drained one itself.
std::shared_ptr<StrataRun> BeginDrain(ChaosCluster* cluster, size_t node, size_t via) {
  if (via == node) via = (node + 1) % kNodes;
  return std::make_shared<StrataRun>(
      cluster->host(via), std::vector<std::string>{"drain", cluster->host(node).name(), "--node",
                                                   cluster->node(via).address()});
}

// Whether the drain succeeded or not, the node takes layers again.
void EndDrain(ChaosCluster* cluster, size_t node, StrataRun* drain) {
  EXPECT_TRUE(drain->WaitUntil(absl::Now() + ChaosCluster::kSettlesWithin))
      << "it is still draining";
  std::string said;
  EXPECT_TRUE(
      Eventually([&] { return cluster->Undrain(node, &said); }, ChaosCluster::kSettlesWithin))
      << said;
}

void LoseFrom(ChaosCluster* cluster, size_t node, int percent) {
  cluster->lan().Lose(cluster->host(node), nullptr, ChaosCluster::kInterface, percent);
}
void LoseBetween(ChaosCluster* cluster, size_t from, size_t to, int percent) {
  cluster->lan().Lose(cluster->host(from), &cluster->host(to), ChaosCluster::kInterface, percent);
}
void LoseTo(ChaosCluster* cluster, size_t node, int percent) {
  for (size_t from = 0; from < kNodes; ++from) {
    if (from != node) LoseBetween(cluster, from, node, percent);
  }
}

// Separates the two nodes from the others.
void Split(ChaosCluster* cluster, size_t node, size_t with) {
  for (const size_t from : {node, with}) {
    for (size_t to = 0; to < kNodes; ++to) {
      if (to == node || to == with) continue;
      LoseBetween(cluster, from, to, 100);
      LoseBetween(cluster, to, from, 100);
    }
  }
}

}  // namespace

std::vector<FaultKind> FaultsFor(ChaosCluster* cluster) {
  std::vector<FaultKind> faults;
  for (const FaultKind& kind : kFaults) {
    if (kind.fault == Fault::kFullDisk && !cluster->HasDisks()) continue;
    if (kind.fault == Fault::kSlowDisk && cluster->slow_disk() == nullptr) continue;
    faults.push_back(kind);
  }
  return faults;
}

void Prepare(Fault fault, ChaosCluster* cluster) {
  if (fault != Fault::kFullDisk) return;
  for (size_t i = 0; i < kNodes; ++i) cluster->disk(i).Fill();
}

std::function<void()> Begin(Fault fault, ChaosCluster* cluster, FaultPlace place,
                            std::mt19937* random, std::string* what) {
  const size_t node = place.node;
  const auto restart = [cluster, node] { cluster->StartNode(node); };
  const auto restart_other = [cluster, other = place.other] { cluster->StartNode(other); };
  const auto kill_other = [cluster, other = place.other] {
    Signal(cluster->ProcessesOf(other), SIGKILL);
  };
  const auto heal = [cluster] { cluster->lan().LoseNothing(); };
  switch (fault) {
    case Fault::kKill:
      if ((*random)() % 2 == 0) {
        Signal({cluster->node(node).pid()}, SIGKILL);
      } else {
        Signal(cluster->ProcessesOf(node), SIGKILL);
        absl::StrAppend(what, ", its workers too");
      }
      return restart;
    case Fault::kStop:
      cluster->StopNode(node);
      return restart;
    case Fault::kFreeze: {
      const std::vector<pid_t> pids = cluster->ProcessesOf(node);
      Signal(pids, SIGSTOP);
      return [pids] { Signal(pids, SIGCONT); };
    }
    case Fault::kAbort:
      AbortWorkers(*cluster, node);
      return [] {};
    case Fault::kCable: {
      const Host* const host = &cluster->host(node);
      cluster->lan().SetCable(*host, ChaosCluster::kInterface, false);
      return [cluster, host] { cluster->lan().SetCable(*host, ChaosCluster::kInterface, true); };
    }
    case Fault::kSplit:
      Split(cluster, node, (node + 1 + (*random)() % (kNodes - 1)) % kNodes);
      return heal;
    case Fault::kMute:
      LoseFrom(cluster, node, 100);
      return heal;
    case Fault::kDeaf:
      LoseTo(cluster, node, 100);
      return heal;
    case Fault::kLoss:
      LoseFrom(cluster, node, kLossPercent);
      LoseTo(cluster, node, kLossPercent);
      return heal;
    case Fault::kSlow: {
      const Host* const host = &cluster->host(node);
      cluster->lan().SetSpeed(*host, ChaosCluster::kInterface, kSlowMbitPerS);
      return [cluster, host] { cluster->lan().SetFullSpeed(*host, ChaosCluster::kInterface); };
    }
    case Fault::kWorkerThenCoordinator:
      AbortWorkers(*cluster, node);
      PauseBetween(random, what);
      kill_other();
      return restart_other;
    case Fault::kTwoNodes:
      Signal(cluster->ProcessesOf(node), SIGKILL);
      kill_other();
      return [restart, restart_other] {
        restart();
        restart_other();
      };
    case Fault::kCableInDrain: {
      const auto drain = BeginDrain(cluster, node, place.other);
      PauseBetween(random, what);
      const Host* const host = &cluster->host(node);
      cluster->lan().SetCable(*host, ChaosCluster::kInterface, false);
      return [cluster, host, node, drain] {
        cluster->lan().SetCable(*host, ChaosCluster::kInterface, true);
        EndDrain(cluster, node, drain.get());
      };
    }
    case Fault::kDrainThenCoordinator: {
      const auto drain = BeginDrain(cluster, node, place.other);
      PauseBetween(random, what);
      kill_other();
      return [cluster, node, drain, restart_other] {
        restart_other();
        EndDrain(cluster, node, drain.get());
      };
    }
    case Fault::kWeights:
      cluster->RemoveCachedWeights(node);
      AbortWorkers(*cluster, node);
      return [] {};
    case Fault::kFullDisk:
      Signal(cluster->ProcessesOf(node), SIGKILL);
      return [cluster, restart] {
        for (size_t i = 0; i < kNodes; ++i) cluster->disk(i).MakeRoom();
        restart();
      };
    case Fault::kSlowDisk:
      // So the node has to load from the slow disk.
      EXPECT_TRUE(cluster->slow_disk()->SetSpeed(kSlowDiskBytesPerS).ok());
      AbortWorkers(*cluster, node);
      cluster->slow_disk()->ForgetPages();
      return [cluster] { EXPECT_TRUE(cluster->slow_disk()->SetSpeed(0).ok()); };
  }
  return [] {};
}

bool EndsItsProcess(Fault fault) {
  return fault == Fault::kKill || fault == Fault::kStop || fault == Fault::kTwoNodes ||
         fault == Fault::kFullDisk;
}

bool EndsOthersProcess(Fault fault) {
  return fault == Fault::kWorkerThenCoordinator || fault == Fault::kTwoNodes ||
         fault == Fault::kDrainThenCoordinator;
}

bool AbortsItsWorker(Fault fault) {
  return fault == Fault::kAbort || fault == Fault::kWorkerThenCoordinator ||
         fault == Fault::kWeights || fault == Fault::kSlowDisk;
}

}  // namespace strata
