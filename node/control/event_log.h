// The events of a cluster, as two looks at it show them: nodes that joined or were lost, models
// that were loaded, moved, recovered or unloaded. The newest events are kept, for readers that come
// back. No input or output of its own; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "nlohmann/json_fwd.hpp"
#include "proto/coordinator.pb.h"

namespace strata {

inline constexpr size_t kEventsKeptMax = 256;

class EventLog {
 public:
  // `origin` begins all ids, so that those of a node that has restarted since are not mistaken for
  // this one's: letters and digits.
  explicit EventLog(std::string origin) : origin_(std::move(origin)) {}

  // Returns the new events, as server-sent events of the type "event". The first call has none.
  // `models`: null where they are not known at present.
  std::string Update(const ClusterSnapshot& report, const std::vector<wire::ModelStatus>* models,
                     absl::Time now);

  // The kept events behind the one with that id; all of them where the id is not of this log, or
  // not kept any more.
  std::string After(absl::string_view last_id) const;

 private:
  struct Node {
    std::string name;
    bool is_there = false;
  };
  struct Model {
    std::string name;
    wire::ModelStatus::State state = wire::ModelStatus::UNKNOWN;
    uint64_t epoch = 0;
    absl::Time since;  // of the state
  };
  void Add(const char* kind, nlohmann::json details, absl::Time now);
  void UpdateNodes(const ClusterSnapshot& report, absl::Time now);
  void UpdateModels(const std::vector<wire::ModelStatus>& models, absl::Time now);

  const std::string origin_;
  bool has_nodes_ = false, has_models_ = false;
  std::map<std::string, Node> nodes_;    // by id
  std::string coordinator_;              // its id
  std::map<std::string, Model> models_;  // by id
  uint64_t next_ = 1;
  std::deque<std::string> events_;  // the last one has the number next_ - 1
};

}  // namespace strata
