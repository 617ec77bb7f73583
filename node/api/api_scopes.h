// The things that a client of the HTTP API may do. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

enum class ApiScope {
  kChat,   // generate, and list the models
  kView,   // see the cluster
  kAdmin,  // change it: load, unload, drain
};

struct ApiScopes {
  bool chat = false;
  bool view = false;
  bool admin = false;  // may do all that the others may

  bool Has(ApiScope scope) const {
    return admin || (scope == ApiScope::kChat && chat) || (scope == ApiScope::kView && view);
  }
  bool operator==(const ApiScopes&) const = default;
};

// "chat", "view", "admin".
absl::string_view ApiScopeName(ApiScope scope);

// Names with commas: "chat,view". kInvalidArgument: another name, or none.
absl::StatusOr<ApiScopes> ParseApiScopes(absl::string_view text);
std::string ApiScopesText(const ApiScopes& scopes);

}  // namespace strata
