// `strata alias` gives models names of this machine's own. Blocks; one thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"

namespace strata {

struct AliasOptions {
  ClientOptions client;     // whose models' names an alias may not have
  std::string name, model;  // both, or neither: lists all
  std::string remove;       // instead: an alias that is no more; empty: none
  bool json = false;
};
// kInvalidArgument: a model's name, or `model` is in another format; kNotFound: nobody has `model`;
// else errors of AddAlias() and RemoveAlias().
absl::Status RunAlias(const AliasOptions& options);

}  // namespace strata
