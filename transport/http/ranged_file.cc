#include "transport/http/ranged_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

std::string EtagOf(const WebAnswer& answer) {
  const std::string etag = answer.Header("etag");
  return etag.empty() ? answer.Header("last-modified") : etag;
}

// "https://host:port".
absl::string_view OriginOf(absl::string_view url) {
  return url.substr(0, url.find('/', url.find("://") + 3));
}

absl::Status Changed() { return absl::AbortedError("the file changed at the server"); }

// Of a page's beginning, for people.
constexpr size_t kPageBytesMax = 80;

bool IsSuccess(const WebAnswer& answer) { return answer.status == 200 || answer.status == 206; }

}  // namespace

bool FileBeginning::Add(absl::string_view bytes) {
  begin_ += bytes.substr(0, kPageBytesMax - std::min(begin_.size(), kPageBytesMax));
  return begin_.size() >= magic_.size();
}

absl::Status FileBeginning::Check(const WebAnswer& answer) const {
  if (absl::StartsWith(begin_, magic_)) return absl::OkStatus();
  const std::string type = answer.Header("content-type");
  return absl::PermissionDeniedError(absl::StrCat(
      PrintableText::From(absl::string_view(answer.url).substr(0, answer.url.find('?'))).str(),
      ": the server sends a page instead of the file (",
      type.empty() ? "" : absl::StrCat(PrintableText::From(type).str(), ", "),
      begin_.empty() ? "empty"
                     : absl::StrCat("it begins with: ", PrintableText::From(begin_).str()),
      "); if the network or a proxy wants a log-in, log in and try again, else look at the address "
      "in a browser"));
}

bool IsOtherContent(const std::string& etag, const WebAnswer& begun) {
  return !etag.empty() && EtagOf(begun) != etag;
}

absl::Status ExplainStatus(absl::string_view what, const WebAnswer& answer) {
  const std::string text = absl::StrCat(what, ": the server answers ", answer.status,
                                        answer.status == 429 ? " (too many requests)" : "");
  if (answer.status == 429 || answer.status == 408 || answer.status >= 500) {
    return WithRetryAfter(absl::UnavailableError(text + "; try again later"), answer);
  }
  if (answer.status == 401 || answer.status == 403) return absl::PermissionDeniedError(text);
  if (answer.status == 404 || answer.status == 410) return absl::NotFoundError(text);
  return absl::FailedPreconditionError(text);
}

absl::Status ErrorOfAnswer(const WebRequest& request, const WebAnswer& answer,
                           const ExplainAnswer& explain) {
  const bool is_refused = answer.status >= 400 && answer.status < 500 && answer.status != 429;
  if (answer.url == request.url || !is_refused) return explain(answer);
  return absl::UnavailableError(
      absl::StrCat("the address that it is redirected to is refused (", answer.status, ")"));
}

absl::StatusOr<FileProbe> ProbeFile(WebGetter* http, const WebRequest& request, size_t n,
                                    const ExplainAnswer& explain) {
  WebRequest ranged = request;
  ranged.headers["Range"] = absl::StrCat("bytes=0-", n - 1);
  FileProbe probe;
  const absl::Status enough = absl::OutOfRangeError("enough");
  const auto answer = http->Stream(
      ranged,
      [&](const WebAnswer& begun) {
        probe.etag = EtagOf(begun);
        probe.type = begun.Header("content-type");
        if (begun.url != request.url) probe.direct_url = begun.url;
        if (begun.status == 206) {
          const auto range = ParseContentRange(begun.Header("content-range"));
          if (!range.has_value() || range->begin != 0) {
            return absl::FailedPreconditionError("the server answers with another range");
          }
          probe.has_ranges = true;
          probe.bytes = range->total;
        } else {
          (void)absl::SimpleAtoi(begun.Header("content-length"), &probe.bytes);
        }
        return absl::OkStatus();
      },
      [&](absl::string_view bytes) {
        probe.begin += bytes.substr(0, n - probe.begin.size());
        return probe.begin.size() == n && !probe.has_ranges ? enough : absl::OkStatus();
      });
  if (!answer.ok() && answer.status() != enough) return answer.status();
  if (answer.ok() && !IsSuccess(*answer) && answer->status != 416) {
    return ErrorOfAnswer(request, *answer, explain);
  }
  return probe;
}

RangedFile::RangedFile(Options options)
    : options_(std::move(options)), direct_url_(options_.direct_url) {}

WebRequest RangedFile::NextRequest() {
  absl::MutexLock lock(mu_);
  WebRequest request = options_.request;
  if (direct_url_.empty()) return request;
  // The token is for its own host alone.
  if (OriginOf(direct_url_) != OriginOf(request.url)) request.bearer.clear();
  request.url = direct_url_;
  return request;
}

absl::Status RangedFile::ErrorOf(const WebAnswer& answer) {
  if (answer.url != options_.request.url) {
    absl::MutexLock lock(mu_);
    direct_url_.clear();
  }
  return ErrorOfAnswer(options_.request, answer, options_.explain);
}

absl::Status RangedFile::ReadOnce(WebGetter* http, uint64_t begin, uint64_t end,
                                  WebGetter::Piece piece) {
  WebRequest request = NextRequest();
  const bool is_direct = request.url != options_.request.url;
  request.headers["Range"] = absl::StrCat("bytes=", begin, "-", end - 1);
  if (!options_.etag.empty() && !absl::StartsWith(options_.etag, "W/")) {
    request.headers["If-Range"] = options_.etag;
  }
  uint64_t left = end - begin;
  // Of a server that sends a whole file, or a page.
  std::optional<WebAnswer> whole;
  FileBeginning beginning(options_.magic);
  const auto no_range = [&]() -> absl::Status {
    if (auto s = beginning.Check(*whole); !s.ok()) return s;
    if (IsOtherContent(options_.etag, *whole)) return Changed();
    return absl::UnimplementedError("the server sends the whole file for a part of it");
  };
  const auto answer = http->Stream(
      request,
      [&](const WebAnswer& begun) {
        if (begun.status == 200) {
          whole = begun;
          return absl::OkStatus();
        }
        if (IsOtherContent(options_.etag, begun)) return Changed();
        const auto range = ParseContentRange(begun.Header("content-range"));
        if (range.has_value() && range->total != options_.bytes) return Changed();
        if (!range.has_value() || range->begin != begin) {
          return absl::UnavailableError("the server answers with another range");
        }
        absl::MutexLock lock(mu_);
        has_begun_ = true;
        if (!is_direct && begun.url != options_.request.url) direct_url_ = begun.url;
        return absl::OkStatus();
      },
      [&](absl::string_view bytes) {
        if (whole.has_value()) return beginning.Add(bytes) ? no_range() : absl::OkStatus();
        bytes = bytes.substr(0, left);
        left -= bytes.size();
        return bytes.empty() ? absl::OkStatus() : piece(bytes);
      });
  if (!answer.ok()) return answer.status();
  if (whole.has_value()) return no_range();  // it was very short
  if (answer->status == 416) {
    const bool is_as_long =
        absl::EndsWith(answer->Header("content-range"), absl::StrCat("*/", options_.bytes));
    return is_as_long
               ? absl::UnimplementedError("the server refuses a part that the file has (416)")
               : Changed();
  }
  if (!IsSuccess(*answer)) return ErrorOf(*answer);
  return left > 0 ? absl::UnavailableError("the server sent less than it was asked for")
                  : absl::OkStatus();
}

absl::Status RangedFile::Read(WebGetter* http, uint64_t begin, uint64_t end,
                              const std::function<bool()>& cancelled, WebGetter::Piece piece) {
  for (int attempt = 1;; ++attempt) {
    const uint64_t before = begin;
    absl::Status status = ReadOnce(http, begin, end, [&](absl::string_view bytes) {
      begin += bytes.size();
      return piece(bytes);
    });
    if (begin > before) attempt = 1;
    int attempts_max = kFirstAttemptsMax;
    {
      absl::MutexLock lock(mu_);
      if (has_begun_) attempts_max = kAttemptsMax;
    }
    if (!absl::IsUnavailable(status) || attempt >= attempts_max) return status;
    if (begin == end) return absl::OkStatus();  // what was cut off is behind the last byte
    status = WaitUnless(cancelled, BackOff(options_.retry_first, attempt, status));
    if (!status.ok()) return status;
  }
}

}  // namespace strata
