// How often each node was lost, and for how long a flapping node is kept out of plans: a machine
// with a loose cable would otherwise get layers, and requests a pause, again and again.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "transport/base/steady_time.h"

namespace strata {

// The first loss has no penalty, the second this one, and each further one twice as much.
inline constexpr absl::Duration kExclusionFirst = absl::Seconds(10);
inline constexpr absl::Duration kExclusionMax = absl::Minutes(5);
// The losses of a node that was not lost for that long are forgotten.
inline constexpr absl::Duration kLossesForgotten = absl::Minutes(10);
// Nodes that are remembered; the one that was lost longest ago is dropped.
inline constexpr size_t kLossesMax = 1024;

class NodeFlapTracker {
 public:
  void Add(const std::string& node_id, SteadyTime now);
  // For people: the reason why the node is kept out of plans now; empty: it is not.
  std::string WhyExcluded(const std::string& node_id, SteadyTime now) const;
  // The same for all nodes that are kept out, by id.
  std::map<std::string, std::string> ExcludedNodes(SteadyTime now) const;
  // When the first of them may return; infinitely late: none is kept out.
  SteadyTime NextReturn(SteadyTime now) const;

 private:
  struct Record {
    uint32_t times = 0;
    SteadyTime last;
  };
  static SteadyTime Until(const Record& record);

  std::map<std::string, Record> nodes_;  // by id
};

}  // namespace strata
