#include "node/api/api_scopes.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace strata {

absl::string_view ApiScopeName(ApiScope scope) {
  switch (scope) {
    case ApiScope::kChat:
      return "chat";
    case ApiScope::kView:
      return "view";
    default:
      return "admin";
  }
}

absl::StatusOr<ApiScopes> ParseApiScopes(absl::string_view text) {
  ApiScopes scopes;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view name = absl::StripAsciiWhitespace(part);
    if (name == "chat") {
      scopes.chat = true;
    } else if (name == "view") {
      scopes.view = true;
    } else if (name == "admin") {
      scopes.admin = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", name, "' is no scope: chat, view and admin are, with commas between them"));
    }
  }
  return scopes;
}

std::string ApiScopesText(const ApiScopes& scopes) {
  std::vector<absl::string_view> names;
  if (scopes.chat) names.push_back("chat");
  if (scopes.view) names.push_back("view");
  if (scopes.admin) names.push_back("admin");
  return absl::StrJoin(names, ",");
}

}  // namespace strata
