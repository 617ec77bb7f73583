// A file on a web server, read by byte ranges: from several connections at the same time, through
// redirects to addresses that expire, and again after a cut, from where it was. Every answer is
// checked to be of the same content.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/http/http_get.h"

namespace strata {

// Attempts without a byte between them, until a read fails: before anything has come (half a
// minute), and later (seven minutes).
inline constexpr int kFirstAttemptsMax = 6, kAttemptsMax = 20;

// The server's answer about a file.
struct FileProbe {
  bool has_ranges = false;
  uint64_t bytes = 0;      // 0: unknown
  std::string etag;        // or the time of its last change; empty: unknown
  std::string direct_url;  // where the request is redirected to; empty: nowhere
  std::string begin;       // its first bytes
  std::string type;        // Content-Type
};

// The error of an answer that is no success.
using ExplainAnswer = std::function<absl::Status(const WebAnswer& answer)>;
// As `explain`, but kUnavailable where the address is refused that `request` was redirected to: it
// expires after some time, and the first one gives another.
absl::Status ErrorOfAnswer(const WebRequest& request, const WebAnswer& answer,
                           const ExplainAnswer& explain);

// Asks for the first `n` bytes, once. Blocks. Errors of WebGetter::Stream() and ErrorOfAnswer(). A
// file that is shorter has no `begin`.
absl::StatusOr<FileProbe> ProbeFile(WebGetter* http, const WebRequest& request, size_t n,
                                    const ExplainAnswer& explain);

// The error of an answer that is no success, where nobody knows more: kUnavailable where it may
// pass (BackOff()), kPermissionDenied, kNotFound, else kFailedPrecondition.
absl::Status ExplainStatus(absl::string_view what, const WebAnswer& answer);

// The beginning of an answer that should be a whole file, which tells a page in its place (of a
// log-in, of an error) from the file. For one thread.
class FileBeginning {
 public:
  // `magic`: what the file begins with; empty: any bytes.
  explicit FileBeginning(std::string magic) : magic_(std::move(magic)) {}

  // Takes bytes of the answer, in order. True: enough has come for Check().
  bool Add(absl::string_view bytes);
  // OK, or kPermissionDenied, which says what came instead, and what to do.
  absl::Status Check(const WebAnswer& answer) const;

 private:
  const std::string magic_;
  std::string begin_;
};

// Whether an answer is not of the content that has this ETag; empty: not known.
bool IsOtherContent(const std::string& etag, const WebAnswer& begun);

// Thread-safe; each thread has a WebGetter of its own.
class RangedFile {
 public:
  struct Options {
    WebRequest request;      // asked again where the address that it redirects to has expired
    uint64_t bytes = 0;      // an answer of another length is of another content
    std::string etag;        // as FileProbe's; empty: not compared
    std::string direct_url;  // as FileProbe's
    std::string magic;       // as FileBeginning's
    ExplainAnswer explain;
    absl::Duration retry_first = absl::Milliseconds(500);
  };
  explicit RangedFile(Options options);

  // Calls `piece` for the bytes [begin, end) in order. Errors of `piece` end it and are returned.
  // kAborted: the content changed; kUnimplemented: the server does not send ranges;
  // kPermissionDenied, also: it sends a page instead; kUnavailable: it may go on later; else errors
  // of WebGetter::Stream() and `explain`.
  absl::Status ReadOnce(WebGetter* http, uint64_t begin, uint64_t end, WebGetter::Piece piece);
  // Again after kUnavailable, as the answer says or after a growing time, from the first byte that
  // has not come. kCancelled: `cancelled` says so.
  absl::Status Read(WebGetter* http, uint64_t begin, uint64_t end,
                    const std::function<bool()>& cancelled, WebGetter::Piece piece);

 private:
  WebRequest NextRequest();
  absl::Status ErrorOf(const WebAnswer& answer);

  const Options options_;
  absl::Mutex mu_;
  std::string direct_url_ ABSL_GUARDED_BY(mu_);
  bool has_begun_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace strata
