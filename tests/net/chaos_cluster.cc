#include "tests/net/chaos_cluster.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/integration/processes.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using Json = nlohmann::json;

// A table of the host's network as the kernel writes it, without its heading, cut into columns.
std::vector<std::vector<std::string>> RowsOf(const Host& host, const char* table) {
  const std::string text = ReadProc(host.holder(), table);
  std::vector<std::vector<std::string>> rows;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    rows.push_back(std::move(columns));
  }
  if (!rows.empty()) rows.erase(rows.begin());
  return rows;
}

// Sockets of one network namespace, by inode. Those that the kernel is closing have no inode, nor
// have those that wait to be accepted.
struct Socket {
  std::string ends;          // as the kernel writes them
  bool listens = false;      // at a port
  bool half_closed = false;  // the other end has gone, and this one has not noticed
};
std::map<std::string, Socket> SocketsOf(const Host& host) {
  constexpr char kListens[] = "0A", kCloseWait[] = "08";  // TCP's states; UDP has others
  constexpr char kNoInode[] = "0";
  std::map<std::string, Socket> sockets;
  for (const char* const table : {"net/tcp", "net/tcp6", "net/udp", "net/udp6"}) {
    for (const std::vector<std::string>& row : RowsOf(host, table)) {
      constexpr size_t kLocal = 1, kRemote = 2, kState = 3, kInode = 9;
      if (row.size() <= kInode || row[kInode] == kNoInode) continue;
      sockets[row[kInode]] = {
          .ends = absl::StrCat(host.name(), ": ", row[kLocal], " ", row[kRemote]),
          .listens = row[kState] == kListens,
          .half_closed = row[kState] == kCloseWait};
    }
  }
  // A Unix socket belongs to the network of the process that made it, and exists for as long as a
  // process has it. A node passes them to nobody but its children.
  for (const std::vector<std::string>& row : RowsOf(host, "net/unix")) {
    constexpr size_t kInode = 6, kPath = 7;
    if (row.size() <= kInode || row[kInode] == kNoInode) continue;
    sockets[row[kInode]] = {.ends = absl::StrCat(host.name(), ": unix:",
                                                 row.size() > kPath ? row[kPath] : row[kInode])};
  }
  return sockets;
}

// Number of ports at which `pids` listen.
size_t DoorsOf(const Host& host, const std::vector<pid_t>& pids) {
  const std::set<std::string> held = SocketsHeldBy(pids);
  size_t doors = 0;
  for (const auto& [inode, socket] : SocketsOf(host)) {
    doors += socket.listens && held.contains(inode);
  }
  return doors;
}

// Descriptions of the processes on the host that are neither the holder of its network nor the
// node, whoever started them: a process that outlives its parent is no longer below this one.
std::vector<std::string> StrangersOn(const Host& host, pid_t node) {
  std::vector<std::string> strangers;
  const std::string network = absl::StrCat("/proc/", host.holder(), "/ns/net");
  struct stat own = {};
  stat(network.c_str(), &own);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    struct stat theirs = {};
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || pid == host.holder() ||
        pid == node || stat(absl::StrCat("/proc/", pid, "/ns/net").c_str(), &theirs) != 0 ||
        theirs.st_ino != own.st_ino || !Runs(pid)) {
      continue;
    }
    strangers.push_back(DescribeProcess(pid));
  }
  return strangers;
}

}  // namespace

StrataRun::StrataRun(const Host& host, std::vector<std::string> args) {
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

bool StrataRun::WaitUntil(absl::Time limit) {
  return process_->WaitForExit(std::max(limit - absl::Now(), absl::ZeroDuration()));
}

Json StrataRun::Report() {
  absl::MutexLock lock(mu_);
  const Json json = Json::parse(out_, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json(err_);
}

void StrataRun::Add(std::string* to, absl::string_view line) {
  absl::MutexLock lock(mu_);
  absl::StrAppend(to, line, "\n");
}

ChaosCluster::ChaosCluster(const std::string& model, uint64_t disk_bytes)
    : nodes_(kNodes), doors_(kNodes), log_read_(kNodes), data_dirs_(kNodes) {
  const std::string folder = testing::MakeTestFolder();
  model_path_ = folder + "/model.gguf";
  // A copy, so that this process's reads of the model do not keep the nodes' pages in memory.
  std::filesystem::copy_file(model, model_path_);
  if (auto disk = SlowDisk::Make(model_path_); disk.ok()) {
    slow_disk_ = *std::move(disk);
  } else {
    absl::StrAppend(&without_, "without slow disks: ", disk.status().message(), "\n");
  }
  for (size_t i = 0; i < kNodes; ++i) {
    disks_.push_back(std::make_unique<testing::SmallDisk>(disk_bytes));
    hosts_.push_back(std::make_unique<Host>(absl::StrCat("host-", i)));
    lan_.Plug(*hosts_[i], kInterface, {absl::StrCat("10.83.0.", i + 1, "/24")});
    if (i >= kWithFile) hosts_[i]->Hide(folder);
  }
  for (const auto& disk : disks_) {
    if (disk->problem().empty()) continue;
    absl::StrAppend(&without_, "without full disks: ", disk->problem(), "\n");
    break;
  }
  for (size_t i = 0; i < kNodes; ++i) StartNode(i);
}

// The nodes end before the hosts and disks that they run on.
ChaosCluster::~ChaosCluster() { nodes_.clear(); }

bool ChaosCluster::HasDisks() const {
  return std::ranges::all_of(disks_, [](const auto& disk) { return disk->problem().empty(); });
}

void ChaosCluster::RemoveCachedWeights(size_t node) {
  for (const auto& entry : std::filesystem::directory_iterator(disks_[node]->path())) {
    std::filesystem::remove_all(entry.path());
  }
}

bool ChaosCluster::Undrain(size_t node, std::string* said) {
  StrataRun run(*hosts_[node],
                {"drain", hosts_[node]->name(), "--undo", "--node", nodes_[node]->address()});
  const bool ended = run.WaitUntil(absl::Now() + kSettlesWithin);
  *said = ended ? run.Report().dump() : "no end";
  return ended && run.ok();
}

void ChaosCluster::StartNode(size_t node) {
  const std::string& disk = disks_[node]->path();
  RemoveCachedWeights(node);
  // What it kept of prompts is lost with it: only the copies on other nodes are left.
  if (!data_dirs_[node].empty()) std::filesystem::remove_all(data_dirs_[node]);
  data_dirs_[node] = testing::MakeTestFolder();
  nodes_[node] = std::make_unique<NodeOn>(
      hosts_[node].get(), hosts_[node]->name(),
      std::vector<std::string>{"--cache-dir", disk, "--data-dir", data_dirs_[node]},
      NodeOn::Measure::kYes);
  if (slow_disk_ != nullptr) slow_disk_->Add(nodes_[node]->pid());
  log_read_[node] = 0;
  // Children of the node before may listen for a moment yet: only this node's ports count.
  doors_[node] = DoorsOf(*hosts_[node], ProcessesOf(node));
}

std::vector<pid_t> ChaosCluster::ProcessesOf(size_t node) const {
  return WithDescendants(nodes_[node]->pid());
}

Json ChaosCluster::Strata(size_t node, std::vector<std::string> args) {
  args.insert(args.end(), {"--json", "--node", nodes_[node]->address()});
  StrataRun run(*hosts_[node], std::move(args));
  if (!run.WaitUntil(absl::Now() + kSettlesWithin)) return "no end";
  return run.Report();
}

bool ChaosCluster::Settles() const {
  return Eventually(
      [this] {
        const bool all_see = std::ranges::all_of(nodes_, [this](const auto& node) {
          return std::ranges::all_of(nodes_, [&](const auto& other) { return node->Sees(*other); });
        });
        size_t coordinator = kNodes;
        return all_see && AgreeOn(nodes_, &coordinator);
      },
      kSettlesWithin);
}

size_t ChaosCluster::Coordinator(size_t at) const {
  const Json nodes = nodes_[at]->Nodes();
  if (!nodes.is_object()) return kNodes;
  for (size_t i = 0; i < kNodes; ++i) {
    if (nodes["coordinator"] == nodes_[i]->id()) return i;
  }
  return kNodes;
}

double ChaosCluster::LoadedFor() const {
  double longest = 0;
  ForEachSaid("loaded in ", [&longest](const char* rest) {
    longest = std::max(longest, std::strtod(rest, nullptr) / 1000);
  });
  return longest;
}

size_t ChaosCluster::Says(absl::string_view words) const {
  size_t times = 0;
  ForEachSaid(words, [&times](const char*) { ++times; });
  return times;
}

void ChaosCluster::ForEachSaid(absl::string_view words,
                               absl::FunctionRef<void(const char* rest)> call) const {
  for (size_t i = 0; i < kNodes; ++i) {
    const std::string log = nodes_[i]->errors();
    for (size_t at = log.find(words, log_read_[i]); at != log.npos; at = log.find(words, at + 1)) {
      call(log.c_str() + at + words.size());
    }
  }
}

void ChaosCluster::ForgetLogs() {
  for (size_t i = 0; i < kNodes; ++i) log_read_[i] = nodes_[i]->errors().size();
}

std::vector<std::string> ChaosCluster::LeftOver() const {
  std::vector<std::string> left;
  for (size_t i = 0; i < kNodes; ++i) {
    const std::set<std::string> held = SocketsHeldBy(ProcessesOf(i));
    const std::vector<std::string> strangers = StrangersOn(*hosts_[i], nodes_[i]->pid());
    left.insert(left.end(), strangers.begin(), strangers.end());
    size_t doors = 0;
    for (const auto& [inode, socket] : SocketsOf(*hosts_[i])) {
      doors += socket.listens;
      if (!held.contains(inode)) left.push_back(absl::StrCat(socket.ends, " has no process"));
      if (socket.half_closed) left.push_back(absl::StrCat(socket.ends, " was closed by its peer"));
    }
    if (doors > doors_[i]) {
      left.push_back(
          absl::StrCat(hosts_[i]->name(), " listens at ", doors, " ports, not at ", doors_[i]));
    }
  }
  return left;
}

}  // namespace strata
