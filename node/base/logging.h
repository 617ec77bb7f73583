// How this process logs: what goes to stderr, in which form.
#pragma once

#include "transport/rpc/request_log.h"

namespace strata {

struct LoggingOptions {
  bool verbose = false;   // what happens, not only what is wrong
  bool requests = false;  // a line for each request; with `verbose`, too
  LogFormat format = LogFormat::kText;
  // Of a worker: its node prints what it says of requests, which it writes to stdout, so that its
  // stderr is only what went wrong.
  bool is_worker = false;
};

// Once, before there are other threads.
void StartLogging(const LoggingOptions& options);

// Whether a line on a child's stderr is a log entry of a warning or worse ("W1125 10:02:55.…").
bool IsWarning(absl::string_view line);

// A line that a child process has printed, with whose it is, in this process's form.
void EchoLine(absl::string_view label, absl::string_view line);

}  // namespace strata
