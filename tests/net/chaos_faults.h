// What may go wrong under a ChaosCluster.
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
  const char* name;  // what has happened to the node
};

// Those that can be made there, always in the same order.
std::vector<FaultKind> FaultsFor(ChaosCluster* cluster);

// Does beforehand what takes a while, under which texts would end: disks fill up.
void Prepare(Fault fault, ChaosCluster* cluster);

// Where.
struct FaultPlace {
  size_t node = 0;
  size_t other = 0;  // of two faults, the second's; may be the same
};

// Lets it happen, at once; what is returned mends it, while the cluster lives. `what` is the name
// of its kind, to which it adds what has been drawn besides.
std::function<void()> Begin(Fault fault, ChaosCluster* cluster, FaultPlace place,
                            std::mt19937* random, std::string* what);

// Whether the node's own texts go with it; those of the other place.
bool EndsItsProcess(Fault fault);
bool EndsOthersProcess(Fault fault);
// Whether it happens to the node's worker, which must be there.
bool AbortsItsWorker(Fault fault);

}  // namespace strata
