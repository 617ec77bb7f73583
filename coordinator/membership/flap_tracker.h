// How often each node was lost, and for how long one that comes and goes is kept out of plans: a
// machine whose cable is loose would otherwise take layers, and texts a pause, again and again.
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

// The first loss costs nothing, the next one this long, and each further one twice as long.
inline constexpr absl::Duration kKeptOutFirst = absl::Seconds(10);
inline constexpr absl::Duration kKeptOutMax = absl::Minutes(5);
// A node that was not lost for that long is like any other.
inline constexpr absl::Duration kLossesForgotten = absl::Minutes(10);
// Nodes that are remembered; the one that was lost longest ago goes.
inline constexpr size_t kLossesMax = 1024;

class NodeFlapTracker {
 public:
  void Add(const std::string& node_id, SteadyTime now);
  // For people: why it is kept out of plans at present; empty: it is not.
  std::string WhyKeptOut(const std::string& node_id, SteadyTime now) const;
  // The same of all that are.
  std::map<std::string, std::string> KeptOut(SteadyTime now) const;
  // When the first of them will be kept out no more; infinitely late: none is.
  SteadyTime NextBack(SteadyTime now) const;

 private:
  struct Record {
    uint32_t times = 0;
    SteadyTime last;
  };
  static SteadyTime Until(const Record& record);

  std::map<std::string, Record> nodes_;  // by id
};

}  // namespace strata
