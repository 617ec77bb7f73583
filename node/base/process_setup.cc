#include "node/base/process_setup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "transport/base/descriptor.h"
#include "transport/base/own_program.h"
#include "transport/base/thread_name.h"

namespace strata {
namespace {

// Many systems begin with 1024, which a thousand clients would use up.
constexpr rlim_t kDescriptorsMax = 8192;

void OpenClosedStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
#ifdef __linux__
    // System calls, not libc: this runs before the sanitizers have started.
    const bool is_closed = syscall(SYS_fcntl, fd, F_GETFD) < 0;
    // The lowest number that is free is this one.
    if (is_closed) syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
#else
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
#endif
  }
}

#ifdef __linux__
// Libraries open descriptors before main(), and this is before theirs.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeLibraries)() = OpenClosedStreams;
#endif

}  // namespace

void PrepareProcess() {
#ifndef __linux__
  OpenClosedStreams();
#endif
  if (!BundleFolder().empty()) NameThread("strata");  // for `ps`; else it is the loader's name
  if (getenv(kCoreVariable) == nullptr) ForbidCoreFiles();
  umask(S_IRWXG | S_IRWXO);
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kDescriptorsMax));
    setrlimit(RLIMIT_NOFILE, &limit);  // on failure it stays as it was
  }
}

absl::Status CheckDescriptors(int wanted, absl::string_view who) {
  std::vector<Descriptor> free;
  for (int i = 0; i < wanted; ++i) {
    free.emplace_back(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    if (free.back().valid()) continue;
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    return absl::ResourceExhaustedError(absl::StrCat(
        who, " needs ", wanted, " free file descriptors and has ", i,
        ", for the system's limit is ", limit.rlim_max, ": raise it, say with 'ulimit -n 1024'"));
  }
  return absl::OkStatus();
}

void ForbidCoreFiles() {
  // If core dumps are piped to a program, a limit of 0 does not stop the kernel; 1 does.
  // PR_SET_DUMPABLE would also give /proc/self to root and keep out debuggers and UCX's shared
  // memory.
  const int pattern = std::ifstream("/proc/sys/kernel/core_pattern").peek();
  const rlim_t bytes = pattern == '|' || pattern == '@' ? 1 : 0;
  const rlimit limit = {bytes, bytes};
  setrlimit(RLIMIT_CORE, &limit);
}

std::vector<int> EndSignals() {
  std::vector<int> signals = {SIGINT, SIGTERM};
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
    signals.push_back(SIGHUP);
  }
  return signals;
}

}  // namespace strata
