#include "tests/support/namespace_holder.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace strata {

pid_t HoldNetworkNamespace() {
  int ready[2];
  if (pipe(ready) != 0) return 0;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char inside = unshare(CLONE_NEWNET) == 0 ? 1 : 0;
    if (write(ready[1], &inside, 1) != 1 || getppid() != parent) _exit(1);
    close(STDIN_FILENO);
    while (inside != 0) pause();
    _exit(1);
  }
  char inside = 0;
  close(ready[1]);
  if (pid < 0 || read(ready[0], &inside, 1) != 1) inside = 0;
  close(ready[0]);
  if (inside == 0 && pid > 0) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return inside == 0 ? 0 : pid;
}

}  // namespace strata
