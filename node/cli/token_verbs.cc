#include "node/cli/token_verbs.h"

#include <filesystem>
#include <iostream>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/api/api_token_file.h"
#include "node/base/data_dir.h"
#include "node/base/standard_output.h"
#include "transport/base/text_table.h"
#include "transport/base/wall_clock.h"
#include "transport/security/private_file.h"
#include "transport/security/secret.h"

namespace strata {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);

absl::StatusOr<std::string> FileOf(const TokenOptions& options) {
  const absl::StatusOr<std::string> folder = DataDir::PathOf(options.data_dir);
  if (!folder.ok()) return folder.status();
  return ApiTokenFilePath(*folder);
}

std::string DateText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d", time, absl::LocalTimeZone());
}

std::string LimitText(uint32_t limit) { return limit == 0 ? "any" : absl::StrCat(limit); }

}  // namespace

absl::Status RunTokenNew(const TokenOptions& options) {
  const absl::StatusOr<std::string> path = FileOf(options);
  if (!path.ok()) return path.status();
  // The node may not have run yet.
  const std::string folder = std::filesystem::path(*path).parent_path().string();
  if (absl::Status status = MakePrivateFolder(folder); !status.ok()) {
    return absl::UnavailableError(status.message());
  }
  const absl::StatusOr<ApiScopes> scopes = ParseApiScopes(options.scopes);
  if (!scopes.ok()) return scopes.status();
  NewApiToken token = {.name = options.name, .scopes = *scopes};
  token.limits.requests_per_minute = options.requests_per_minute;
  token.limits.streams_max = options.streams_max;
  if (options.days > 0) token.limits.expires = token.now + options.days * kDay;
  const absl::StatusOr<Secret> text = AddApiToken(*path, token);
  if (!text.ok()) return text.status();
  std::cerr << "The token of " << options.name
            << ", as clients send it (Authorization: Bearer …, or as API key). It is not shown "
               "again:\n";
  return WriteToStdout(text->Reveal() + "\n");
}

absl::Status RunTokenList(const TokenOptions& options) {
  const absl::StatusOr<std::string> path = FileOf(options);
  if (!path.ok()) return path.status();
  const absl::StatusOr<std::vector<ApiToken>> tokens = ReadApiTokens(*path);
  if (!tokens.ok()) return tokens.status();
  const absl::Time now = WallNow();
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const ApiToken& token : *tokens) list.push_back(ApiTokenJson(token, now));
    return WriteToStdout(nlohmann::json{{"tokens", std::move(list)}}.dump() + "\n");
  }
  if (tokens->empty()) {
    return WriteToStdout("There are no tokens; strata token new NAME makes one.\n");
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "SCOPES", "MADE", "ENDS", "REQUESTS A MINUTE", "REQUESTS AT ONCE"}};
  for (const ApiToken& token : *tokens) {
    const bool ends = token.limits.expires < absl::InfiniteFuture();
    rows.push_back({token.name, ApiScopesText(token.scopes), DateText(token.created),
                    !ends                         ? "never"
                    : token.limits.expires <= now ? "has ended"
                                                  : DateText(token.limits.expires),
                    LimitText(token.limits.requests_per_minute),
                    LimitText(token.limits.streams_max)});
  }
  return WriteToStdout(TextTable(rows).Text());
}

absl::Status RunTokenRevoke(const TokenOptions& options) {
  const absl::StatusOr<std::string> path = FileOf(options);
  if (!path.ok()) return path.status();
  if (absl::Status status = RevokeApiToken(*path, options.name); !status.ok()) return status;
  std::cerr << "The token of " << options.name
            << " is revoked, within a second; requests that are running continue to their end\n";
  return absl::OkStatus();
}

absl::Status RunPage(const TokenOptions& options) {
  const absl::StatusOr<std::string> folder = DataDir::PathOf(options.data_dir);
  if (!folder.ok()) return folder.status();
  const absl::StatusOr<std::string> url = DataDir::ReadPageUrl(*folder);
  if (!url.ok()) return url.status();
  const absl::StatusOr<Secret> code = AddLinkCode(ApiTokenFilePath(*folder), WallNow());
  if (!code.ok()) return code.status();
  // Browsers do not send the part behind #, so that no server or proxy logs it.
  const std::string link = absl::StrCat(*url, "/#login=", code->Reveal());
  return WriteToStdout(options.json ? nlohmann::json{{"link", link}}.dump() + "\n" : link + "\n");
}

}  // namespace strata
