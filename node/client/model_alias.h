// Gives a model another name on this machine. Blocks.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "node/client/coordinator_client.h"

namespace strata {

struct ModelAlias {
  std::string name;
  std::string model;
};
// Returns the text that the alias is kept with: a file's path is absolute. `client`: of the cluster
// whose models' names an alias may not have, null: there is none. kInvalidArgument: a model's name,
// or `model` is in another format; kNotFound: nobody has `model`; else errors of AddAlias().
absl::StatusOr<std::string> GiveAlias(const std::string& data_dir, const ModelAlias& alias,
                                      CoordinatorClient* client,
                                      const std::function<void(const std::string&)>& note);

}  // namespace strata
