// Faults that a ChaosCluster may have.
#pragma once

#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/net/chaos_cluster.h"

namespace strata {

enum class Fault {
  kKill,
  kStop,
  kFreeze,
  kAbort,
  kCable,
  kSplit,
  kMute,
  kDeaf,
  kLoss,
  kSlow,
  kWorkerThenCoordinator,
  kTwoNodes,
  kCableInDrain,
  kDrainThenCoordinator,
  kWeights,
  kFullDisk,
  kSlowDisk
};
struct FaultKind {
  Fault fault;
  const char* name;  // in words, about the node
};

// The kinds that can be made in the cluster, always in the same order.
std::vector<FaultKind> FaultsFor(ChaosCluster* cluster);

// Does beforehand the slow part, during which requests would end: disks fill up.
void Prepare(Fault fault, ChaosCluster* cluster);

// The nodes that are hit.
struct FaultPlace {
  size_t node = 0;
  size_t other = 0;  // hit by the second of two faults; may be the same
};

// Makes the fault, at once. Returns a function that repairs it, which may be called while the
// cluster lives. `what` is the name of the kind, to which Begin adds what it has drawn besides.
std::function<void()> Begin(Fault fault, ChaosCluster* cluster, FaultPlace place,
                            std::mt19937* random, std::string* what);

// Whether the fault ends the node's own requests with its process; those of the other node.
bool EndsItsProcess(Fault fault);
bool EndsOthersProcess(Fault fault);
// Whether the fault hits the node's worker. REQUIRES: there is one.
bool AbortsItsWorker(Fault fault);

}  // namespace strata
