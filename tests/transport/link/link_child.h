// A peer in a process of its own, for tests of what happens when it dies.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace strata {

// A link_peer (link_peer.cc); killed when the test ends.
class LinkChild {
 public:
  explicit LinkChild(std::vector<std::string> arguments) {
    int pipe_fds[2];
    EXPECT_EQ(pipe(pipe_fds), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
    for (const int fd : pipe_fds) posix_spawn_file_actions_addclose(&actions, fd);
    arguments.insert(arguments.begin(), LINK_PEER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, LINK_PEER, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fds[1]);
    FILE* out = fdopen(pipe_fds[0], "r");
    char line[512] = "";
    EXPECT_NE(std::fgets(line, sizeof line, out), nullptr);
    std::fclose(out);
    said_ = line;
  }
  ~LinkChild() { Kill(); }
  void Stop() { kill(pid_, SIGSTOP); }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Its first line of output.
  const std::string& said() const { return said_; }

 private:
  pid_t pid_ = 0;
  std::string said_;
};

}  // namespace strata
