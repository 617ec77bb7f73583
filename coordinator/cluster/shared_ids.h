// Messages about nodes that cannot be distinguished: two processes with one id, two nodes with one
// name. Any thread.
#pragma once

#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace strata {

// A sentence without a dot: which of the two has the place, and what to do.
std::string SharedIdMessage(const wire::SharedId& shared);

// All shared ids in the responses, each once; a few at most. The first response counts first.
std::vector<wire::SharedId> AllSharedIds(
    const std::vector<const wire::GetClusterResponse*>& clusters);
// Live nodes that share a name, a sentence for each name; a few at most.
std::vector<std::string> SharedNameProblems(const wire::GetClusterResponse& cluster);

// A node's name, or name-id with the first digits of its id where another known node has the name,
// too.
std::string DistinctName(const wire::GetClusterResponse& cluster, const wire::NodeRecord& node);

}  // namespace strata
