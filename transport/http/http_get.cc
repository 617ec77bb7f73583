#include "transport/http/http_get.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "transport/base/environment.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr long kConnectTimeS = 20, kSilenceS = 30, kRedirectsMax = 10;
constexpr size_t kErrorBytesMax = 64 * 1024;
constexpr absl::Duration kWaitMax = absl::Minutes(10), kBackOffMax = absl::Seconds(30);
constexpr absl::string_view kRetryAfterS = "strata/http_retry_after_s";
constexpr absl::Duration kCancelPoll = absl::Milliseconds(100);

// Where distributions have them: Debian, Fedora, SUSE, Alpine and macOS, others.
constexpr const char* kCertificateFiles[] = {"/etc/ssl/certs/ca-certificates.crt",
                                             "/etc/pki/tls/certs/ca-bundle.crt",
                                             "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
                                             "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"};

// The callbacks of one request share this.
struct Transfer {
  CURL* curl = nullptr;
  const std::function<bool()>& cancelled;
  WebGetter::Begins begins;
  WebGetter::Piece piece;
  WebAnswer answer = {};
  bool has_begun = false;
  absl::Status status = absl::OkStatus();  // why a callback ended it
};

int StatusOf(CURL* curl) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

std::string UrlOf(CURL* curl) {
  char* url = nullptr;
  curl_easy_getinfo(curl, CURLINFO_EFFECTIVE_URL, &url);
  return url == nullptr ? "" : url;
}

size_t OnHeader(char* bytes, size_t, size_t size, void* user) {
  auto* const transfer = static_cast<Transfer*>(user);
  const absl::string_view line = absl::StripAsciiWhitespace(absl::string_view(bytes, size));
  if (absl::StartsWith(line, "HTTP/")) transfer->answer.headers.clear();  // of a redirect
  const size_t colon = line.find(':');
  if (colon != line.npos) {
    transfer->answer.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        absl::StripAsciiWhitespace(line.substr(colon + 1));
  }
  return size;
}

size_t OnBody(char* bytes, size_t, size_t size, void* user) {
  auto* const transfer = static_cast<Transfer*>(user);
  const absl::string_view piece(bytes, size);
  if (!transfer->has_begun) {
    transfer->answer.status = StatusOf(transfer->curl);
    transfer->answer.url = UrlOf(transfer->curl);
    transfer->has_begun = true;
    if (transfer->answer.status == 200 || transfer->answer.status == 206) {
      transfer->status = transfer->begins(transfer->answer);
    }
  }
  if (!transfer->status.ok()) return 0;
  if (transfer->answer.status == 200 || transfer->answer.status == 206) {
    transfer->status = transfer->piece(piece);
    return transfer->status.ok() ? size : 0;
  }
  std::string& body = transfer->answer.body;
  body += piece.substr(0, kErrorBytesMax - std::min(body.size(), kErrorBytesMax));
  return size;
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Transfer*>(user)->cancelled() ? 1 : 0;
}

// Errors of one request: `detail` is libcurl's.
absl::Status ErrorOf(CURLcode code, absl::string_view url, absl::string_view detail) {
  const absl::string_view address = url.substr(0, url.find('?'));
  const std::string what =
      absl::StrCat(PrintableText::From(address).str(), ": ",
                   PrintableText::From(detail.empty() ? curl_easy_strerror(code) : detail).str());
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE: {
      const std::string file = CertificatesFile();
      return absl::FailedPreconditionError(absl::StrCat(
          what, "; the certificates of authorities come from ",
          file.empty() ? "nowhere: install ca-certificates, or name a file in SSL_CERT_FILE"
                       : absl::StrCat(file, ": SSL_CERT_FILE names another file")));
    }
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
      return absl::UnavailableError(
          absl::StrCat(what, "; check the connection, and https_proxy if there is a proxy"));
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_TOO_MANY_REDIRECTS:
      return absl::InvalidArgumentError(what);
    default:
      return absl::UnavailableError(what);
  }
}

}  // namespace

std::string WebAnswer::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

absl::Status WithRetryAfter(absl::Status status, const WebAnswer& answer) {
  uint32_t seconds = 0;
  if (absl::SimpleAtoi(answer.Header("retry-after"), &seconds)) {
    const std::string text = absl::StrCat(seconds);
    status.SetPayload(kRetryAfterS, absl::Cord(absl::string_view(text)));
  }
  return status;
}

absl::Duration BackOff(absl::Duration first, int attempt, const absl::Status& why) {
  uint32_t asked_s = 0;
  if (absl::SimpleAtoi(PayloadText(why, kRetryAfterS), &asked_s)) {
    return std::min(absl::Seconds(asked_s), kWaitMax);
  }
  return std::min(first * (1 << std::min(attempt - 1, 6)), kBackOffMax);
}

absl::Status WaitUnless(const std::function<bool()>& cancelled, absl::Duration time) {
  for (const SteadyTime until = SteadyTime::Now() + time; SteadyTime::Now() < until;) {
    if (cancelled()) return absl::CancelledError("interrupted");
    absl::SleepFor(std::min(kCancelPoll, until - SteadyTime::Now()));
  }
  return absl::OkStatus();
}

std::string NextAttemptNote(const absl::Status& why, absl::Duration wait) {
  if (wait < absl::Seconds(1)) return "";
  return absl::StrCat(why.message(), "; the next attempt is in ", absl::ToInt64Seconds(wait), " s");
}

absl::Status Retry(const RetryOptions& options, absl::FunctionRef<absl::Status()> once) {
  for (int attempt = 1;; ++attempt) {
    absl::Status status = once();
    if (!absl::IsUnavailable(status) || attempt == options.attempts_max) return status;
    const absl::Duration wait = BackOff(options.first, attempt, status);
    if (const std::string note = NextAttemptNote(status, wait); !note.empty()) options.note(note);
    if (auto s = WaitUnless(options.cancelled, wait); !s.ok()) return s;
  }
}

std::optional<ContentRange> ParseContentRange(absl::string_view value) {
  ContentRange range;
  uint64_t last = 0;
  if (!absl::ConsumePrefix(&value, "bytes ")) return std::nullopt;
  const size_t dash = value.find('-'), slash = value.find('/');
  if (dash == value.npos || slash == value.npos || dash > slash ||
      !absl::SimpleAtoi(value.substr(0, dash), &range.begin) ||
      !absl::SimpleAtoi(value.substr(dash + 1, slash - dash - 1), &last) ||
      !absl::SimpleAtoi(value.substr(slash + 1), &range.total) || last < range.begin ||
      last >= range.total) {
    return std::nullopt;
  }
  return range;
}

std::string CertificatesFile() {
  for (const char* variable : {"SSL_CERT_FILE", "CURL_CA_BUNDLE"}) {
    if (std::string file = EnvironmentVariable(variable); !file.empty()) return file;
  }
  for (const char* file : kCertificateFiles) {
    if (access(file, R_OK) == 0) return file;
  }
  return "";
}

WebGetter::WebGetter(std::function<bool()> cancelled)
    : cancelled_(std::move(cancelled)), curl_([] {
        static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
        return ready == CURLE_OK ? curl_easy_init() : nullptr;
      }()) {}

WebGetter::~WebGetter() { curl_easy_cleanup(curl_); }

absl::StatusOr<WebAnswer> WebGetter::Fetch(const WebRequest& request, size_t bytes_max) {
  std::string body;
  auto answer = Stream(
      request, [](const WebAnswer&) { return absl::OkStatus(); },
      [&](absl::string_view piece) {
        if (body.size() + piece.size() > bytes_max) {
          return absl::InvalidArgumentError(absl::StrCat(PrintableText::From(request.url).str(),
                                                         ": the answer has more than ", bytes_max,
                                                         " bytes"));
        }
        body += piece;
        return absl::OkStatus();
      });
  if (answer.ok() && !body.empty()) answer->body = std::move(body);
  return answer;
}

absl::StatusOr<WebAnswer> WebGetter::Stream(const WebRequest& request, Begins begins, Piece piece) {
  if (curl_ == nullptr) return absl::InternalError("libcurl does not start");
  CURL* const curl = curl_;
  curl_easy_reset(curl);  // but for its connections
  char detail[CURL_ERROR_SIZE] = {};
  curl_slist* lines = nullptr;
  const absl::Cleanup free_lines = [&lines] { curl_slist_free_all(lines); };
  for (const auto& [name, value] : request.headers) {
    lines = curl_slist_append(lines, absl::StrCat(name, ": ", value).c_str());
  }
  if (!request.bearer.empty()) {
    lines =
        curl_slist_append(lines, absl::StrCat("Authorization: Bearer ", request.bearer).c_str());
  }
  Transfer transfer = {.curl = curl, .cancelled = cancelled_, .begins = begins, .piece = piece};
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "strata/" STRATA_VERSION);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kRedirectsMax);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https,http");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR,
                   absl::StartsWith(request.url, "https:") ? "https" : "https,http");
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectTimeS);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kSilenceS);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L * 1024);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  const std::string certificates = CertificatesFile();
  if (!certificates.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, certificates.c_str());
  const CURLcode code = curl_easy_perform(curl);
  if (!transfer.status.ok()) return transfer.status;
  if (cancelled_()) return absl::CancelledError("interrupted");
  if (code != CURLE_OK) return ErrorOf(code, request.url, detail);
  WebAnswer& answer = transfer.answer;
  answer.status = StatusOf(curl);
  answer.url = UrlOf(curl);
  // An empty body has no piece.
  if (!transfer.has_begun && (answer.status == 200 || answer.status == 206)) {
    if (auto s = begins(answer); !s.ok()) return s;
  }
  return std::move(answer);
}

}  // namespace strata
