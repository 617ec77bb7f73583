// The child of child_process_test.cc: does what its first argument says.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/time/time.h"
#include "node/workers/child_process.h"
#include "node/workers/parent_watch.h"
#include "transport/base/own_program.h"

namespace {

[[noreturn]] void PauseForever() {
  while (true) pause();
}

int OpenDescriptors() {
  DIR* dir = opendir("/dev/fd");
  int n = 0;
  while (dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir)) ++n;
  }
  closedir(dir);
  return n;
}

void Say(const std::string& line) {
  printf("%s\n", line.c_str());
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const std::string arg = argc > 2 ? argv[2] : "";
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);

  if (verb == "exit") return atoi(arg.c_str());
  if (verb == "abort") {
    fprintf(stderr, "%s", arg.c_str());
    abort();
  }
  if (verb == "flood") {
    for (int i = 0; i < 100'000; ++i) fprintf(stderr, "line %d\n", i);
    abort();
  }
  if (verb == "print") {
    printf("%s", arg.c_str());
    return 0;
  }
  if (verb == "env") {
    const char* value = getenv(arg.c_str());
    Say(value == nullptr ? "(none)" : value);
    return 0;
  }
  if (verb == "descriptors") {
    Say(std::to_string(OpenDescriptors()));
    return 0;
  }
  if (verb == "group") {
    Say(getpgrp() == getpid() ? "own" : "shared");
    return 0;
  }
  if (verb == "chat") {
    // Answers a signal; stderr is not buffered.
    signal(SIGTERM, [](int) { _exit(write(2, "bye\n", 4) == 4 ? 0 : 1); });
    fprintf(stderr, "hello\n");
    Say("ready");
    PauseForever();
  }
  if (verb == "deaf") {
    signal(SIGTERM, SIG_IGN);
    Say("ready");
    PauseForever();
  }
  if (verb == "watch" || verb == "watch-and-hang") {
    // Holds the named FIFO open, so that a test sees when this process is gone.
    if (!arg.empty()) open(arg.c_str(), O_WRONLY);
    signal(SIGTERM, SIG_IGN);
    auto watch = strata::ParentWatch::Start({
        .on_gone =
            [hang = verb == "watch-and-hang"] {
              if (!hang) _exit(0);
            },
        .hard_exit_after = absl::Milliseconds(50),
    });
    Say("ready");
    PauseForever();
  }
  if (verb == "parent") {
    auto child = strata::ChildProcess::Start(
        {.program = strata::OwnProgram(),
         .args = {"helper", "watch", arg},
         .on_stdout_line = [](absl::string_view line) { Say("child " + std::string(line)); }});
    PauseForever();
  }
  if (verb == "leave-behind") {
    // A process that keeps stdout and stderr open after this one has ended, until the FIFO ends.
    if (fork() == 0) {
      char c;
      const int fifo = open(arg.c_str(), O_RDONLY);
      while (read(fifo, &c, 1) > 0) {
      }
      _exit(0);
    }
    Say("left");
    return 5;
  }
  fprintf(stderr, "what?\n");
  return 2;
}
