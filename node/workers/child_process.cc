#include "node/workers/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "node/base/process_setup.h"
#include "transport/base/descriptor.h"

extern char** environ;

namespace strata {
namespace {

// Never descriptors 0, 1, 2, so that they can be moved there in the child.
struct Pipe {
  Descriptor read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
#ifdef __linux__
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
#else
  if (pipe(fds) != 0) return absl::ErrnoToStatus(errno, "pipe");
#endif
  int high[2];
  for (int i = 0; i < 2; ++i) {
    high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
  }
  const int error = errno;
  close(fds[0]);
  close(fds[1]);
  Pipe pipe{Descriptor(high[0]), Descriptor(high[1])};
  if (high[0] < 0 || high[1] < 0) return absl::ErrnoToStatus(error, "pipe");
  return pipe;
}

// How often the kernel's out-of-memory killer has struck, in any control group.
int64_t OutOfMemoryKills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

// Cuts a stream into lines.
class LineSplitter {
 public:
  using LineFn = absl::AnyInvocable<void(absl::string_view)>;
  explicit LineSplitter(LineFn fn) : fn_(std::move(fn)) {}

  void Add(absl::string_view bytes) {
    while (fn_ && !bytes.empty()) {
      const size_t n =
          std::min({bytes.find('\n'), bytes.size(), kChildLineBytesMax - line_.size()});
      line_.append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      const bool is_complete = !bytes.empty() && bytes.front() == '\n';
      if (is_complete) bytes.remove_prefix(1);
      if (is_complete || line_.size() == kChildLineBytesMax) Emit();
    }
  }
  // Emits the last line, if it has no end.
  void Finish() {
    if (!line_.empty()) Emit();
  }

 private:
  void Emit() {
    fn_(line_);
    line_.clear();
  }

  LineFn fn_;
  std::string line_;
};

// The last kLastWordsBytesMax bytes of a stream. Thread-safe.
class Tail {
 public:
  void Add(absl::string_view bytes) {
    absl::MutexLock lock(mu_);
    if (bytes.size() > kLastWordsBytesMax) bytes.remove_prefix(bytes.size() - kLastWordsBytesMax);
    text_.append(bytes);
    if (text_.size() > 2 * kLastWordsBytesMax) text_.erase(0, text_.size() - kLastWordsBytesMax);
  }
  void Forget() {
    absl::MutexLock lock(mu_);
    text_.clear();
  }
  std::string Take() {
    absl::MutexLock lock(mu_);
    if (text_.size() > kLastWordsBytesMax) text_.erase(0, text_.size() - kLastWordsBytesMax);
    return std::exchange(text_, "");
  }

 private:
  absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

class ChildProcess::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        stdout_(std::move(options_.on_stdout_line)),
        stderr_(std::move(options_.on_stderr_line)) {}

  absl::Status Start() {
    for (Pipe* pipe : {&stdin_pipe_, &stdout_pipe_, &stderr_pipe_, &ended_pipe_}) {
      absl::StatusOr<Pipe> made = MakePipe();
      if (!made.ok()) return made.status();
      *pipe = *std::move(made);
    }
    for (Descriptor* end : {&stdout_pipe_.read, &stderr_pipe_.read}) {
      fcntl(end->fd(), F_SETFL, O_NONBLOCK);
    }
    oom_kills_before_ = OutOfMemoryKills();
    waiter_ = std::thread([this] { Wait(); });
    spawned_.WaitForNotification();
    if (!spawn_status_.ok()) waiter_.join();
    return spawn_status_;
  }

  ~Impl() {
    if (!waiter_.joinable()) return;
    Terminate();
    if (!ended_.WaitForNotificationWithTimeout(options_.stop_grace)) Kill();
    waiter_.join();
  }

  void Terminate() {
    absl::MutexLock lock(mu_);
    stdin_pipe_.write.Close();
    if (!reaped_) kill(pid_, SIGTERM);
  }

  void Kill() {
    absl::MutexLock lock(mu_);
    stdin_pipe_.write.Close();
    if (reaped_) return;
    killed_by_us_ = true;
    kill(pid_, SIGKILL);
  }

  void ForgetWords() { tail_.Forget(); }

  pid_t pid() const { return pid_; }
  absl::Notification& ended() { return ended_; }
  const ChildExit& exit() const { return exit_; }

 private:
  // The waiter thread. It starts the child and outlives it, because Linux sends a child's
  // parent-death signal when the thread that started it ends.
  void Wait() {
    spawn_status_ = Spawn();
    const bool ok = spawn_status_.ok();
    stdin_pipe_.read.Close();
    stdout_pipe_.write.Close();
    stderr_pipe_.write.Close();
    std::thread reader;
    if (ok) reader = std::thread([this] { Read(); });
    spawned_.Notify();
    if (!ok) return;

    siginfo_t info;
    while (waitid(P_PID, pid_, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    int wait_status = 0;
    {
      // From here on the pid may become somebody else's.
      absl::MutexLock lock(mu_);
      while (waitpid(pid_, &wait_status, 0) < 0 && errno == EINTR) {
      }
      reaped_ = true;
      exit_.killed_by_us = killed_by_us_;
      stdin_pipe_.write.Close();
    }
    ended_pipe_.write.Close();
    reader.join();
    stdout_.Finish();
    stderr_.Finish();

    exit_.pid = pid_;
    if (WIFSIGNALED(wait_status)) exit_.signal = WTERMSIG(wait_status);
    if (WIFEXITED(wait_status)) exit_.code = WEXITSTATUS(wait_status);
    exit_.out_of_memory = exit_.signal == SIGKILL && OutOfMemoryKills() > oom_kills_before_;
    exit_.last_words = tail_.Take();
    if (options_.on_exit) std::move(options_.on_exit)(exit_);
    ended_.Notify();
  }

  absl::Status Spawn() {
    std::vector<char*> argv, env;
    for (std::string& arg : options_.args) argv.push_back(arg.data());
    for (std::string& variable : options_.env) env.push_back(variable.data());
    for (char** variable = environ; *variable != nullptr; ++variable) {
      if (!IsSet(*variable)) env.push_back(*variable);
    }
    argv.push_back(nullptr);
    env.push_back(nullptr);

    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    absl::Cleanup destroy = [&] {
      posix_spawn_file_actions_destroy(&files);
      posix_spawnattr_destroy(&attributes);
    };
    posix_spawn_file_actions_adddup2(&files, stdin_pipe_.read.fd(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, stdout_pipe_.write.fd(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, stderr_pipe_.write.fd(), STDERR_FILENO);
    // Every descriptor of ours is close-on-exec; this is for those that libraries opened.
    int flags = POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    int kept = STDERR_FILENO;
    if (options_.socket >= 0) {
      kept = kChildSocket;
      posix_spawn_file_actions_adddup2(&files, options_.socket, kChildSocket);
    }
#if defined(__APPLE__)
    flags |= POSIX_SPAWN_CLOEXEC_DEFAULT;
#elif defined(__GLIBC__)
    posix_spawn_file_actions_addclosefrom_np(&files, kept + 1);
#endif
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    sigdelset(&all, SIGHUP);  // if it is ignored, as under nohup, children ignore it too
    posix_spawnattr_setflags(&attributes, static_cast<short>(flags));
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);

    const int error =
        posix_spawn(&pid_, options_.program.c_str(), &files, &attributes, argv.data(), env.data());
    if (error != 0) {
      return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", options_.program));
    }
    return absl::OkStatus();
  }

  bool IsSet(absl::string_view variable) const {
    const absl::string_view name = variable.substr(0, variable.find('='));
    for (const std::string& other : options_.env) {
      if (absl::string_view(other).substr(0, other.find('=')) == name) return true;
    }
    return false;
  }

  // The reader thread: runs until both streams end, or the child has ended and the rest in the
  // pipes is read (a process that the child started may hold them open).
  void Read() {
    bool open[2] = {true, true};
    while (open[0] || open[1]) {
      pollfd fds[3] = {{open[0] ? stdout_pipe_.read.fd() : -1, POLLIN, 0},
                       {open[1] ? stderr_pipe_.read.fd() : -1, POLLIN, 0},
                       {ended_pipe_.read.fd(), POLLIN, 0}};
      if (poll(fds, 3, -1) < 0 && errno != EINTR) return;
      const bool ended = fds[2].revents != 0;
      for (int i = 0; i < 2; ++i) {
        if (open[i] && (ended || fds[i].revents != 0)) open[i] = ReadSome(i);
      }
      if (ended) return;
    }
  }

  // Reads what is there, at most 1 MiB of it. False at the end of the stream.
  bool ReadSome(int stream) {
    const int fd = (stream == 0 ? stdout_pipe_ : stderr_pipe_).read.fd();
    char buffer[16 * 1024];
    for (int i = 0; i < 64; ++i) {
      const ssize_t n = read(fd, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno == EAGAIN;
      if (n == 0) return false;
      const absl::string_view bytes(buffer, static_cast<size_t>(n));
      if (stream == 1) tail_.Add(bytes);
      (stream == 0 ? stdout_ : stderr_).Add(bytes);
    }
    return true;
  }

  // Constant after Start().
  Options options_;
  Pipe stdin_pipe_, stdout_pipe_, stderr_pipe_;  // stdin_pipe_.write: then guarded by mu_
  Pipe ended_pipe_;                              // closed by the waiter once the child has ended
  pid_t pid_ = 0;
  int64_t oom_kills_before_ = 0;
  absl::Status spawn_status_;
  std::thread waiter_;

  // Reader thread, then waiter thread.
  LineSplitter stdout_, stderr_;

  Tail tail_;

  absl::Notification spawned_, ended_;
  ChildExit exit_;  // waiter thread until ended_

  absl::Mutex mu_;
  bool reaped_ ABSL_GUARDED_BY(mu_) = false;
  bool killed_by_us_ ABSL_GUARDED_BY(mu_) = false;
};

ChildProcess::ChildProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChildProcess::~ChildProcess() = default;

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(Options options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<ChildProcess>(new ChildProcess(std::move(impl)));
}

pid_t ChildProcess::pid() const { return impl_->pid(); }
void ChildProcess::Terminate() { impl_->Terminate(); }
void ChildProcess::Kill() { impl_->Kill(); }
void ChildProcess::ForgetWords() { impl_->ForgetWords(); }
bool ChildProcess::WaitForExit(absl::Duration timeout) {
  return impl_->ended().WaitForNotificationWithTimeout(timeout);
}
const ChildExit& ChildProcess::exit() const { return impl_->exit(); }

std::string SignalName(int signal) {
#ifdef __GLIBC__
  const char* name = sigdescr_np(signal);  // strsignal() is not thread-safe there
#else
  const char* name = strsignal(signal);
#endif
  return name != nullptr ? name : absl::StrCat("signal ", signal);
}

std::string ChildExit::Words() const {
  if (signal == 0) return absl::StrCat("exited with status ", code);
  std::string text = absl::StrCat("killed by signal ", signal, " (", SignalName(signal), ")");
  if (signal == SIGKILL && !killed_by_us) {
    absl::StrAppend(&text,
                    out_of_memory ? ": the machine ran out of memory" : ": perhaps out of memory");
  }
  return text;
}

void PreferOomKill() {
  ForbidCoreFiles();
#ifdef __linux__
  std::ofstream("/proc/self/oom_score_adj") << 800;
#endif
}

}  // namespace strata
