// One child process, started and watched: a worker of a node, or a node of the demo.
//
// The child's stdin is a pipe that this process holds open and never writes to, so the child sees
// end of file when its parent is gone for any reason (parent_watch.h is the other end). The child
// is in a process group of its own: Ctrl-C at a terminal reaches the parent alone, which stops its
// children in order. Two threads for each child call the callbacks; the child cannot block them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace strata {

// How much of the end of a child's stderr is kept.
inline constexpr size_t kLastWordsBytesMax = 4 * 1024;
// A longer line of output is passed on in pieces of this size.
inline constexpr size_t kChildLineBytesMax = 64 * 1024;

// The descriptor that a child has Options::socket as.
inline constexpr int kChildSocket = 3;

// How a child ended.
struct ChildExit {
  pid_t pid = 0;
  int code = 0;                // exit status when signal is 0
  int signal = 0;              // the one that killed it
  bool killed_by_us = false;   // with Kill(), or because it outlived its grace
  bool out_of_memory = false;  // the kernel's out-of-memory killer struck while it ran
  std::string last_words;      // end of its stderr, at most kLastWordsBytesMax

  // "exited with status 3", "killed by signal 6 (Aborted)",
  // "killed by signal 9 (Killed): perhaps out of memory".
  std::string Words() const;
};

// "Aborted".
std::string SignalName(int signal);

class ChildProcess {
 public:
  struct Options {
    std::string program;                // path of the executable
    std::vector<std::string> args;      // argv[0] included
    std::vector<std::string> env = {};  // "NAME=value", in addition to this process's own
    int socket = -1;                    // becomes its kChildSocket; the caller closes it; -1: none
    // Called on a thread of the child, one call at a time, without the line's end. They must not
    // block for long (the child would block in its writes) and must not destroy the ChildProcess.
    absl::AnyInvocable<void(absl::string_view line)> on_stdout_line = {};
    absl::AnyInvocable<void(absl::string_view line)> on_stderr_line = {};
    // Exactly once, after the last line. Same rules.
    absl::AnyInvocable<void(const ChildExit&) &&> on_exit = {};
    absl::Duration stop_grace = absl::Seconds(3);  // between asking and killing, in the destructor
  };

  // kNotFound, kPermissionDenied, kResourceExhausted …: the system's reason, with the program's
  // name. Blocks until the program runs (exec has succeeded).
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(Options options);

  // Terminate(), then Kill() after the grace, and waits until the child is reaped and on_exit has
  // returned. Does not block when on_exit has been called already.
  ~ChildProcess();

  pid_t pid() const;

  // Any thread, also from callbacks; no effect once the child has ended.
  void Terminate();  // closes its stdin and sends SIGTERM
  void Kill();       // SIGKILL
  // Drops the last words so far: they do not explain a later death.
  void ForgetWords();

  // Waits for at most `timeout` until on_exit was called; true if it was.
  bool WaitForExit(absl::Duration timeout);
  // REQUIRES: WaitForExit() returned true.
  const ChildExit& exit() const;

 private:
  class Impl;
  explicit ChildProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// For a child that may die: makes the kernel's out-of-memory killer choose it before the node, and
// writes no core file of gigabytes when it aborts.
void PreferOomKill();

}  // namespace strata
