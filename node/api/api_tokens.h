// Who may use the HTTP API: asks for each request whether the token that it came with is one of the
// file's (api_token_file.h), and whether the token's limits let it through. The file is looked at
// again when it has changed, at most a second late, so a token that was revoked or made counts at
// once; requests that it let in before go on.
//
//   auto admitted = tokens.Admit({.text = bearer, .stream = true, .now = WallNow()});
//   if (!admitted.status.ok()) → 401, 429 with Retry-After, or 503
//   … admitted.admission is kept until the answer has ended …
//
// Thread-safe. Blocks on the disk, where the file lies; for reading it when it has changed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "transport/base/clock.h"

namespace strata {

class ApiTokens {
 public:
  // What a request that was let in holds of its token's limits; given back when it goes. May
  // outlive the ApiTokens. Moved, not copied; an empty one holds nothing.
  class Admission {
   public:
    Admission();
    Admission(Admission&& other) noexcept;
    Admission& operator=(Admission&& other) noexcept;
    ~Admission();
    // The token's name, no secret: for logs and fair turns. Empty when this is.
    const std::string& name() const;

   private:
    friend class ApiTokens;
    struct Held;
    std::unique_ptr<Held> held_;
  };

  // `clock` counts the limits' minutes and outlives everything.
  ApiTokens(std::string path, Clock* clock);
  ~ApiTokens();

  struct Request {
    absl::string_view text;  // what stood behind "Bearer"
    bool stream = false;     // it counts against `streams_max` too
    absl::Time now;          // by the calendar, for tokens that end
  };
  struct Answer {
    // kUnauthenticated: no token of ours, or one that has ended; who asks is not told which.
    // kResourceExhausted: a limit of the token, in words for people. kUnavailable: the file cannot
    // be read, so nobody is let in; the log should have the words, who asks should not.
    absl::Status status;
    absl::Duration retry_after;  // with kResourceExhausted: zero when it cannot be known
    Admission admission;
  };
  Answer Admit(const Request& request);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // shared with admissions
};

}  // namespace strata
