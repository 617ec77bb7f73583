// Words for nodes that cannot be told apart: two processes of one id, two nodes of one name. Any
// thread.
#pragma once

#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace strata {

// A sentence without a dot: which of the two has the place, and what to do.
std::string SharedIdText(const wire::SharedId& shared);

// All that nodes know, each id once; a few at most. The first is the node that was asked first.
std::vector<wire::SharedId> AllSharedIds(
    const std::vector<const wire::GetClusterResponse*>& clusters);
// Nodes that are there and have one name, a sentence for each name; a few at most.
std::vector<std::string> SharedNameProblems(const wire::GetClusterResponse& cluster);

// Of a node: its name, or where another node that is known has it, too, name-id with the first
// digits of its id.
std::string DistinctName(const wire::GetClusterResponse& cluster, const wire::NodeRecord& node);

}  // namespace strata
