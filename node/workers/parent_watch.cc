#include "node/workers/parent_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <cerrno>
#include <thread>
#include <utility>

#include "absl/log/check.h"

namespace strata {
namespace {

class ThreadedParentWatch : public ParentWatch {
 public:
  explicit ThreadedParentWatch(Options options) : options_(std::move(options)) {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGCONT);
#endif
    CHECK_EQ(pipe(stop_), 0) << "no descriptors left";
    fcntl(stop_[0], F_SETFD, FD_CLOEXEC);
    fcntl(stop_[1], F_SETFD, FD_CLOEXEC);
    thread_ = std::thread([this] { Watch(); });
  }

  ~ThreadedParentWatch() override {
    close(stop_[1]);
    thread_.join();
    close(stop_[0]);
  }

 private:
  void Watch() {
    if (!WaitForEnd()) return;
    std::move(options_.on_gone)();
    pollfd stop = {stop_[0], POLLIN, 0};
    int n;
    do {
      n = poll(&stop, 1, static_cast<int>(absl::ToInt64Milliseconds(options_.hard_exit_after)));
    } while (n < 0 && errno == EINTR);
    if (n == 0) _exit(1);
  }

  // True when the stream ended, false when the watch was destroyed.
  bool WaitForEnd() {
    while (true) {
      pollfd fds[2] = {{options_.fd, POLLIN, 0}, {stop_[0], POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) {
        if (errno == EINTR) continue;
        return false;
      }
      if (fds[1].revents != 0) return false;
      if (fds[0].revents == 0) continue;
      char buffer[256];
      const ssize_t n = read(options_.fd, buffer, sizeof buffer);
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return true;
    }
  }

  Options options_;
  int stop_[2];
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ParentWatch> ParentWatch::Start(Options options) {
  return std::make_unique<ThreadedParentWatch>(std::move(options));
}

}  // namespace strata
