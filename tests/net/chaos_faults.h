// What may go wrong under a ChaosCluster.
#pragma once

#include <cstddef>
#include <functional>
#include <random>
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
  kFullDisk,
  kSlowDisk
};
struct FaultKind {
  Fault fault;
  const char* name;  // what has happened to the node
};

// Those that can be made there, always in the same order.
std::vector<FaultKind> FaultsFor(ChaosCluster* cluster);

// Lets it happen to a node; what is returned mends it, while the cluster lives.
std::function<void()> Begin(Fault fault, ChaosCluster* cluster, size_t node, std::mt19937* random);

// Whether the node's own texts go with it.
bool EndsItsProcess(Fault fault);

}  // namespace strata
