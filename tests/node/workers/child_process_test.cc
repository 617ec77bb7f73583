#include "node/workers/child_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// A child_helper and its output.
class Child {
 public:
  explicit Child(std::vector<std::string> args, absl::Duration grace = kPatience) {
    ChildProcess::Options options;
    options.program = CHILD_HELPER;
    options.args = {"helper"};
    for (std::string& arg : args) options.args.push_back(std::move(arg));
    options.env = {"CHILD_TEST=set"};
    options.on_stdout_line = [this](absl::string_view line) {
      absl::MutexLock lock(mu_);
      out_.emplace_back(line);
    };
    options.on_stderr_line = [this](absl::string_view line) {
      absl::MutexLock lock(mu_);
      err_.emplace_back(line);
    };
    options.on_exit = [this](const ChildExit&) {
      absl::MutexLock lock(mu_);
      ++exits_;
    };
    options.stop_grace = grace;
    auto started = ChildProcess::Start(std::move(options));
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) process_ = *std::move(started);
  }

  ChildProcess* operator->() { return process_.get(); }
  void Destroy() { process_.reset(); }

  const ChildExit& WaitForExit() {
    EXPECT_TRUE(process_->WaitForExit(kPatience));
    return process_->exit();
  }
  void WaitForLine() { WaitFor(&out_); }
  void WaitForErrorLine() { WaitFor(&err_); }
  std::vector<std::string> out() {
    absl::MutexLock lock(mu_);
    return out_;
  }
  std::vector<std::string> err() {
    absl::MutexLock lock(mu_);
    return err_;
  }
  int exits() {
    absl::MutexLock lock(mu_);
    return exits_;
  }

 private:
  void WaitFor(std::vector<std::string>* lines) {
    absl::MutexLock lock(mu_);
    EXPECT_TRUE(mu_.AwaitWithTimeout(
        absl::Condition(
            +[](std::vector<std::string>* some) { return !some->empty(); }, lines),
        kPatience));
  }

  absl::Mutex mu_;
  std::vector<std::string> out_, err_;
  int exits_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

// A FIFO whose other end a child process holds open.
class Fifo {
 public:
  Fifo() : path_(testing::MakeTestFolder() + "/fifo") { EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0); }
  ~Fifo() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

  // Waits until every process that had it open for writing has ended.
  void WaitForEnd() {
    char c;
    while (read(fd_, &c, 1) > 0) {
    }
    close(fd_);
  }
  void Open(int mode) { fd_ = open(path_.c_str(), mode); }
  void Close() { close(fd_); }

 private:
  std::string path_;
  int fd_ = -1;
};

bool HasChildren() {
  siginfo_t info;
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

int OpenDescriptors() {
  DIR* dir = opendir("/dev/fd");
  int n = 0;
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

TEST(ChildProcess, ReportsTheExitStatus) {
  Child child({"exit", "3"});
  EXPECT_EQ(child.WaitForExit().Words(), "exited with status 3");
  EXPECT_EQ(child.WaitForExit().pid, child->pid());
  EXPECT_EQ(child.exits(), 1);
}

TEST(ChildProcess, ReportsTheSignalAndTheLastWords) {
  Child child({"abort", "GGML_ASSERT(n_head > 0) failed\n"});
  const ChildExit& exit = child.WaitForExit();
  EXPECT_EQ(exit.signal, SIGABRT);
  EXPECT_EQ(exit.Words(), "killed by signal 6 (Aborted)");
  EXPECT_EQ(exit.last_words, "GGML_ASSERT(n_head > 0) failed\n");
  EXPECT_THAT(child.err(), ElementsAre("GGML_ASSERT(n_head > 0) failed"));
}

TEST(ChildProcess, LastWordsAreBounded) {
  Child child({"flood"});
  const ChildExit& exit = child.WaitForExit();
  EXPECT_EQ(exit.last_words.size(), kLastWordsBytesMax);
  EXPECT_THAT(exit.last_words, EndsWith("line 99998\nline 99999\n"));
  EXPECT_EQ(child.err().size(), 100'000u);
}

TEST(ChildProcess, ForgottenWordsAreNotTheLast) {
  Child child({"chat"});
  child.WaitForErrorLine();
  child.WaitForLine();
  child->ForgetWords();
  child->Terminate();
  EXPECT_EQ(child.WaitForExit().last_words, "bye\n");
}

TEST(ChildProcess, AKillByOthersMayBeOutOfMemory) {
  Child child({"deaf"});
  child.WaitForLine();
  kill(child->pid(), SIGKILL);
  EXPECT_THAT(child.WaitForExit().Words(), HasSubstr("killed by signal 9 (Killed): "));
  EXPECT_THAT(child.WaitForExit().Words(), HasSubstr("out of memory"));
}

TEST(ChildProcess, AKillByUsIsNotOutOfMemory) {
  Child child({"deaf"});
  child.WaitForLine();
  child->Kill();
  EXPECT_EQ(child.WaitForExit().Words(), "killed by signal 9 (Killed)");
  EXPECT_TRUE(child.WaitForExit().killed_by_us);
}

TEST(ChildProcess, GivesLinesAlsoTheLastWithoutAnEnd) {
  Child child({"print", "one\n\nthree"});
  child.WaitForExit();
  EXPECT_THAT(child.out(), ElementsAre("one", "", "three"));
}

TEST(ChildProcess, AnEndlessLineComesInPieces) {
  Child child({"print", std::string(kChildLineBytesMax + 1, 'x')});
  child.WaitForExit();
  ASSERT_EQ(child.out().size(), 2u);
  EXPECT_EQ(child.out()[0].size(), kChildLineBytesMax);
  EXPECT_EQ(child.out()[1], "x");
}

TEST(ChildProcess, TheChildHasNoDescriptorsOfOurs) {
  const int inheritable = open("/dev/null", O_RDONLY);
  Child other({"deaf"}, absl::ZeroDuration());
  Child child({"descriptors"});
  child.WaitForExit();
  EXPECT_THAT(child.out(), ElementsAre("3"));
  close(inheritable);
}

TEST(ChildProcess, AddsToTheEnvironment) {
  Child child({"env", "CHILD_TEST"});
  child.WaitForExit();
  EXPECT_THAT(child.out(), ElementsAre("set"));
  Child other({"env", "HOME"});
  other.WaitForExit();
  EXPECT_THAT(other.out(), ElementsAre(getenv("HOME") == nullptr ? "(none)" : getenv("HOME")));
}

TEST(ChildProcess, ATerminalsInterruptDoesNotReachTheChild) {
  Child child({"group"});
  child.WaitForExit();
  EXPECT_THAT(child.out(), ElementsAre("own"));
}

TEST(ChildProcess, AMissingProgramIsNotFound) {
  auto child = ChildProcess::Start({.program = "/no/such/program", .args = {"x"}});
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(child.status().message(), HasSubstr("/no/such/program"));
  EXPECT_FALSE(HasChildren());
}

TEST(ChildProcess, DestroyingStopsAChildThatListens) {
  Child child({"watch"});
  child.WaitForLine();
  child.Destroy();
  EXPECT_EQ(child.exits(), 1);
  EXPECT_FALSE(HasChildren());
}

TEST(ChildProcess, DestroyingKillsAChildThatDoesNotListen) {
  Child child({"deaf"}, absl::Milliseconds(10));
  child.WaitForLine();
  child.Destroy();
  EXPECT_EQ(child.exits(), 1);
  EXPECT_FALSE(HasChildren());
}

TEST(ChildProcess, DestroyingKillsAStoppedChild) {
  Child child({"watch"}, absl::Milliseconds(10));
  child.WaitForLine();
  kill(child->pid(), SIGSTOP);
  child.Destroy();
  EXPECT_EQ(child.exits(), 1);
  EXPECT_FALSE(HasChildren());
}

TEST(ChildProcess, ExitIsReportedWhenSomeoneKeepsThePipesOpen) {
  Fifo fifo;
  Child child({"leave-behind", fifo.path()});
  EXPECT_EQ(child.WaitForExit().code, 5);
  EXPECT_THAT(child.out(), ElementsAre("left"));
  fifo.Open(O_WRONLY);
  fifo.Close();
}

TEST(ChildProcess, GrandchildrenEndWhenTheChildIsKilled) {
  Fifo fifo;
  Child child({"parent", fifo.path()});
  fifo.Open(O_RDONLY);  // waits until the grandchild has it open
  child.WaitForLine();
  child->Kill();
  fifo.WaitForEnd();
  EXPECT_THAT(child.out(), ElementsAre("child ready"));
}

TEST(ParentWatch, LeavesWhenTheOrderlyStopHangs) {
  Child child({"watch-and-hang"});
  child.WaitForLine();
  child->Terminate();
  EXPECT_EQ(child.WaitForExit().Words(), "exited with status 1");
}

TEST(ChildProcess, AHundredChildrenLeaveNothingBehind) {
  Child({"exit", "0"}).WaitForExit();  // whatever the process opens once
  const int before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) {
    Child child({"exit", std::to_string(i)});
    if (i % 2 == 0) {
      EXPECT_EQ(child.WaitForExit().code, i);
    }
  }
  EXPECT_FALSE(HasChildren());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(ChildProcess, ManyThreadsMayStartChildren) {
  if (testing::kHasAddressSanitizer) {
    GTEST_SKIP() << "ASan opens files of its own in other threads, which children inherit";
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 10; ++i) {
        Child child({"descriptors"});
        child.WaitForExit();
        EXPECT_THAT(child.out(), ElementsAre("3"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(HasChildren());
}

#ifdef __linux__
TEST(ChildProcess, AHangupThatIsIgnoredHereIsIgnoredThere) {
  for (const auto& [disposition, ignored] : {std::pair(SIG_DFL, "0"), std::pair(SIG_IGN, "1")}) {
    signal(SIGHUP, disposition);
    signal(SIGTERM, disposition);
    std::string output;
    auto child = ChildProcess::Start(
        {.program = "/bin/sh",
         .args = {"sh", "-c", "grep SigIgn: /proc/self/status"},
         .on_stdout_line = [&](absl::string_view line) { output = std::string(line); }});
    signal(SIGHUP, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_TRUE((*child)->WaitForExit(kPatience));
    EXPECT_THAT(output, EndsWith(std::string("000000") + ignored)) << output;  // not SIGTERM
  }
}
#endif

}  // namespace
}  // namespace strata
