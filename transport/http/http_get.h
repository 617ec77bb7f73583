// HTTP GET by libcurl: of small answers into memory, of large ones piece by piece. Proxies are
// those of the usual variables (https_proxy, no_proxy, …), certificates those of SSL_CERT_FILE or
// CURL_CA_BUNDLE, else of the system. A redirect to another host, port or protocol is followed
// without the Authorization header, and none leads from https to http.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace strata {

struct WebRequest {
  std::string url;
  std::string bearer;  // a token for the host of `url` alone; empty: none
  std::map<std::string, std::string> headers;
};

struct WebAnswer {
  int status = 0;
  std::string url;                             // after redirects
  std::map<std::string, std::string> headers;  // of the last answer, names in lower case
  std::string body;                            // of Fetch(): all; of Stream(): that of an error

  // Empty: there is none.
  std::string Header(const std::string& name) const;
};

// "bytes 0-3/100": the first byte and the length of the whole; nullopt: it is none, or of an
// unknown length.
struct ContentRange {
  uint64_t begin = 0, total = 0;
};
std::optional<ContentRange> ParseContentRange(absl::string_view value);

// `status` with the seconds of the answer's Retry-After for BackOff(), if there are any.
absl::Status WithRetryAfter(absl::Status status, const WebAnswer& answer);
// How long to wait after the attempt number `attempt`, from 1 on, that ended with `why`.
absl::Duration BackOff(absl::Duration first, int attempt, const absl::Status& why);
// Waits, unless `cancelled`: then kCancelled.
absl::Status WaitUnless(const std::function<bool()>& cancelled, absl::Duration time);
// A line about a wait that people notice; empty: it is too short.
std::string NextAttemptNote(const absl::Status& why, absl::Duration wait);

struct RetryOptions {
  absl::Duration first;  // as of BackOff()
  int attempts_max = 1;
  const std::function<bool()>& cancelled;
  const std::function<void(const std::string& note)>& note;  // is told NextAttemptNote()
};
// Calls `once` again while it returns kUnavailable, and returns what it returned last, or
// kCancelled.
absl::Status Retry(const RetryOptions& options, absl::FunctionRef<absl::Status()> once);

// The file with the certificates of authorities: SSL_CERT_FILE, CURL_CA_BUNDLE, else the first of
// the usual ones that is there; empty: none is.
std::string CertificatesFile();

// Keeps connections for later requests. One thread at a time; requests block.
class WebGetter {
 public:
  // `cancelled` is asked about once a second and at each piece, and true ends a request with
  // kCancelled.
  explicit WebGetter(std::function<bool()> cancelled);
  ~WebGetter();

  // Any status is an answer. kUnavailable: none came, or it was cut off; kFailedPrecondition: TLS
  // cannot be set up, with what to do; kInvalidArgument: the answer has more than `bytes_max`.
  absl::StatusOr<WebAnswer> Fetch(const WebRequest& request, size_t bytes_max);

  // Calls `begins` once for an answer with status 200 or 206, and if that is OK `piece` for each
  // piece of its body. Errors of these end the request and are returned.
  using Begins = absl::FunctionRef<absl::Status(const WebAnswer& answer)>;
  using Piece = absl::FunctionRef<absl::Status(absl::string_view bytes)>;
  absl::StatusOr<WebAnswer> Stream(const WebRequest& request, Begins begins, Piece piece);

 private:
  const std::function<bool()> cancelled_;
  void* const curl_;  // CURL
};

}  // namespace strata
