// Whether this node has the coordinator's role, as its membership says. A state machine without
// I/O, thread or clock: views go in. Not thread-safe.
#pragma once

#include <string>
#include <utility>

#include "coordinator/membership/membership_types.h"

namespace strata {

class LeaderRole {
 public:
  // Takes over membership's view, and the missed nodes (ClusterRuntime::MissedNodes()). A node
  // that `stops` leaves the others, and keeps its successors until its process ends. True: the role
  // has just gone to another node.
  bool Refresh(const ClusterView& view, std::string missed_nodes, bool stops) {
    const bool lost = is_leader_ && !view.is_coordinator;
    is_leader_ = view.is_coordinator;
    is_settled_ = view.settled;
    missed_nodes_ = std::move(missed_nodes);
    if (!stops) has_successors_ = view.members.size() > 1;
    return lost;
  }

  bool is_leader() const { return is_leader_; }
  // And no other node is about to have the role.
  bool may_act() const { return is_leader_ && is_settled_; }
  // Other nodes may coordinate next.
  bool has_successors() const { return has_successors_; }
  // Names; empty: none.
  const std::string& missed_nodes() const { return missed_nodes_; }

 private:
  bool is_leader_ = false;
  bool is_settled_ = false;
  bool has_successors_ = false;
  std::string missed_nodes_;
};

}  // namespace strata
