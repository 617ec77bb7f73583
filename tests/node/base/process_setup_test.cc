// The program as shells, terminals and service managers start it.
#include "node/base/process_setup.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/workers/child_process.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::MakeTestFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(120);
const std::string kNode =
    "node --ephemeral --open --no-http --no-mdns --no-measure --listen 127.0.0.1:0";

// A shell that runs `script`, in which $S is the program.
class Shell {
 public:
  explicit Shell(const std::string& script) {
    auto started = ChildProcess::Start(
        {.program = "/bin/sh",
         .args = {"sh", "-c", script},
         .env = {absl::StrCat("S=", STRATA_PROGRAM)},
         .on_stdout_line = [this](absl::string_view line) { Add(&out_, line); },
         .on_stderr_line = [this](absl::string_view line) { Add(&err_, line); }});
    EXPECT_TRUE(started.ok()) << started.status();
    process_ = *std::move(started);
  }
  ~Shell() { process_->Terminate(); }

  const ChildExit& End() {
    EXPECT_TRUE(process_->WaitForExit(kPatience));
    return process_->exit();
  }
  bool EndsWithin(absl::Duration time) { return process_->WaitForExit(time); }
  // Its first line on stdout; empty: it ended without one.
  std::string FirstLine() {
    absl::MutexLock lock(mu_);
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !out_.empty(); };
    mu_.AwaitWithTimeout(absl::Condition(&there), kPatience);
    return out_.substr(0, out_.find('\n'));
  }
  std::string out() {
    absl::MutexLock lock(mu_);
    return out_;
  }
  std::string err() {
    absl::MutexLock lock(mu_);
    return err_;
  }
  // The line of its file in /proc that begins with `key`.
  std::string Proc(const std::string& file, const std::string& key) const {
    std::ifstream in(absl::StrCat("/proc/", process_->pid(), "/", file));
    for (std::string line; std::getline(in, line);) {
      if (absl::StartsWith(line, key)) return line;
    }
    return "";
  }
  pid_t pid() const { return process_->pid(); }
  void Signal(int signum) const { kill(process_->pid(), signum); }

 private:
  void Add(std::string* to, absl::string_view line) {
    absl::MutexLock lock(mu_);
    absl::StrAppend(to, line, "\n");
  }
  absl::Mutex mu_;
  std::string out_ ABSL_GUARDED_BY(mu_), err_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ChildProcess> process_;
};

TEST(ProcessSetup, HangupEndsAProcessUnlessItIsIgnored) {
  EXPECT_THAT(EndSignals(), ::testing::ElementsAre(SIGINT, SIGTERM, SIGHUP));
  signal(SIGHUP, SIG_IGN);
  EXPECT_THAT(EndSignals(), ::testing::ElementsAre(SIGINT, SIGTERM));
  signal(SIGHUP, SIG_DFL);
}

TEST(ProcessSetup, ANodeWhoseTerminalClosesEndsInOrder) {
  Shell node("exec \"$S\" " + kNode);
  ASSERT_THAT(node.FirstLine(), HasSubstr("\"node\"")) << node.err();
  node.Signal(SIGHUP);
  EXPECT_EQ(node.End().signal, 0);
  EXPECT_EQ(node.End().code, 0);
}

// Users of other programs ask for it: llamafile #362, mmsegmentation #1998.
TEST(ProcessSetup, ANodeUnderNohupOutlivesItsTerminal) {
  Shell node("trap '' HUP; exec \"$S\" " + kNode);
  ASSERT_THAT(node.FirstLine(), HasSubstr("\"node\"")) << node.err();
  node.Signal(SIGHUP);
  EXPECT_FALSE(node.EndsWithin(absl::Milliseconds(300)));
  node.Signal(SIGTERM);
  EXPECT_EQ(node.End().Words(), "exited with status 0");
}

#ifdef __linux__
constexpr uint64_t Bit(int signum) { return uint64_t{1} << (signum - 1); }

TEST(ProcessSetup, ANodeUnderNohupIgnoresHangups) {
  Shell node("trap '' HUP; exec \"$S\" " + kNode);
  ASSERT_THAT(node.FirstLine(), HasSubstr("\"node\"")) << node.err();
  const std::vector<std::string> words = absl::StrSplit(node.Proc("status", "SigIgn:"), '\t');
  uint64_t ignored = 0;
  ASSERT_TRUE(words.size() == 2 && absl::SimpleHexAtoi(words[1], &ignored));
  EXPECT_NE(ignored & Bit(SIGHUP), 0u);
  EXPECT_EQ(ignored & Bit(SIGTERM), 0u);
}

TEST(ProcessSetup, WritesNoCoreFileUnlessTheVariableIsSet) {
  rlimit limit = {};
  getrlimit(RLIMIT_CORE, &limit);
  if (limit.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "no core files here";
  constexpr char kLimit[] = "Max core file size";
  for (const char* more : {"", "STRATA_CORE=1 "}) {
    Shell node(absl::StrCat("ulimit -c unlimited; ", more, "exec \"$S\" ", kNode));
    ASSERT_THAT(node.FirstLine(), HasSubstr("\"node\"")) << node.err();
    const std::vector<std::string> words =
        absl::StrSplit(node.Proc("limits", kLimit).substr(sizeof(kLimit)), ' ', absl::SkipEmpty());
    ASSERT_GE(words.size(), 2u);
    if (*more != '\0') {
      // ASan sets a limit of its own.
      if (!testing::kHasAddressSanitizer) {
        EXPECT_EQ(words[0], "unlimited");
      }
      continue;
    }
    // Soft and hard; 1 if core dumps are piped to a program.
    EXPECT_THAT(words[0], AnyOf("0", "1"));
    EXPECT_EQ(words[1], words[0]);
  }
}
#endif

TEST(ProcessSetup, ClosedStreamsAreNoSockets) {
  Shell node("exec \"$S\" " + kNode + " <&- 2>&-");
  ASSERT_THAT(node.FirstLine(), HasSubstr("\"node\""));
#ifdef __linux__
  for (const char* fd : {"0", "2"}) {
    std::error_code error;
    const auto file =
        std::filesystem::read_symlink(absl::StrCat("/proc/", node.pid(), "/fd/", fd), error);
    EXPECT_EQ(file, "/dev/null") << fd << error.message();
  }
#endif
  node.Signal(SIGTERM);
  EXPECT_EQ(node.End().code, 0);
}

TEST(ProcessSetup, VerbsWorkWithoutStandardStreams) {
  const std::string folder = MakeTestFolder();
  Shell made("exec \"$S\" key new --data-dir " + folder + " <&- >&- 2>&-");
  EXPECT_EQ(made.End().Words(), "exited with status 0");
  EXPECT_TRUE(std::filesystem::exists(folder + "/cluster_key"));
}

TEST(ProcessSetup, AFailingStdoutIsReported) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string folder = MakeTestFolder();
  Shell made("exec \"$S\" key new --data-dir " + folder);
  ASSERT_EQ(made.End().code, 0);
  for (const std::string& args :
       {std::string("--version"), std::string("--help"), "key show --data-dir " + folder,
        "token list --data-dir " + folder}) {
    Shell full("exec \"$S\" " + args + " >/dev/full");
    EXPECT_EQ(full.End().code, 4) << args;
    EXPECT_THAT(full.err(), AllOf(HasSubstr("strata: cannot write to stdout: No space left"),
                                  Not(HasSubstr("node"))));
  }
  Shell node("exec \"$S\" " + kNode + " >/dev/full");
  EXPECT_EQ(node.End().code, 4);
}

// The program never aborts, whichever descriptor is missing.
TEST(ProcessSetup, WithTooFewDescriptorsTheErrorSaysHowManyItNeeds) {
  if (testing::kHasAddressSanitizer) GTEST_SKIP() << "its runtime wants some of its own";
  for (const std::string& verb : {kNode, std::string("status"), std::string("nodes")}) {
    const int enough = 3 + (verb == kNode ? kNodeDescriptorsMin : kVerbDescriptorsMin);
    for (int n = 5; n < enough; n += verb == kNode ? 1 : 7) {
      Shell few(absl::StrCat("ulimit -n ", n, "; exec \"$S\" ", verb));
      EXPECT_EQ(few.End().Words(), "exited with status 1") << n << ": " << few.err();
      EXPECT_THAT(few.err(),
                  AllOf(HasSubstr("free file descriptors"), HasSubstr("ulimit -n 1024")));
      EXPECT_THAT(few.out(), IsEmpty());
    }
  }
}

TEST(ProcessSetup, RaisesTheLimitOfDescriptors) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 1024) GTEST_SKIP() << "too few file descriptors";
  Shell node("ulimit -S -n 30; exec \"$S\" " + kNode);
  EXPECT_THAT(node.FirstLine(), HasSubstr("\"node\"")) << node.err();
}

TEST(ProcessSetup, CreatesFilesForTheirOwnerAlone) {
  const std::string folder = MakeTestFolder();
  Shell node(
      absl::StrCat("umask 0; exec \"$S\" node --no-http --no-mdns --no-measure "
                   "--listen 127.0.0.1:0 --data-dir ",
                   folder, "/above/state"));
  ASSERT_THAT(node.FirstLine(), HasSubstr("\"node\"")) << node.err();
  size_t found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    struct stat about = {};
    ASSERT_EQ(lstat(entry.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 077, 0u) << entry.path() << std::oct << " " << about.st_mode;
    ++found;
  }
  EXPECT_GT(found, 5u);
}

}  // namespace
}  // namespace strata
