#include "node/api/api_token_file.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "transport/base/state_file.h"
#include "transport/security/private_file.h"
#include "transport/security/secret_text.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<ApiToken>;

constexpr SecretKind kKind = {
    .name = "token", .prefix = kApiTokenPrefix, .example = "'strata token new' makes one"};
// Prefixes of a token's bytes in its hashes, by the hash's use.
constexpr absl::string_view kHashOf[] = {"strata api token\n", "strata cache scope of api token\n"};
constexpr int kVersion = 1;
constexpr int64_t kSecondsMax = int64_t{1} << 40;  // far below the overflow of absl::Time

std::string HashOf(const SecretBytes& bytes, ApiTokenUse use = ApiTokenUse::kStored) {
  const Secret text(
      absl::StrCat(kHashOf[static_cast<size_t>(use)],
                   absl::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size())));
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(text.Reveal().data()), text.Reveal().size(),
         reinterpret_cast<uint8_t*>(hash.data()));
  return hash;
}

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kApiTokenNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::string_view("-_.@").find(c) != absl::string_view::npos;
         });
}

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a valid list of tokens: ", what));
}

// A whole number from 0 to `max`, `missing` where there is none; nullopt for any other value.
std::optional<int64_t> Number(const Json& object, const char* key, int64_t max, int64_t missing) {
  const auto it = object.find(key);
  if (it == object.end()) return missing;
  if (!it->is_number_unsigned() || it->get<uint64_t>() > static_cast<uint64_t>(max)) {
    return std::nullopt;
  }
  return it->get<int64_t>();
}

std::string Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

absl::StatusOr<ApiToken> ParseToken(const Json& json) {
  if (!json.is_object()) return Damaged("an entry is not an object");
  ApiToken token;
  token.name = Text(json, "name");
  if (!IsName(token.name)) return Damaged("a name is missing or wrong");
  const std::string hash = Text(json, "sha256");
  if (hash.size() != 2 * SHA256_DIGEST_LENGTH || !absl::HexStringToBytes(hash, &token.hash)) {
    return Damaged(absl::StrCat("the hash of ", token.name, " is missing or wrong"));
  }
  const auto created = Number(json, "created", kSecondsMax, 0);
  const auto expires = Number(json, "expires", kSecondsMax, -1);
  const auto requests = Number(json, "requests_per_minute", kRequestsPerMinuteMax, 0);
  const auto streams = Number(json, "streams_max", kTokenStreamsMax, 0);
  if (!created || !expires || !requests || !streams) {
    return Damaged(absl::StrCat("a number of ", token.name, " is wrong"));
  }
  token.created = absl::FromUnixSeconds(*created);
  if (*expires >= 0) token.limits.expires = absl::FromUnixSeconds(*expires);
  token.limits.requests_per_minute = static_cast<uint32_t>(*requests);
  token.limits.streams_max = static_cast<uint32_t>(*streams);
  if (json.contains("scopes")) {
    const absl::StatusOr<ApiScopes> scopes = ParseApiScopes(Text(json, "scopes"));
    if (!scopes.ok()) return Damaged(absl::StrCat("the scopes of ", token.name, " are wrong"));
    token.scopes = *scopes;
  }
  token.once = json.value("once", Json(false)) == true;
  return token;
}

auto Find(Tokens* tokens, absl::string_view name) {
  return std::find_if(tokens->begin(), tokens->end(),
                      [&](const ApiToken& token) { return token.name == name; });
}

// Reads the tokens, applies `change`, writes them. One program at a time: the lock is a file of its
// own, since each change replaces the file of tokens.
absl::Status Change(const std::string& path, const std::function<absl::Status(Tokens*)>& change) {
  const auto lock = LockFile(path + ".lock");
  if (!lock.ok()) return lock.status();
  absl::StatusOr<Tokens> tokens = ReadApiTokens(path);
  if (!tokens.ok()) return tokens.status();
  if (absl::Status status = change(&*tokens); !status.ok()) return status;
  return WritePrivateFile(path, FormatApiTokens(*tokens), PrivateFileMode::kReplace);
}

absl::Status CheckNew(const NewApiToken& token) {
  if (!IsName(token.name)) {
    return absl::InvalidArgumentError(absl::StrCat("a token's name has 1 to ",
                                                   kApiTokenNameBytesMax,
                                                   " letters, digits or characters of -_.@"));
  }
  if (token.limits.requests_per_minute > kRequestsPerMinuteMax ||
      token.limits.streams_max > kTokenStreamsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a token's limits are at most ", kRequestsPerMinuteMax, " requests per minute and ",
        kTokenStreamsMax, " streams at once; leave one out for no limit"));
  }
  if (token.limits.expires <= token.now) {
    return absl::InvalidArgumentError("the token would have expired already");
  }
  if (token.limits.expires < absl::InfiniteFuture() &&
      absl::ToUnixSeconds(token.limits.expires) > kSecondsMax) {
    return absl::InvalidArgumentError(
        "the token would expire too late; leave the expiry out for never");
  }
  return absl::OkStatus();
}

// Adds a token with the secret `bytes`.
absl::Status Put(const NewApiToken& token, const SecretBytes& bytes, Tokens* tokens) {
  if (Find(tokens, token.name) != tokens->end()) {
    return absl::AlreadyExistsError(absl::StrCat("there is a token ", token.name, " already"));
  }
  if (tokens->size() >= kApiTokensMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", kApiTokensMax, " tokens: revoke one first"));
  }
  tokens->push_back({.name = token.name,
                     .hash = HashOf(bytes),
                     .created = token.now,
                     .limits = token.limits,
                     .scopes = token.scopes,
                     .once = token.once});
  return absl::OkStatus();
}

// Names of links' codes, and of the tokens that they are exchanged for. No person's token begins
// so.
constexpr absl::string_view kLinkPrefix = "link@", kPagePrefix = "page@";

// A name that no other code or token has, made of its secret's hash.
std::string NameOf(absl::string_view prefix, const SecretBytes& bytes) {
  return absl::StrCat(prefix, absl::BytesToHexString(HashOf(bytes).substr(0, 4)));
}

void ForgetExpired(absl::Time now, Tokens* tokens) {
  std::erase_if(*tokens, [now](const ApiToken& token) {
    return token.limits.expires <= now &&
           (absl::StartsWith(token.name, kLinkPrefix) || absl::StartsWith(token.name, kPagePrefix));
  });
}

}  // namespace

nlohmann::json ApiTokenJson(const ApiToken& token, absl::Time now) {
  Json json = {{"name", token.name},
               {"created", absl::ToUnixSeconds(token.created)},
               {"expired", token.limits.expires <= now},
               {"scopes", ApiScopesText(token.scopes)}};
  if (token.limits.expires < absl::InfiniteFuture()) {
    json["expires"] = absl::ToUnixSeconds(token.limits.expires);
  }
  if (token.limits.requests_per_minute > 0) {
    json["requests_per_minute"] = token.limits.requests_per_minute;
  }
  if (token.limits.streams_max > 0) json["streams_max"] = token.limits.streams_max;
  return json;
}

absl::StatusOr<std::string> ApiTokenHash(absl::string_view text, ApiTokenUse use) {
  const absl::StatusOr<SecretBytes> bytes = SecretFromText(kKind, text);
  if (!bytes.ok()) return bytes.status();
  return HashOf(*bytes, use);
}

absl::StatusOr<Tokens> ParseApiTokens(absl::string_view bytes) {
  const Json json = Json::parse(bytes.begin(), bytes.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Damaged("not JSON");
  if (Number(json, "version", kVersion, 0) != kVersion)
    return Damaged("its version is not supported");
  const auto list = json.find("tokens");
  if (list == json.end() || !list->is_array()) return Damaged("the list is missing");
  if (list->size() > kApiTokensMax) return Damaged("too many tokens");
  Tokens tokens;
  for (const Json& entry : *list) {
    absl::StatusOr<ApiToken> token = ParseToken(entry);
    if (!token.ok()) return token.status();
    if (Find(&tokens, token->name) != tokens.end()) {
      return Damaged(absl::StrCat("two are named ", token->name));
    }
    tokens.push_back(*std::move(token));
  }
  return tokens;
}

std::string FormatApiTokens(const Tokens& tokens) {
  Json list = Json::array();
  for (const ApiToken& token : tokens) {
    Json json = {{"name", token.name},
                 {"sha256", absl::BytesToHexString(token.hash)},
                 {"created", absl::ToUnixSeconds(token.created)}};
    const ApiTokenLimits& limits = token.limits;
    if (limits.expires < absl::InfiniteFuture()) {
      json["expires"] = absl::ToUnixSeconds(limits.expires);
    }
    if (limits.requests_per_minute > 0) json["requests_per_minute"] = limits.requests_per_minute;
    if (limits.streams_max > 0) json["streams_max"] = limits.streams_max;
    json["scopes"] = ApiScopesText(token.scopes);
    if (token.once) json["once"] = true;
    list.push_back(std::move(json));
  }
  return Json{{"version", kVersion}, {"tokens", std::move(list)}}.dump(1) + "\n";
}

std::string ApiTokenFilePath(const std::string& data_dir) { return data_dir + "/api_tokens"; }

absl::StatusOr<Tokens> ReadApiTokens(const std::string& path) {
  const absl::StatusOr<Secret> bytes = ReadPrivateFile(path);
  if (absl::IsNotFound(bytes.status())) return Tokens();
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<Tokens> tokens = ParseApiTokens(bytes->Reveal());
  if (!tokens.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is damaged: ", tokens.status().message(), "; remove it to start without tokens"));
  }
  return tokens;
}

absl::StatusOr<Secret> AddApiToken(const std::string& path, const NewApiToken& token) {
  if (absl::Status status = CheckNew(token); !status.ok()) return status;
  const absl::StatusOr<SecretBytes> bytes = NewSecretBytes();
  if (!bytes.ok()) return bytes.status();
  absl::Status status = Change(path, [&](Tokens* tokens) { return Put(token, *bytes, tokens); });
  if (!status.ok()) return status;
  return SecretToText(kKind, *bytes);
}

absl::StatusOr<Secret> AddLinkCode(const std::string& path, absl::Time now) {
  const absl::StatusOr<SecretBytes> bytes = NewSecretBytes();
  if (!bytes.ok()) return bytes.status();
  const NewApiToken code = {.name = NameOf(kLinkPrefix, *bytes),
                            .limits = {.expires = now + kLinkTime},
                            .scopes = {.chat = true, .view = true, .admin = true},
                            .once = true,
                            .now = now};
  absl::Status status = Change(path, [&](Tokens* tokens) {
    ForgetExpired(now, tokens);
    return Put(code, *bytes, tokens);
  });
  if (!status.ok()) return status;
  return SecretToText(kKind, *bytes);
}

absl::StatusOr<Secret> RedeemLinkCode(const std::string& path, absl::string_view code,
                                      absl::Time now) {
  absl::Status refused = absl::PermissionDeniedError(
      "this link was used already, or has expired: strata page prints a new one");
  const absl::StatusOr<std::string> hash = ApiTokenHash(code);
  if (!hash.ok()) return refused;
  const absl::StatusOr<SecretBytes> bytes = NewSecretBytes();
  if (!bytes.ok()) return bytes.status();
  absl::Status status = Change(path, [&](Tokens* tokens) {
    ForgetExpired(now, tokens);
    const auto it = std::find_if(tokens->begin(), tokens->end(), [&](const ApiToken& token) {
      return token.once && CRYPTO_memcmp(token.hash.data(), hash->data(), hash->size()) == 0;
    });
    if (it == tokens->end()) return refused;
    const NewApiToken page = {.name = NameOf(kPagePrefix, *bytes),
                              .limits = {.expires = now + kPageTokenTime},
                              .scopes = it->scopes,
                              .now = now};
    tokens->erase(it);
    return Put(page, *bytes, tokens);
  });
  if (!status.ok()) return status;
  return SecretToText(kKind, *bytes);
}

absl::Status RevokeApiToken(const std::string& path, absl::string_view name) {
  return Change(path, [&](Tokens* tokens) {
    const auto it = Find(tokens, name);
    if (it == tokens->end()) {
      return absl::NotFoundError(absl::StrCat("there is no token ", name));
    }
    tokens->erase(it);
    return absl::OkStatus();
  });
}

}  // namespace strata
