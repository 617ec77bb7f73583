// Texts on their way through a cluster, and one thing after the other that goes wrong under them:
// processes that die, hang or abort, networks that break, split, lose or crawl, and disks that are
// full or crawl when layers have to move. Every text ends, and is what it would have been; only
// those whose own node went may end with an error. After each round no process and no socket is
// left over.
//
// A round is made from its seed alone. STRATA_CHAOS_ROUNDS and STRATA_CHAOS_SEED choose, and
// STRATA_CHAOS_MODEL, _CONTEXT, _PROMPT, _TOKENS, _BEGIN_MS and _END_S another model
// (scripts/chaos).
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/child_process.h"
#include "shard/engine.h"
#include "shard/model_file.h"
#include "tests/integration/near_ties.h"
#include "tests/integration/processes.h"
#include "tests/net/network.h"
#include "tests/net/slow_disk.h"
#include "tests/support/temp_folder.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr size_t kNodes = 4;
// The first nodes have the model's file, and the others fetch what they need of it. Whichever two
// are cut off from the others, one of them has it.
constexpr size_t kWithFile = 3;
constexpr size_t kTexts = 8;
constexpr uint64_t kSlowDiskBytesPerS = 2'000'000;
constexpr uint64_t kDiskBytes = uint64_t{64} << 20;  // of a node's cache
constexpr absl::Duration kSettlesWithin = absl::Seconds(60);

constexpr char kInterface[] = "eth0";

enum class Fault {
  kKill,
  kStop,
  kFreeze,
  kAbort,
  kCable,
  kSplit,
  kMute,
  kDeaf,
  kLoss,
  kSlow,
  kFullDisk,
  kSlowDisk
};
struct FaultKind {
  Fault fault;
  const char* name;
};
constexpr FaultKind kFaults[] = {
    {Fault::kKill, "killed"},
    {Fault::kStop, "stopped"},
    {Fault::kFreeze, "frozen"},
    {Fault::kAbort, "its worker aborted"},
    {Fault::kCable, "cable pulled"},
    {Fault::kSplit, "cut off from half of the others"},
    {Fault::kMute, "not heard"},
    {Fault::kDeaf, "hearing nothing"},
    {Fault::kLoss, "30 % lost"},
    {Fault::kSlow, "at 2 Mbit/s"},
    {Fault::kFullDisk, "killed while all disks are full"},
    {Fault::kSlowDisk, "its worker aborted while all disks have 2 MB/s"},
};

int FromEnvironment(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  int number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number : otherwise;
}

std::string ModelPath() {
  const char* const path = std::getenv("STRATA_CHAOS_MODEL");
  return path != nullptr && *path != 0 ? path : STRATA_DEMO_MODEL;
}

// How all texts begin.
std::string PromptOf(int bytes) {
  std::string prompt;
  for (int page = 1; static_cast<int>(prompt.size()) < bytes; ++page) {
    absl::StrAppend(&prompt, "The ship's log, page ", page, ", says that the wind was ",
                    page % 3 == 0 ? "fair" : "against us", " for ", page % 7, " hours.\n");
  }
  return prompt;
}

// "0.4 s (p50), 1.2 s (p99)".
std::string Percentiles(std::vector<double> values) {
  std::ranges::sort(values);
  return absl::StrFormat("%.1f s (p50), %.1f s (p99)", values[values.size() / 2],
                         values[values.size() * 99 / 100]);
}

// Small disks in memory, seen by this process and what it starts, and gone with them.
absl::Status CanMakeDisks() {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return absl::ErrnoToStatus(errno, "no mounts of its own");
  }
  return absl::OkStatus();
}

// Sockets of one network namespace, by inode; those that the kernel only winds up have none.
struct Socket {
  std::string ends;  // as the kernel writes them
  bool listens = false;
  bool half_closed = false;  // the other end has gone, and this one has not noticed
};
std::map<std::string, Socket> SocketsOf(const Host& host) {
  constexpr char kListens[] = "0A", kCloseWait[] = "08";
  std::map<std::string, Socket> sockets;
  for (const char* const table : {"net/tcp", "net/tcp6"}) {
    std::istringstream lines(ReadProc(host.holder(), table));
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      if (inode.empty() || inode == "0") continue;
      sockets[inode] = {.ends = absl::StrCat(host.name(), ": ", local, " ", remote),
                        .listens = state == kListens,
                        .half_closed = state == kCloseWait};
    }
  }
  return sockets;
}

// `strata run` on a host.
class StrataRun {
 public:
  StrataRun(const Host& host, std::vector<std::string> args) {
    args.insert(args.begin(), STRATA_PROGRAM);
    ChildProcess::Options options;
    options.program = "/usr/bin/nsenter";
    options.args = host.Inside(std::move(args));
    options.on_stdout_line = [this](absl::string_view line) { Add(&out_, line); };
    options.on_stderr_line = [this](absl::string_view line) { Add(&err_, line); };
    auto process = ChildProcess::Start(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
  }
  // False: it has not ended by then.
  bool WaitUntil(absl::Time limit) {
    return process_->WaitForExit(std::max(limit - absl::Now(), absl::ZeroDuration()));
  }
  // What it printed, or a string: why it failed.
  Json Report() {
    absl::MutexLock lock(mu_);
    const Json json = Json::parse(out_, nullptr, /*allow_exceptions=*/false);
    return json.is_object() ? json : Json(err_);
  }

 private:
  void Add(std::string* to, absl::string_view line) {
    absl::MutexLock lock(mu_);
    absl::StrAppend(to, line, "\n");
  }
  absl::Mutex mu_;
  std::string out_ ABSL_GUARDED_BY(mu_), err_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ChildProcess> process_;
};

class ChaosTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
    if (absl::Status status = CanMakeDisks(); !status.ok()) {
      std::cout << "without full disks: " << status.message() << "\n";
    } else {
      has_disks_ = true;
    }
    auto header = ModelFile::Open(ModelPath());
    ASSERT_TRUE(header.ok()) << header.status();
    n_layer_ = (*header)->n_layer();
    ASSERT_GE(n_layer_, 3u);
    disk_bytes_ = kDiskBytes + 2 * (*header)->tensor_bytes();
    const std::string folder = testing::MakeTestFolder();
    model_path_ = folder + "/model.gguf";
    // A copy: what this process reads of the model does not keep it in memory for the nodes.
    std::filesystem::copy_file(ModelPath(), model_path_);
    if (auto disk = SlowDisk::Make(model_path_); disk.ok()) {
      slow_disk_ = *std::move(disk);
    } else {
      std::cout << "without slow disks: " << disk.status().message() << "\n";
    }
    for (const FaultKind& kind : kFaults) {
      if (kind.fault == Fault::kFullDisk && !has_disks_) continue;
      if (kind.fault == Fault::kSlowDisk && slow_disk_ == nullptr) continue;
      faults_.push_back(kind);
    }
    for (size_t i = 0; i < kNodes; ++i) {
      hosts_.push_back(std::make_unique<Host>(absl::StrCat("host-", i)));
      lan_.Plug(*hosts_[i], kInterface, {absl::StrCat("10.83.0.", i + 1, "/24")});
      if (i >= kWithFile) hosts_[i]->Hide(folder);
      disks_.push_back(testing::MakeTestFolder());
      if (has_disks_) {
        ASSERT_EQ(mount("tmpfs", disks_[i].c_str(), "tmpfs", 0,
                        absl::StrCat("size=", disk_bytes_).c_str()),
                  0)
            << disks_[i];
      }
      StartNode(i);
    }
    ASSERT_TRUE(Settles());
    StartEngine();
    auto whole = testing::WholeModel::Open(
        ModelPath(), {.n_ctx = static_cast<uint32_t>(context_), .n_seq_max = 1});
    ASSERT_TRUE(whole.ok()) << whole.status();
    whole_ = *std::move(whole);
  }
  void TearDown() override {
    nodes_.clear();
    slow_disk_.reset();
    for (const std::string& disk : disks_) {
      if (has_disks_) umount2(disk.c_str(), MNT_DETACH);
    }
  }

  // It is full until the folder's file "full" goes.
  void FillDisk(size_t node) {
    const int fd = open(absl::StrCat(disks_[node], "/full").c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return;
    const std::string block(1 << 16, '.');
    while (write(fd, block.data(), block.size()) > 0) {
    }
    close(fd);
  }

  // Processes and sockets of hosts that no node has, and what a node without a model should not
  // have: workers, more doors than when it started, ends of connections that are no more.
  std::vector<std::string> LeftOver() {
    std::vector<std::string> left;
    for (size_t i = 0; i < kNodes; ++i) {
      const std::vector<pid_t> pids = ProcessesOf(i);
      const std::string network = absl::StrCat("/proc/", hosts_[i]->holder(), "/ns/net");
      struct stat own = {};
      stat(network.c_str(), &own);
      for (const pid_t pid : Descendants(getpid())) {
        struct stat theirs = {};
        if (pid == hosts_[i]->holder() ||
            stat(absl::StrCat("/proc/", pid, "/ns/net").c_str(), &theirs) != 0 ||
            theirs.st_ino != own.st_ino || !Runs(pid)) {
          continue;
        }
        if (pid != nodes_[i]->pid()) left.push_back(DescribeProcess(pid));
      }
      const std::set<std::string> held = SocketsHeldBy(pids);
      size_t doors = 0;
      for (const auto& [inode, socket] : SocketsOf(*hosts_[i])) {
        doors += socket.listens;
        if (!held.contains(inode)) left.push_back(absl::StrCat(socket.ends, " is nobody's"));
        if (socket.half_closed) left.push_back(absl::StrCat(socket.ends, " was closed over there"));
      }
      if (doors > doors_[i]) {
        left.push_back(
            absl::StrCat(hosts_[i]->name(), " listens at ", doors, " ports, not at ", doors_[i]));
      }
    }
    return left;
  }

  // With nothing on its disk.
  void StartNode(size_t i) {
    for (const auto& entry : std::filesystem::directory_iterator(disks_[i])) {
      std::filesystem::remove_all(entry.path());
    }
    nodes_.resize(kNodes);
    nodes_[i] = std::make_unique<NodeOn>(hosts_[i].get(), hosts_[i]->name(),
                                         std::vector<std::string>{"--cache-dir", disks_[i]},
                                         NodeOn::Measure::kYes);
    if (slow_disk_ != nullptr) slow_disk_->Add(nodes_[i]->pid());
    log_read_.resize(kNodes);
    log_read_[i] = 0;
    doors_.resize(kNodes);
    doors_[i] = 0;
    for (const auto& [inode, socket] : SocketsOf(*hosts_[i])) doors_[i] += socket.listens;
  }

  // What the nodes' logs say of loads since ForgetLogs(), s: the longest.
  double LoadedFor() const {
    constexpr absl::string_view kWords = "loaded in ";
    double longest = 0;
    for (size_t i = 0; i < kNodes; ++i) {
      const std::string log = nodes_[i]->errors();
      for (size_t at = log.find(kWords, log_read_[i]); at != log.npos;
           at = log.find(kWords, at + 1)) {
        longest = std::max(longest, std::strtod(&log[at + kWords.size()], nullptr) / 1000);
      }
    }
    return longest;
  }
  void ForgetLogs() {
    for (size_t i = 0; i < kNodes; ++i) log_read_[i] = nodes_[i]->errors().size();
  }

  // Everybody sees everybody, and all name the same coordinator.
  bool Settles() {
    return Eventually(
        [this] {
          const bool all_see = std::ranges::all_of(nodes_, [this](const auto& node) {
            return std::ranges::all_of(nodes_,
                                       [&](const auto& other) { return node->Sees(*other); });
          });
          size_t coordinator = kNodes;
          return all_see && AgreeOn(nodes_, &coordinator);
        },
        kSettlesWithin);
  }

  Json Strata(size_t node, std::vector<std::string> args) {
    args.insert(args.end(), {"--json", "--node", nodes_[node]->address()});
    StrataRun run(*hosts_[node], std::move(args));
    if (!run.WaitUntil(absl::Now() + kSettlesWithin)) return "no end";
    return run.Report();
  }

  // The node that coordinates, as another says; kNodes: nobody.
  size_t Coordinator(size_t asked) {
    const Json nodes = nodes_[asked]->Nodes();
    if (!nodes.is_object()) return kNodes;
    for (size_t i = 0; i < kNodes; ++i) {
      if (nodes["coordinator"] == nodes_[i]->id()) return i;
    }
    return kNodes;
  }

  std::vector<pid_t> ProcessesOf(size_t node) { return WithDescendants(nodes_[node]->pid()); }

  // Any node's, where this one has none.
  void AbortWorkers(size_t node) {
    for (size_t i = 0; i < kNodes; ++i) {
      const std::vector<pid_t> workers = OfVerb(ProcessesOf((node + i) % kNodes), "worker");
      for (const pid_t pid : workers) kill(pid, SIGABRT);
      if (!workers.empty()) return;
    }
  }

  // Lets it happen; what is returned mends it.
  std::function<void()> Begin(Fault fault, size_t node, std::mt19937* random);
  // One round; what happened, in a line.
  void Round(uint32_t seed);

  Switch lan_{"lan"};
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<NodeOn>> nodes_;
  std::unique_ptr<testing::WholeModel> whole_;
  const int context_ = FromEnvironment("STRATA_CHAOS_CONTEXT", 1024);
  const int n_tokens_ = FromEnvironment("STRATA_CHAOS_TOKENS", 700);
  const std::string prompt_ = PromptOf(FromEnvironment("STRATA_CHAOS_PROMPT", 0));
  // After the texts were asked for, at most.
  const int begins_ms_ = FromEnvironment("STRATA_CHAOS_BEGIN_MS", 1500);
  // After the last of what went wrong has been mended, and what was loaded then.
  const absl::Duration ends_within_ = absl::Seconds(FromEnvironment("STRATA_CHAOS_END_S", 30));
  std::vector<FaultKind> faults_;  // those that can be made here
  bool has_disks_ = false;
  std::unique_ptr<SlowDisk> slow_disk_;  // of the model's file; null: none can be made here
  uint64_t disk_bytes_ = 0;
  std::string model_path_;
  std::vector<std::string> disks_;  // of the nodes' caches
  std::vector<size_t> doors_;       // ports at which each node listens when it has started
  size_t n_layer_ = 0;
  size_t hit_coordinator_ = 0, hit_gateway_ = 0, rounds_ = 0;
  std::vector<double> seconds_;  // from the mended fault to the last text's end, by round
  // The longest pause between two tokens of a text that another node than the victim takes, by
  // round, and what loading took of it.
  struct Pauses {
    std::vector<double> all, loading;
  };
  Pauses pauses_;
  std::map<std::string, Pauses> pauses_of_;  // by fault
  std::vector<size_t> log_read_;             // by node
  std::vector<int32_t> whole_holds_;
  size_t n_context_ = 0;  // the most tokens of a text with its prompt
  size_t ties_ = 0, tokens_ = 0, excused_ = 0;
};

std::function<void()> ChaosTest::Begin(Fault fault, size_t node, std::mt19937* random) {
  const Host& host = *hosts_[node];
  const auto heal = [this] { lan_.LoseNothing(); };
  switch (fault) {
    case Fault::kKill:
      for (const pid_t pid : ProcessesOf(node)) kill(pid, SIGKILL);
      return [this, node] { StartNode(node); };
    case Fault::kStop:
      nodes_[node]->Stop();
      return [this, node] { StartNode(node); };
    case Fault::kFreeze: {
      const std::vector<pid_t> pids = ProcessesOf(node);
      for (const pid_t pid : pids) kill(pid, SIGSTOP);
      return [pids] {
        for (const pid_t pid : pids) kill(pid, SIGCONT);
      };
    }
    case Fault::kAbort:
      AbortWorkers(node);
      return [] {};
    case Fault::kCable:
      lan_.SetCable(host, kInterface, false);
      return [this, &host] { lan_.SetCable(host, kInterface, true); };
    case Fault::kSplit: {
      // The node and one other on one side.
      const size_t with = (node + 1 + (*random)() % (kNodes - 1)) % kNodes;
      for (const size_t from : {node, with}) {
        for (size_t to = 0; to < kNodes; ++to) {
          if (to == node || to == with) continue;
          lan_.Lose(*hosts_[from], hosts_[to].get(), kInterface, 100);
          lan_.Lose(*hosts_[to], hosts_[from].get(), kInterface, 100);
        }
      }
      return heal;
    }
    case Fault::kMute:
      lan_.Lose(host, nullptr, kInterface, 100);
      return heal;
    case Fault::kDeaf:
      for (const auto& other : hosts_) {
        if (other.get() != &host) lan_.Lose(*other, &host, kInterface, 100);
      }
      return heal;
    case Fault::kLoss:
      lan_.Lose(host, nullptr, kInterface, 30);
      for (const auto& other : hosts_) {
        if (other.get() != &host) lan_.Lose(*other, &host, kInterface, 30);
      }
      return heal;
    case Fault::kSlow:
      lan_.SetSpeed(host, kInterface, 2);
      return [this, &host] { lan_.SetFullSpeed(host, kInterface); };
    case Fault::kFullDisk:
      for (size_t i = 0; i < kNodes; ++i) FillDisk(i);
      for (const pid_t pid : ProcessesOf(node)) kill(pid, SIGKILL);
      return [this, node] {
        for (const std::string& disk : disks_) unlink(absl::StrCat(disk, "/full").c_str());
        StartNode(node);
      };
    case Fault::kSlowDisk:
      // It has something to load, then.
      EXPECT_TRUE(slow_disk_->SetSpeed(kSlowDiskBytesPerS).ok());
      AbortWorkers(node);
      slow_disk_->ForgetPages();
      return [this] { EXPECT_TRUE(slow_disk_->SetSpeed(0).ok()); };
  }
  return [] {};
}

void ChaosTest::Round(uint32_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };

  // Three of the four hold the model; two take the texts.
  std::vector<size_t> order = {0, 1, 2, 3};
  for (size_t i = kNodes - 1; i > 0; --i) std::swap(order[i], order[below(i + 1)]);
  const size_t third = n_layer_ / 3;
  const std::string assign = absl::StrCat(
      hosts_[order[0]]->name(), "=0-", third - 1, ",", hosts_[order[1]]->name(), "=", third, "-",
      2 * third - 1, ",", hosts_[order[2]]->name(), "=", 2 * third, "-", n_layer_ - 1);
  // On their own they can still do without the others.
  const size_t first = below(kWithFile);
  const size_t second = (first + 1 + below(kWithFile - 1)) % kWithFile;
  const size_t gateways[] = {first, second};
  const Json loaded =
      Strata(below(kWithFile), {"load", model_path_, "--assign", assign, "--seqs",
                                absl::StrCat(kTexts), "--ctx", absl::StrCat(context_)});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  const std::string model = loaded["model"];
  const size_t coordinator = Coordinator(gateways[0]);
  ASSERT_LT(coordinator, kNodes);

  const FaultKind kind = faults_[below(faults_.size())];
  // Of ten rounds in a row three hit the coordinator, and three a node that takes texts.
  const size_t share = seed % 10;
  const size_t victim = share < 3 ? coordinator : share < 6 ? gateways[0] : below(kNodes);
  const absl::Duration begins = absl::Milliseconds(below(static_cast<size_t>(begins_ms_)));
  const absl::Duration lasts = absl::Milliseconds(300 + below(6000));

  std::vector<std::unique_ptr<StrataRun>> texts;
  for (size_t i = 0; i < kTexts; ++i) {
    const size_t at = gateways[i % 2];
    texts.push_back(std::make_unique<StrataRun>(
        *hosts_[at], std::vector<std::string>{
                         "run", model, absl::StrCat(prompt_, "Chapter ", seed, " of ", i, "\n"),
                         "--max-tokens", absl::StrCat(n_tokens_), "--ignore-eos", "--temperature",
                         "0", "--json", "--node", nodes_[at]->address()}));
  }
  absl::SleepFor(begins);
  ForgetLogs();
  const std::function<void()> mend = Begin(kind.fault, victim, &random);
  absl::SleepFor(lasts);
  mend();
  const absl::Time mended = absl::Now();

  for (size_t i = 0; i < kTexts; ++i) {
    double loading = 0;
    bool ended = texts[i]->WaitUntil(mended + ends_within_);
    while (!ended && LoadedFor() > loading) {
      loading = LoadedFor();
      ended = texts[i]->WaitUntil(mended + ends_within_ + absl::Seconds(loading));
    }
    ASSERT_TRUE(ended) << "text " << i << " by " << hosts_[gateways[i % 2]]->name()
                       << " has not ended; " << kind.name << ": " << hosts_[victim]->name()
                       << "; coordinates: " << hosts_[coordinator]->name();
  }
  const double took = absl::ToDoubleSeconds(absl::Now() - mended);
  size_t excused = 0;
  double pause = 0, own_pause = 0;  // of texts that other nodes take, and the victim
  for (size_t i = 0; i < kTexts; ++i) {
    const bool may_fail =
        gateways[i % 2] == victim && (kind.fault == Fault::kKill || kind.fault == Fault::kStop ||
                                      kind.fault == Fault::kFullDisk);
    const Json report = texts[i]->Report();
    // A client waits some seconds for a word of its own node.
    const std::string words = report.is_object() ? "" : report.dump();
    const bool gave_up = gateways[i % 2] == victim && kind.fault == Fault::kFreeze &&
                         absl::StrContains(words, "no node answers at");
    if (!report.is_object() && (may_fail || gave_up)) {
      ++excused;
      continue;
    }
    ASSERT_TRUE(report.is_object())
        << "text " << i << " by " << hosts_[gateways[i % 2]]->name() << ": " << report << "; "
        << kind.name << ": " << hosts_[victim]->name();
    const std::vector<int32_t> tokens = report["tokens"];
    EXPECT_EQ(tokens.size(), static_cast<size_t>(n_tokens_));
    const std::vector<int32_t> prompt = report["prompt"]["tokens"];
    ties_ += testing::NearTies(whole_.get(), prompt, tokens, testing::kNearTie, &whole_holds_);
    tokens_ += tokens.size();
    n_context_ = std::max(n_context_, prompt.size() + tokens.size());
    double* const longest = gateways[i % 2] == victim ? &own_pause : &pause;
    *longest = std::max(*longest, report["longest_pause_ms"].get<double>() / 1000);
  }
  seconds_.push_back(took);
  const double loading = std::min(pause, LoadedFor());
  for (Pauses* const pauses : {&pauses_, &pauses_of_[kind.name]}) {
    pauses->all.push_back(pause);
    pauses->loading.push_back(loading);
  }
  excused_ += excused;
  ++rounds_;
  hit_coordinator_ += victim == coordinator;
  hit_gateway_ += victim == first || victim == second;
  std::cout << absl::StreamFormat(
                   "seed %u: %s %s%s%s after %.1f s for %.1f s; the longest pause was %.1f s, of "
                   "which loading %.1f s, %.1f s of its own texts; texts ended %.1f s after it was "
                   "mended, %u excused\n",
                   seed, hosts_[victim]->name(), kind.name,
                   victim == coordinator ? ", coordinates" : "",
                   victim == first || victim == second ? ", takes texts" : "",
                   absl::ToDoubleSeconds(begins), absl::ToDoubleSeconds(lasts), pause, loading,
                   own_pause, took, excused)
            << std::flush;

  // As before: everybody is there, and nothing is loaded.
  ASSERT_TRUE(Settles());
  Json status;
  ASSERT_TRUE(Eventually(
      [&] {
        Strata(0, {"unload", model});
        status = Strata(0, {"status"});
        if (!status.is_object() || status["nodes"].size() < kNodes) return false;
        for (const Json& node : status["nodes"]) {
          if (node["state"] == "alive" && !node["stages"].empty()) return false;
        }
        return true;
      },
      kSettlesWithin))
      << status.dump(1);
  std::vector<std::string> left;
  EXPECT_TRUE(Eventually(
      [&] {
        left = LeftOver();
        return left.empty();
      },
      kSettlesWithin))
      << left.size() << " left over:\n"
      << absl::StrJoin(left, "\n");
}

TEST_F(ChaosTest, EveryTextEndsAndIsRight) {
  const int rounds = FromEnvironment("STRATA_CHAOS_ROUNDS", 4);
  const int seed = FromEnvironment("STRATA_CHAOS_SEED", 1);
  for (int i = 0; i < rounds; ++i) {
    Round(static_cast<uint32_t>(seed + i));
    if (HasFailure() || std::getenv("STRATA_CHAOS_LOGS") != nullptr) {
      for (const auto& node : nodes_) std::cout << node->name() << ":\n" << node->errors() << "\n";
      if (HasFatalFailure()) return;
    }
  }
  for (const auto& [name, pauses] : pauses_of_) {
    std::cout << absl::StreamFormat("%s: %u rounds; paused for %s, of which loading %s\n", name,
                                    pauses.all.size(), Percentiles(pauses.all),
                                    Percentiles(pauses.loading));
  }
  std::cout << absl::StreamFormat(
      "%d rounds: texts paused for %s, the longest in each round, of which loading %s; the last "
      "text ended %s after the fault was mended; %.0f %% of the rounds hit the coordinator, %.0f "
      "%% a node that takes texts; %u texts excused; %u of %u tokens, behind up to %u others, are "
      "as likely as the likeliest within rounding, the others are it\n",
      rounds, Percentiles(pauses_.all), Percentiles(pauses_.loading), Percentiles(seconds_),
      100.0 * hit_coordinator_ / rounds_, 100.0 * hit_gateway_ / rounds_, excused_, ties_, tokens_,
      n_context_);
}

}  // namespace
}  // namespace strata
