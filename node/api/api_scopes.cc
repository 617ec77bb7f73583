#include "node/api/api_scopes.h"

#include <array>
#include <iterator>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace strata {
namespace {

constexpr std::array kApiScopes = {ApiScope::kChat, ApiScope::kView, ApiScope::kAdmin};

bool& PartOf(ApiScopes* scopes, ApiScope scope) {
  switch (scope) {
    case ApiScope::kChat:
      return scopes->chat;
    case ApiScope::kView:
      return scopes->view;
    default:
      return scopes->admin;
  }
}

std::string NamesOf(absl::Span<const ApiScope> scopes, absl::string_view separator) {
  return absl::StrJoin(scopes, separator, [](std::string* out, ApiScope scope) {
    absl::StrAppend(out, ApiScopeName(scope));
  });
}

}  // namespace

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
    const auto* const scope =
        absl::c_find_if(kApiScopes, [name](ApiScope each) { return ApiScopeName(each) == name; });
    if (scope == kApiScopes.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", name,
          "' is no scope: these are, with commas between them: ", NamesOf(kApiScopes, ", ")));
    }
    PartOf(&scopes, *scope) = true;
  }
  return scopes;
}

std::string ApiScopesText(const ApiScopes& scopes) {
  ApiScopes given = scopes;
  std::vector<ApiScope> list;
  absl::c_copy_if(kApiScopes, std::back_inserter(list),
                  [&given](ApiScope scope) { return PartOf(&given, scope); });
  return NamesOf(list, ",");
}

}  // namespace strata
