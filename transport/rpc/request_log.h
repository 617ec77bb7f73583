// One line for each event of a request, from HTTP to every stage, all with the request's id: for
// people, or as JSON for programs. Off by default. Lines name ids, counts and times; never a
// prompt, generated text or a message that may quote either.
//
//   RequestLine("generation", id).Add("model", name).Add("tokens", 12);
//   → 2026-01-02T03:04:05.678Z generation id=req-1 model="The model" tokens=12
//   → {"time":"2026-01-02T03:04:05.678Z","event":"generation","id":"req-1","model":"The model",…}
//
// Thread-safe, except StartRequestLog().
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace strata {

// Of an id that nodes send each other: a client's own, which is shorter, and the number of the
// generation.
inline constexpr size_t kRequestIdBytesMax = 96;

enum class LogFormat { kText, kJson };

struct RequestLogOptions {
  bool on = false;
  LogFormat format = LogFormat::kText;
  int fd = 2;
};
// REQUIRES: called once, before there are other threads.
void StartRequestLog(RequestLogOptions options);
bool RequestLogOn();
LogFormat RequestLogFormat();

// `id`, cut to kRequestIdBytesMax, with everything but letters, digits and "-_./:" replaced:
// untrusted ids are written into logs.
std::string PlainRequestId(absl::string_view id);

// A line that its destructor writes, as one write; nothing happens where the log is off.
class RequestLine {
 public:
  RequestLine(absl::string_view event, absl::string_view id);
  ~RequestLine();
  RequestLine(const RequestLine&) = delete;
  RequestLine& operator=(const RequestLine&) = delete;

  RequestLine& Add(absl::string_view key, absl::string_view value);
  template <std::integral Number>
  RequestLine& Add(absl::string_view key, Number value) {
    return AddNumber(key, static_cast<int64_t>(value));
  }

 private:
  RequestLine& AddNumber(absl::string_view key, int64_t value);
  std::string line_;
};

// The same without writing, for tests and for other logs in the same form.
class LineFormat {
 public:
  explicit LineFormat(LogFormat format) : json_(format == LogFormat::kJson) {}
  // "2026-01-02T03:04:05.678Z text", or its JSON.
  void Begin(absl::Time time, absl::string_view event, std::string* line) const;
  void Add(absl::string_view key, absl::string_view value, std::string* line) const;
  void Add(absl::string_view key, int64_t value, std::string* line) const;
  void End(std::string* line) const;  // with its newline

 private:
  bool json_;
};

// Writes all of `line`, or gives up at an error.
void WriteLine(int fd, absl::string_view line);

}  // namespace strata
