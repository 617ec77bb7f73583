// Access control of the HTTP API: checks for each request that its token is one of the file's
// (api_token_file.h), and that the token's limits permit the request. The file is read again when
// it has changed, at most a second late, so new and revoked tokens take effect at once; requests
// admitted before go on.
//
//   auto result = tokens.Admit({.text = bearer, .stream = true, .now = WallNow()});
//   if (!result.status.ok()) → 401, 429 with Retry-After, or 503
//   … result.grant is kept until the response has ended …
//
// Thread-safe. Blocks on the disk, to check the file for changes and to read it when it has.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "node/api/api_scopes.h"
#include "transport/base/clock.h"

namespace strata {

class ApiTokens {
 public:
  // An admitted request's share of its token's limits; the destructor gives it back. May outlive
  // the ApiTokens. Moved, not copied; an empty one holds nothing.
  class TokenGrant {
   public:
    TokenGrant();
    TokenGrant(TokenGrant&& other) noexcept;
    TokenGrant& operator=(TokenGrant&& other) noexcept;
    ~TokenGrant();
    // The token's name, no secret: for logs and fair queueing. Empty when the grant is.
    const std::string& name() const;
    // None when the grant is empty.
    ApiScopes scopes() const;
    // GenerationRequest::cache_scope: a secret that only the token's text gives, so that whatever
    // is encrypted for it is lost with the token.
    const std::string& cache_scope() const;

   private:
    friend class ApiTokens;
    struct Share;
    std::unique_ptr<Share> share_;
  };

  // `clock` counts the limits' minutes. REQUIRES: it outlives the ApiTokens and all grants.
  ApiTokens(std::string path, Clock* clock);
  ~ApiTokens();

  struct Request {
    absl::string_view text;            // the value behind "Bearer"
    bool stream = false;               // the request counts against `streams_max` too
    ApiScope scope = ApiScope::kChat;  // that the request needs
    absl::Time now;                    // wall time, for tokens that expire
  };
  struct AdmitResult {
    // kUnauthenticated: not a token of ours, or an expired one; the client does not learn which.
    // kPermissionDenied: the token lacks the scope; kResourceExhausted: a limit of the token; both
    // in words for people. kUnavailable: the file cannot be read, so no request is admitted; the
    // message is for the log, not for the client.
    absl::Status status;
    absl::Duration retry_after;  // with kResourceExhausted: zero when it cannot be known
    TokenGrant grant;
  };
  AdmitResult Admit(const Request& request);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // shared with grants
};

}  // namespace strata
