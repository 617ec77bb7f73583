// The file of the API's tokens: JSON, beside the key, readable by its owner only
// (transport/security/private_file.h), with a hash of each token and never the token itself.
// `strata token` changes it, a node that serves the API reads it (api_tokens.h), also while it
// runs.
//
//   {"version": 1, "tokens": [{"name": "kitchen", "sha256": "64 hex digits", "created": 1800000000,
//     "expires": 1810000000, "requests_per_minute": 60, "streams_max": 2,
//     "scopes": "chat,view", "once": true}]}
//
// times in seconds since 1970; an absent limit means no limit, absent scopes chat alone. The hash
// is SHA-256 of "strata api token\n" and the token's 32 bytes. A token is 256 random bits: no
// attacker finds one for a given hash by trying, so a salt or a slow hash, which passwords need,
// would only cost time at each request. All functions may be called from any thread and block on
// the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/api_scopes.h"
#include "transport/base/wall_clock.h"
#include "transport/security/secret.h"

namespace strata {

// The prefix of a token's text; secret_text.h defines the rest.
inline constexpr absl::string_view kApiTokenPrefix = "strata-token-1-";

inline constexpr size_t kApiTokensMax = 1000;
inline constexpr size_t kApiTokenNameBytesMax = 64;
inline constexpr uint32_t kRequestsPerMinuteMax = 100'000;
inline constexpr uint32_t kTokenStreamsMax = 100'000;

struct ApiTokenLimits {
  uint32_t requests_per_minute = 0;             // 0: no limit
  uint32_t streams_max = 0;                     // at once; 0: no limit
  absl::Time expires = absl::InfiniteFuture();  // from then on the token is refused
};

struct ApiToken {
  std::string name;  // letters, digits and "-_.@"; no two tokens of a file have the same
  std::string hash;  // 32 bytes
  absl::Time created;
  ApiTokenLimits limits;
  ApiScopes scopes = {.chat = true};
  bool once = false;  // the code of a link, which admits nobody by itself: RedeemLinkCode()
};

// The hash of a token's text as a client sends it: the stored one, or a secret that the stored one
// does not give. kInvalidArgument: `text` is not a token.
enum class ApiTokenUse { kStored, kCacheScope };
absl::StatusOr<std::string> ApiTokenHash(absl::string_view text,
                                         ApiTokenUse use = ApiTokenUse::kStored);

// The fields that people may see, at `now`.
nlohmann::json ApiTokenJson(const ApiToken& token, absl::Time now);

// kInvalidArgument for anything but what FormatApiTokens() makes.
absl::StatusOr<std::vector<ApiToken>> ParseApiTokens(absl::string_view bytes);
std::string FormatApiTokens(const std::vector<ApiToken>& tokens);

// The path of the token file of a node with the data folder `data_dir`.
std::string ApiTokenFilePath(const std::string& data_dir);

// The tokens in the order they were made; none when there is no file. kFailedPrecondition: the file
// is damaged; else as ReadPrivateFile().
absl::StatusOr<std::vector<ApiToken>> ReadApiTokens(const std::string& path);

// Makes a token and returns its text, which is not stored and cannot be read again.
// kInvalidArgument: an invalid name or limit, or an expiry in the past; kAlreadyExists: the name is
// taken; kResourceExhausted: there are kApiTokensMax; kUnavailable: no random bytes; else as
// ReadApiTokens(). Several programs may change the file at once; they wait for each other.
struct NewApiToken {
  std::string name;
  ApiTokenLimits limits;
  ApiScopes scopes = {.chat = true};
  bool once = false;
  absl::Time now = WallNow();
};
absl::StatusOr<Secret> AddApiToken(const std::string& path, const NewApiToken& token);

// The code of a link to the page is valid so long, and the token that it is exchanged for.
inline constexpr absl::Duration kLinkTime = absl::Minutes(10);
inline constexpr absl::Duration kPageTokenTime = absl::Hours(12);
// Makes the code of a link, of all scopes, and forgets those that have expired. Errors of
// AddApiToken().
absl::StatusOr<Secret> AddLinkCode(const std::string& path, absl::Time now);
// Replaces a link's code by a token with its scopes, which is returned. kPermissionDenied: `code`
// is none, was used, or has expired; else errors of AddApiToken().
absl::StatusOr<Secret> RedeemLinkCode(const std::string& path, absl::string_view code,
                                      absl::Time now);

// kNotFound: no token has that name.
absl::Status RevokeApiToken(const std::string& path, absl::string_view name);

}  // namespace strata
