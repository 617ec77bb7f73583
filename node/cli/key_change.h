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
  bool now = false;  // without waiting until its layers are on other nodes
};

// kUnavailable: no node answers; kFailedPrecondition: the nodes are open; kAborted: another change
// of the key is in progress; else the error of a node: then nothing has changed.
absl::Status RunKeyRotate(const KeyChangeOptions& options);
// kNotFound: no such node; kInvalidArgument: several, or the node that is called; else as
// RunKeyRotate(), or as a drain, which comes first if the node is alive.
absl::Status RunNodesRemove(const KeyChangeOptions& options);

}  // namespace strata
