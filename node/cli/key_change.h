// `strata key rotate` and `strata nodes remove`: the cluster gets a new key while its nodes run
// (key_service.h), all of them or all but one. Block.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"

namespace strata {

struct KeyChangeOptions {
  ClientOptions client;
  std::string node;  // to remove: its name, or the start of its id
  bool now = false;  // without waiting until its layers are elsewhere
};

// kUnavailable: nobody is there; kFailedPrecondition: the nodes are open; kAborted: the key is
// being changed by somebody else; else what kept a node from it: then nothing has changed.
absl::Status RunKeyRotate(const KeyChangeOptions& options);
// kNotFound: no such node; kInvalidArgument: several, or the one that is asked; else as
// RunKeyRotate(), or as a drain, which comes first where the node is here.
absl::Status RunNodesRemove(const KeyChangeOptions& options);

}  // namespace strata
