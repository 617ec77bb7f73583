// `strata rm` removes a model that Strata has fetched to this machine. Blocks; one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"

namespace strata {

struct RemoveOptions {
  ClientOptions client;
  std::string model;
  bool yes = false;  // do not ask
  bool json = false;
};
// kFailedPrecondition: it is loaded, or nobody is there to be asked; kCancelled: the answer was no.
// Else errors of FindRemoval() and RemoveModel().
absl::Status RunRemove(const RemoveOptions& options);

}  // namespace strata
