// What `strata doctor` asks of one node that answers. Blocks; never on the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node/doctor/doctor_facts.h"

namespace strata {

// Keeps a node's door open until it is destroyed.
class OpenedDoor {
 public:
  virtual ~OpenedDoor() = default;
};

// Finds an address among `candidates` by which `node` answers (any node, where it has no id yet)
// and asks it for all but `ways`. Where none answers and `through`, the address of another node,
// is not empty, that one is to ask it. `opened` may be left null.
void AskNode(const std::vector<std::string>& candidates, const std::string& through,
             NodeFacts* node, std::unique_ptr<OpenedDoor>* opened);

// Has the node at `place` try to reach the others: `ways` and `sees_us_as`.
void AskWays(size_t place, std::vector<NodeFacts>* nodes);

}  // namespace strata
