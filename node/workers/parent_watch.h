// Ends a child process when its parent is gone for any reason: the parent holds the other end of
// this process's stdin open (child_process.h), so end of file there means nobody is left to serve.
#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace strata {

class ParentWatch {
 public:
  struct Options {
    // Called once, on the watch's thread, when stdin ends: starts the orderly stop. Must not block.
    absl::AnyInvocable<void() &&> on_gone;
    // The whole process leaves with status 1 when the watch is not destroyed this long after
    // on_gone: an orderly stop that hangs must not leave a process that holds gigabytes.
    absl::Duration hard_exit_after = absl::Seconds(3);
    int fd = 0;  // stdin
  };

  // On Linux this also asks for SIGCONT when the parent dies: a stopped process must run to see it.
  static std::unique_ptr<ParentWatch> Start(Options options);

  // Stops watching.
  virtual ~ParentWatch() = default;
};

}  // namespace strata
