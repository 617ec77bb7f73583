// `strata approve`: gives the cluster's key to a node that waits for it, once a person has seen the
// same code on both (transport/pairing/pairing.h). Blocks.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"

namespace strata {

struct ApproveOptions {
  ClientOptions client;
  std::string node;  // a name, the start of an id or host:port; empty: the only one that waits
};

// kNotFound: no such node waits; kInvalidArgument: several do; kFailedPrecondition: there is no key
// here; else the errors of PairWith().
absl::Status RunApprove(const ApproveOptions& options);

}  // namespace strata
