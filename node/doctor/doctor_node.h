// The calls of `strata doctor` to one node. Blocks; never on the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node/doctor/doctor_facts.h"

namespace strata {

// Keeps a node's door open until it is destroyed.
class DoorHandle {
 public:
  virtual ~DoorHandle() = default;
};

// Finds an address among `candidates` at which `node` answers (any node, if it has no id yet) and
// asks it for all but `links`. If none answers and `through`, the address of another node, is not
// empty, calls the node through that one. `opened` may stay null.
void QueryNode(const std::vector<std::string>& candidates, const std::string& through,
               NodeFacts* node, std::unique_ptr<DoorHandle>* opened);

// Makes the node at index `place` try to reach the others: fills in `links` and `sees_us_as`.
void CheckLinksOf(size_t place, std::vector<NodeFacts>* nodes);

}  // namespace strata
