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

constexpr int64_t kRebalanceUs = 1'000'000;

// Tells one state of a file from another; each change makes a new file, so a new inode.
struct FileState {
  int error = 0;  // of looking; ENOENT: there is none
  std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t> what;
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
  return {.what = {about.st_dev, about.st_ino, about.st_size, changed.tv_sec, changed.tv_nsec}};
}

}  // namespace

struct ApiTokens::Shared {
  Shared(std::string p, Clock* c) : path(std::move(p)), clock(c) {}

  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  const ApiToken* Find(absl::string_view hash) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const std::string path;
  Clock* const clock;

  Mutex mu;
  bool looked ABSL_GUARDED_BY(mu) = false;
  int64_t looked_us ABSL_GUARDED_BY(mu) = 0;
  FileState state ABSL_GUARDED_BY(mu);  // as it was before `tokens` was read
  absl::StatusOr<std::vector<ApiToken>> tokens ABSL_GUARDED_BY(mu) = std::vector<ApiToken>();
  // By hash. Of tokens that are gone as long as they hold streams.
  std::map<std::string, TokenLimiter> limiters ABSL_GUARDED_BY(mu);
};

void ApiTokens::Shared::Look() {
  const int64_t now_us = clock->NowUs();
  if (looked && now_us - looked_us < kRebalanceUs) return;
  FileState now = StateOf(path);
  const bool changed = !looked || !(now == state);
  looked = true;
  looked_us = now_us;
  // What could not be read is tried again each time.
  if (!changed && tokens.ok()) return;
  state = now;
  tokens = ReadApiTokens(path);
  if (!tokens.ok()) return;
  std::erase_if(limiters, [&](const auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return entry.second.streams() == 0 && Find(entry.first) == nullptr;
  });
}

// Looks at all of them, and at all of each, whatever it finds.
const ApiToken* ApiTokens::Shared::Find(absl::string_view hash) const {
  const ApiToken* found = nullptr;
  for (const ApiToken& token : *tokens) {
    if (token.hash.size() == hash.size() &&
        CRYPTO_memcmp(token.hash.data(), hash.data(), hash.size()) == 0) {
      found = &token;
    }
  }
  return found;
}

struct ApiTokens::Admission::Held {
  Held(std::shared_ptr<Shared> s, std::string h, std::string n, bool st)
      : shared(std::move(s)), hash(std::move(h)), name(std::move(n)), stream(st) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (!stream) return;
    const MutexLock lock(&shared->mu);
    const auto it = shared->limiters.find(hash);
    it->second.StreamEnded();
  }

  const std::shared_ptr<Shared> shared;
  const std::string hash;
  const std::string name;
  const bool stream;
};

ApiTokens::Admission::Admission() = default;
ApiTokens::Admission::Admission(Admission&& other) noexcept = default;
ApiTokens::Admission& ApiTokens::Admission::operator=(Admission&& other) noexcept = default;
ApiTokens::Admission::~Admission() = default;

const std::string& ApiTokens::Admission::name() const {
  static const std::string* const kNone = new std::string;
  return held_ == nullptr ? *kNone : held_->name;
}

ApiTokens::ApiTokens(std::string path, Clock* clock)
    : shared_(std::make_shared<Shared>(std::move(path), clock)) {}
ApiTokens::~ApiTokens() = default;

ApiTokens::Answer ApiTokens::Admit(const Request& request) {
  Answer answer;
  const absl::StatusOr<std::string> hash = ApiTokenHash(request.text);
  const MutexLock lock(&shared_->mu);
  shared_->Look();
  if (!shared_->tokens.ok()) {
    answer.status = absl::UnavailableError(
        absl::StrCat("nobody is let in: ", shared_->tokens.status().message()));
    return answer;
  }
  const ApiToken* const token = hash.ok() ? shared_->Find(*hash) : nullptr;
  if (token == nullptr || request.now >= token->limits.expires) {
    answer.status = absl::UnauthenticatedError("no valid token came with the request");
    return answer;
  }
  const TokenLimiter::Answer limit =
      shared_->limiters[*hash].Ask(token->limits, shared_->clock->NowUs(), request.stream);
  if (!limit.admitted) {
    answer.status = absl::ResourceExhaustedError(limit.why_not);
    answer.retry_after = absl::Microseconds(limit.retry_after_us);
    return answer;
  }
  answer.admission.held_ =
      std::make_unique<Admission::Held>(shared_, *hash, token->name, request.stream);
  return answer;
}

}  // namespace strata
