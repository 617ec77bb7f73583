#include "node/base/logging.h"

#include <unistd.h>

#include <string>

#include "absl/algorithm/container.h"
#include "absl/base/log_severity.h"
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "transport/base/printable_text.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

// {"time":…,"event":"log","level":"WARNING","message":…,"at":"file.cc:12"}
class JsonSink final : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override {
    const LineFormat format(LogFormat::kJson);
    std::string line;
    format.Begin(entry.timestamp(), "log", &line);
    format.Add("level", absl::LogSeverityName(entry.log_severity()), &line);
    format.Add("message", PrintableText::From(entry.text_message(), kShownMessageBytesMax), &line);
    format.Add("at", absl::StrCat(entry.source_basename(), ":", entry.source_line()), &line);
    format.End(&line);
    WriteLine(STDERR_FILENO, line);
  }
};

// The library's format, but on one line, without control characters of the message.
class PlainSink final : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override {
    if (!entry.stacktrace().empty()) {  // of a fatal one, which has been written before
      WriteLine(STDERR_FILENO, entry.stacktrace());
      return;
    }
    absl::string_view prefix = entry.text_message_with_prefix();
    prefix.remove_suffix(entry.text_message().size());
    WriteLine(STDERR_FILENO,
              absl::StrCat(prefix, PrintableText::From(entry.text_message(), kShownMessageBytesMax),
                           "\n"));
  }
};

template <typename Sink>
void LogTo() {
  static Sink* const sink = new Sink;  // as long as the process
  absl::AddLogSink(sink);
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfinity);
}

}  // namespace

void StartLogging(const LoggingOptions& options) {
  StartRequestLog({.on = options.verbose || options.requests,
                   .format = options.format,
                   .fd = options.is_worker ? STDOUT_FILENO : STDERR_FILENO});
  const absl::LogSeverityAtLeast from =
      options.verbose ? absl::LogSeverityAtLeast::kInfo : absl::LogSeverityAtLeast::kWarning;
  absl::SetMinLogLevel(from);
  absl::InitializeLog();
  if (options.format == LogFormat::kJson && !options.is_worker) {
    LogTo<JsonSink>();
  } else {
    LogTo<PlainSink>();
  }
}

bool IsWarning(absl::string_view line) {
  return line.size() > 5 && absl::StrContains("WEF", line.substr(0, 1)) &&
         absl::c_all_of(line.substr(1, 4), absl::ascii_isdigit) && line[5] == ' ';
}

void EchoLine(absl::string_view label, absl::string_view line) {
  if (RequestLogFormat() != LogFormat::kJson) {
    WriteLine(STDERR_FILENO, absl::StrCat("[", label, "] ",
                                          PrintableText::From(line, kShownMessageBytesMax), "\n"));
    return;
  }
  const LineFormat format(LogFormat::kJson);
  std::string json;
  format.Begin(WallNow(), "output", &json);
  format.Add("of", label, &json);
  format.Add("message", PrintableText::From(line, kShownMessageBytesMax), &json);
  format.End(&json);
  WriteLine(STDERR_FILENO, json);
}

}  // namespace strata
