// The log of this process on stderr, and its format.
#pragma once

#include "transport/rpc/request_log.h"

namespace strata {

struct LoggingOptions {
  bool verbose = false;   // log events, not only warnings and errors
  bool requests = false;  // a line for each request; with `verbose`, too
  LogFormat format = LogFormat::kText;
  // A worker writes its request log to stdout, which its node prints, so that its stderr has
  // warnings and errors alone.
  bool is_worker = false;
};

// Call once. REQUIRES: there are no other threads yet.
void StartLogging(const LoggingOptions& options);

// True if a line on a child's stderr is a log entry of a warning or worse ("W1125 10:02:55.…").
bool IsWarning(absl::string_view line);

// Prints a line of a child process, with its label, in this process's log format.
void EchoLine(absl::string_view label, absl::string_view line);

}  // namespace strata
