#include "transport/rpc/request_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "transport/base/printable_text.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

RequestLogOptions log_options;  // constant after StartRequestLog()

bool IsPlain(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("-_./:").find(c) != absl::string_view::npos;
}

// Printable and quoted as in JSON, which people can read, too.
void AppendQuoted(absl::string_view value, std::string* line) {
  const PrintableText text = PrintableText::From(value, kShownMessageBytesMax);
  absl::StrAppend(line, "\"", absl::StrReplaceAll(text, {{"\"", "\\\""}, {"\\", "\\\\"}}), "\"");
}

}  // namespace

void StartRequestLog(RequestLogOptions options) { log_options = options; }
bool RequestLogOn() { return log_options.on; }
LogFormat RequestLogFormat() { return log_options.format; }

std::string PlainRequestId(absl::string_view id) {
  std::string plain(id.substr(0, kRequestIdBytesMax));
  std::ranges::replace_if(plain, [](char c) { return !IsPlain(c); }, '_');
  return plain;
}

void LineFormat::Begin(absl::Time time, absl::string_view event, std::string* line) const {
  const std::string at = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
  if (!json_) {
    absl::StrAppend(line, at, " ", event);
    return;
  }
  absl::StrAppend(line, "{\"time\":\"", at, "\",\"event\":");
  AppendQuoted(event, line);
}

void LineFormat::Add(absl::string_view key, absl::string_view value, std::string* line) const {
  if (json_) {
    absl::StrAppend(line, ",\"", key, "\":");
    AppendQuoted(value, line);
    return;
  }
  absl::StrAppend(line, " ", key, "=");
  if (!value.empty() && std::ranges::all_of(value, IsPlain)) {
    line->append(value);
  } else {
    AppendQuoted(value, line);
  }
}

void LineFormat::Add(absl::string_view key, int64_t value, std::string* line) const {
  if (json_) {
    absl::StrAppend(line, ",\"", key, "\":", value);
  } else {
    absl::StrAppend(line, " ", key, "=", value);
  }
}

void LineFormat::End(std::string* line) const { line->append(json_ ? "}\n" : "\n"); }

void WriteLine(int fd, absl::string_view line) {
  while (!line.empty()) {
    const ssize_t n = write(fd, line.data(), line.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    line.remove_prefix(static_cast<size_t>(n));
  }
}

RequestLine::RequestLine(absl::string_view event, absl::string_view id) {
  if (!log_options.on) return;
  LineFormat(log_options.format).Begin(WallNow(), event, &line_);
  Add("id", PlainRequestId(id));
}

RequestLine::~RequestLine() {
  if (line_.empty()) return;
  LineFormat(log_options.format).End(&line_);
  WriteLine(log_options.fd, line_);
}

RequestLine& RequestLine::Add(absl::string_view key, absl::string_view value) {
  if (!line_.empty()) LineFormat(log_options.format).Add(key, value, &line_);
  return *this;
}

RequestLine& RequestLine::AddNumber(absl::string_view key, int64_t value) {
  if (!line_.empty()) LineFormat(log_options.format).Add(key, value, &line_);
  return *this;
}

}  // namespace strata
