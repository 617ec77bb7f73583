#include "node/api/api_tokens.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "node/api/api_token_file.h"
#include "node/api/token_limiter.h"
#include "transport/base/mutex.h"

namespace strata {
namespace {

constexpr int64_t kRecheckUs = 1'000'000;

// Identifies one version of the file; each change makes a new file, so a new inode.
struct FileState {
  int error = 0;  // of stat(); ENOENT: there is no file
  std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t> stamp;
  bool operator==(const FileState&) const = default;
};

FileState StateOf(const std::string& path) {
  struct stat about;
  if (stat(path.c_str(), &about) != 0) return {.error = errno};
#ifdef __APPLE__
  const timespec& changed = about.st_ctimespec;
#else
  const timespec& changed = about.st_ctim;  // also when its mode has changed
#endif
  return {.stamp = {about.st_dev, about.st_ino, about.st_size, changed.tv_sec, changed.tv_nsec}};
}

}  // namespace

struct ApiTokens::Shared {
  Shared(std::string p, Clock* c) : path(std::move(p)), clock(c) {}

  // Reads the file if it has changed, of which it is sure for so long after it has looked.
  void Refresh(int64_t sure_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  const ApiToken* Find(absl::string_view hash) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const std::string path;
  Clock* const clock;

  Mutex mu;
  bool checked ABSL_GUARDED_BY(mu) = false;
  int64_t checked_us ABSL_GUARDED_BY(mu) = 0;
  FileState state ABSL_GUARDED_BY(mu);  // from before `tokens` was read
  absl::StatusOr<std::vector<ApiToken>> tokens ABSL_GUARDED_BY(mu) = std::vector<ApiToken>();
  // By hash. A revoked token's limiter stays as long as the token has streams.
  std::map<std::string, TokenLimiter> limiters ABSL_GUARDED_BY(mu);
};

void ApiTokens::Shared::Refresh(int64_t sure_us) {
  const int64_t now_us = clock->NowUs();
  if (checked && now_us - checked_us < sure_us) return;
  FileState now = StateOf(path);
  const bool changed = !checked || !(now == state);
  checked = true;
  checked_us = now_us;
  // A file that could not be read is tried again each time.
  if (!changed && tokens.ok()) return;
  state = now;
  tokens = ReadApiTokens(path);
  if (!tokens.ok()) return;
  std::erase_if(limiters, [&](const auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return entry.second.streams() == 0 && Find(entry.first) == nullptr;
  });
}

// Compares with all tokens, each in constant time, so that the time does not depend on a match.
const ApiToken* ApiTokens::Shared::Find(absl::string_view hash) const {
  const ApiToken* found = nullptr;
  if (!tokens.ok()) return found;
  for (const ApiToken& token : *tokens) {
    if (token.hash.size() == hash.size() &&
        CRYPTO_memcmp(token.hash.data(), hash.data(), hash.size()) == 0) {
      found = &token;
    }
  }
  return found;
}

struct ApiTokens::TokenGrant::Share {
  Share(std::shared_ptr<Shared> s, const ApiToken& token, std::string scope, bool st)
      : shared(std::move(s)),
        hash(token.hash),
        name(token.name),
        cache_scope(std::move(scope)),
        scopes(token.scopes),
        stream(st) {}
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  ~Share() {
    if (!stream) return;
    const MutexLock lock(&shared->mu);
    const auto it = shared->limiters.find(hash);
    it->second.StreamEnded();
  }

  const std::shared_ptr<Shared> shared;
  const std::string hash;
  const std::string name;
  const std::string cache_scope;
  const ApiScopes scopes;
  const bool stream;
};

ApiTokens::TokenGrant::TokenGrant() = default;
ApiTokens::TokenGrant::TokenGrant(TokenGrant&& other) noexcept = default;
ApiTokens::TokenGrant& ApiTokens::TokenGrant::operator=(TokenGrant&& other) noexcept = default;
ApiTokens::TokenGrant::~TokenGrant() = default;

const std::string& ApiTokens::TokenGrant::name() const {
  static const std::string* const kNone = new std::string;
  return share_ == nullptr ? *kNone : share_->name;
}

const std::string& ApiTokens::TokenGrant::cache_scope() const {
  static const std::string* const kNone = new std::string;
  return share_ == nullptr ? *kNone : share_->cache_scope;
}

ApiScopes ApiTokens::TokenGrant::scopes() const {
  return share_ == nullptr ? ApiScopes() : share_->scopes;
}

ApiTokens::ApiTokens(std::string path, Clock* clock)
    : shared_(std::make_shared<Shared>(std::move(path), clock)) {}
ApiTokens::~ApiTokens() = default;

ApiTokens::AdmitResult ApiTokens::Admit(const Request& request) {
  AdmitResult result;
  const absl::StatusOr<std::string> hash = ApiTokenHash(request.text);
  const MutexLock lock(&shared_->mu);
  shared_->Refresh(kRecheckUs);
  // One that is not known may have been made just now, as that of a link to the page.
  if (hash.ok() && shared_->Find(*hash) == nullptr) shared_->Refresh(0);
  if (!shared_->tokens.ok()) {
    result.status = absl::UnavailableError(
        absl::StrCat("no request is admitted: ", shared_->tokens.status().message()));
    return result;
  }
  const ApiToken* const token = hash.ok() ? shared_->Find(*hash) : nullptr;
  if (token == nullptr || token->once || request.now >= token->limits.expires) {
    result.status = absl::UnauthenticatedError("no valid token came with the request");
    return result;
  }
  if (!token->scopes.Has(request.scope)) {
    result.status = absl::PermissionDeniedError(
        absl::StrCat("this token may not do that: it has the scopes ", ApiScopesText(token->scopes),
                     ", and this needs ", ApiScopeName(request.scope),
                     " (strata token new NAME --scope ", ApiScopeName(request.scope), ")"));
    return result;
  }
  const TokenLimiter::Result limit =
      shared_->limiters[*hash].Admit(token->limits, shared_->clock->NowUs(), request.stream);
  if (!limit.admitted) {
    result.status = absl::ResourceExhaustedError(limit.why_not);
    result.retry_after = absl::Microseconds(limit.retry_after_us);
    return result;
  }
  const auto cache_scope = ApiTokenHash(request.text, ApiTokenUse::kCacheScope);
  result.grant.share_ = std::make_unique<TokenGrant::Share>(
      shared_, *token, cache_scope.value_or(""), request.stream);
  return result;
}

}  // namespace strata
