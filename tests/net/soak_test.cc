// Nodes that stay while others come and go, under requests of all kinds: memory, descriptors and
// threads of the long-lived processes are measured whenever the cluster is idle, and are at the end
// what they were at the beginning. Every request ends.
//
// STRATA_SOAK_S says for how many seconds, and makes growth a failure; without it, the test only
// tries whether all of this works. STRATA_SOAK_SEED chooses the events (scripts/soak).
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/processes.h"
#include "tests/net/network.h"
#include "tests/support/http_client.h"
#include "tests/support/renamed_model.h"
#include "tests/support/temp_folder.h"
#include "transport/base/descriptor.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;

constexpr size_t kNodes = 4;
constexpr size_t kStay = 2;  // the first ones, which clients use
constexpr size_t kClients = 4;
constexpr uint16_t kHttpPort = 7480;
constexpr char kInterface[] = "eth0";
// One model on the nodes that stay, and one with a stage on each node that comes and goes.
constexpr char kDemoName[] = "Strata demo";
constexpr char kStayName[] = "Strata stay";
constexpr char kPlaces[] = "host-0=0-1,host-2=2-3,host-3=4-5";
constexpr int kSeqs = 6, kContext = 1024;
constexpr absl::Duration kSettlesWithin = absl::Seconds(90);
constexpr absl::Duration kTrial = absl::Seconds(3);
// Looks at the processes, and how many of them are warm-up: by then each has seen everything once.
constexpr int kLooks = 16;
constexpr int kWarmUp = 4;
constexpr size_t kCompared = 3;
constexpr double kGrowthMax = 0.05;
constexpr size_t kSpareMax = 4;             // threads and sockets that gRPC keeps come and go
constexpr size_t kComparedMin = 2 * kStay;  // each with its worker

int FromEnvironment(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  int number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number : otherwise;
}

// Resources of a process.
struct Usage {
  double rss_mib = std::numeric_limits<double>::infinity();
  double file_mib = std::numeric_limits<double>::infinity();  // of rss_mib: mapped files' pages
  size_t descriptors = SIZE_MAX;
  size_t threads = SIZE_MAX;

  // Takes the least of both, by field.
  void Take(const Usage& other) {
    rss_mib = std::min(rss_mib, other.rss_mib);
    file_mib = std::min(file_mib, other.file_mib);
    descriptors = std::min(descriptors, other.descriptors);
    threads = std::min(threads, other.threads);
  }
};

size_t EntriesOf(const std::string& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

std::optional<Usage> UsageOf(pid_t pid) {
  const std::string status = ReadProc(pid, "status");
  const auto mib_of = [&status](absl::string_view what) -> std::optional<double> {
    const size_t at = status.find(what);
    if (at == std::string::npos) return std::nullopt;
    return std::strtod(&status[at + what.size()], nullptr) / 1024;
  };
  const std::optional<double> rss = mib_of("VmRSS:"), file = mib_of("RssFile:");
  if (!rss || !file) return std::nullopt;
  return Usage{.rss_mib = *rss,
               .file_mib = *file,
               .descriptors = EntriesOf(absl::StrCat("/proc/", pid, "/fd")),
               .threads = EntriesOf(absl::StrCat("/proc/", pid, "/task"))};
}

// Lets clients in, one action each, unless the cluster is to be idle.
class Turnstile {
 public:
  // Waits until clients are let in. False: the test is over.
  bool Enter() {
    absl::MutexLock lock(mu_);
    const auto open = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !closed_ || ended_; };
    mu_.Await(absl::Condition(&open));
    if (!ended_) ++inside_;
    return !ended_;
  }
  void Leave() {
    absl::MutexLock lock(mu_);
    --inside_;
  }
  // Keeps clients out and waits until none is inside; false: one does not come out.
  bool Close() {
    absl::MutexLock lock(mu_);
    closed_ = true;
    const auto empty = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return inside_ == 0; };
    return mu_.AwaitWithTimeout(absl::Condition(&empty), kSettlesWithin);
  }
  void Open() {
    absl::MutexLock lock(mu_);
    closed_ = false;
  }
  void End() {
    absl::MutexLock lock(mu_);
    ended_ = true;
  }

 private:
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false, ended_ ABSL_GUARDED_BY(mu_) = false;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
};

struct Counts {
  std::atomic<int> completed = 0, cancelled = 0, looks = 0, refused = 0, failed = 0;
};

class SoakTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) {
      if (std::getenv("STRATA_SOAK_S") != nullptr) FAIL() << status.message();
      GTEST_SKIP() << status.message();
    }
    const std::string folder = testing::MakeTestFolder();
    model_path_ = folder + "/model.gguf";
    std::filesystem::copy_file(STRATA_DEMO_MODEL, model_path_);
    ASSERT_NO_FATAL_FAILURE(
        testing::WriteRenamedModel(STRATA_DEMO_MODEL, kStayName, folder + "/stay.gguf"));
    nodes_.resize(kNodes);
    for (size_t i = 0; i < kNodes; ++i) {
      hosts_.push_back(std::make_unique<Host>(absl::StrCat("host-", i)));
      lan_.Plug(*hosts_[i], kInterface, {absl::StrCat("10.84.0.", i + 1, "/24")});
      if (i + 1 == kNodes) hosts_[i]->Hide(folder);  // it fetches its layers
      folders_.push_back(testing::MakeTestFolder());
      StartNode(i);
    }
    ASSERT_TRUE(Settles()) << nodes_[0]->errors();
    ASSERT_NO_FATAL_FAILURE(Load(folder + "/stay.gguf", "host-0=0-2,host-1=3-5"));
    ASSERT_NO_FATAL_FAILURE(Load(model_path_, kPlaces));
    for (size_t i = 0; i < kClients; ++i) {
      clients_.emplace_back([this, i] { RunClient(i); });
    }
  }
  void TearDown() override {
    if (HasFailure()) {
      for (const auto& node : nodes_) std::cout << node->name() << ":\n" << node->errors() << "\n";
    }
    turnstile_.End();
    for (std::thread& client : clients_) client.join();
    nodes_.clear();
  }

  void StartNode(size_t i) {
    nodes_[i] = std::make_unique<NodeOn>(
        hosts_[i].get(), hosts_[i]->name(),
        std::vector<std::string>{"--data-dir", folders_[i], "--cache-dir", folders_[i] + "/cache",
                                 "--listen", "[::]:7400", "--http",
                                 absl::StrCat("127.0.0.1:", kHttpPort)},
        NodeOn::Measure::kYes);
  }
  // Waits until the nodes that stay see all others.
  bool Settles() {
    return Eventually(
        [this] {
          for (size_t i = 0; i < kStay; ++i) {
            for (const auto& other : nodes_) {
              if (!nodes_[i]->Sees(*other)) return false;
            }
          }
          return true;
        },
        kSettlesWithin);
  }
  // The JSON that a verb prints on the first host; where it failed, a string: its stderr.
  Json Strata(const std::string& verb) {
    const std::string errors = testing::ProcessTempFolder() + "/errors";
    std::string out;
    const bool done = hosts_[0]->TryShell(
        absl::StrCat(STRATA_PROGRAM, " ", verb, " --json --node ", nodes_[0]->address(), " 2>",
                     errors, " || { cat ", errors, "; exit 1; }"),
        &out);
    return done ? Json::parse(out, nullptr, /*allow_exceptions=*/false) : Json(out);
  }
  void Load(const std::string& path, const std::string& places) {
    Json loaded;
    ASSERT_TRUE(Eventually(
        [&] {
          loaded = Strata(absl::StrCat("load ", path, " --assign ", places, " --seqs ", kSeqs,
                                       " --ctx ", kContext));
          return loaded.is_object();
        },
        kSettlesWithin))
        << loaded;
  }

  void GoTo(size_t host);  // moves this thread into the host's network
  // Touches all memory that the caches of the model that stays can take, before the first look.
  void FillCaches();
  // A client's thread: requests and queries to a node that stays, from that node's host.
  void RunClient(size_t i);
  void SendOne(size_t host, std::mt19937* random);
  void Complete(const Json& ask);
  void Stream(const Json& ask, int events_max);
  // A node is stopped, killed or drained, and comes back.
  void RestartOne(std::mt19937* random);
  // Lists the processes on the nodes that stay.
  void FindProcesses();
  // Measures the processes of the nodes that stay, while the cluster is idle.
  void Look();
  bool Judge() const;

  struct Process {
    std::string what;
    bool stays = false;         // existed at the beginning, and has to exist at every look
    std::map<int, Usage> uses;  // by look
  };

  Switch lan_{"lan"};
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<NodeOn>> nodes_;
  std::vector<std::string> folders_;  // of the nodes, which keep their ids and weights
  std::string model_path_;
  Turnstile turnstile_;
  std::vector<std::thread> clients_;
  Counts counts_;
  const int seed_ = FromEnvironment("STRATA_SOAK_SEED", 1);
  int look_ = 0;
  std::map<std::string, int> gone_;
  std::map<pid_t, Process> processes_;
};

void SoakTest::GoTo(size_t host) {
  const Descriptor network(open(absl::StrCat("/proc/", hosts_[host]->holder(), "/ns/net").c_str(),
                                O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(setns(network.fd(), CLONE_NEWNET), 0);
}

void SoakTest::FillCaches() {
  std::vector<std::thread> threads;
  for (int i = 0; i < kSeqs; ++i) {
    threads.emplace_back([this, i] {
      ASSERT_NO_FATAL_FAILURE(GoTo(0));
      Complete({{"model", kStayName},
                {"prompt", "All of it\n"},
                {"max_tokens", kContext - 30},
                {"ignore_eos", true},
                {"seed", i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void SoakTest::RunClient(size_t i) {
  const size_t host = i % kStay;
  ASSERT_NO_FATAL_FAILURE(GoTo(host));
  std::mt19937 random(static_cast<uint32_t>(seed_) * 100 + static_cast<uint32_t>(i));
  while (turnstile_.Enter()) {
    SendOne(host, &random);
    turnstile_.Leave();
    absl::SleepFor(absl::Milliseconds(random() % 200));
  }
}

void SoakTest::SendOne(size_t host, std::mt19937* random) {
  const auto below = [random](uint32_t n) { return (*random)() % n; };
  Json ask = {{"model", below(2) == 0 ? kDemoName : kStayName},
              {"prompt", absl::StrCat("Chapter ", below(1000), "\n")},
              {"max_tokens", 4 + below(24)},
              {"ignore_eos", true},
              {"seed", below(1000)}};
  switch (below(8)) {
    case 0:
    case 1:
      return Complete(ask);
    case 2: {
      std::string prompt;
      while (prompt.size() < 1500) absl::StrAppend(&prompt, "It was ", below(10000), " o'clock. ");
      ask["prompt"] = prompt;
      return Complete(ask);
    }
    case 3:
    case 4:
      ask["max_tokens"] = 100 + below(300);
      return Stream(ask, 0);
    case 5:
    case 6:  // and goes away
      ask["max_tokens"] = 400;
      return Stream(ask, 1 + static_cast<int>(below(40)));
    default: {
      constexpr std::array kPages = {"/health", "/metrics", "/v1/models"};
      HttpClient client(kHttpPort);
      client.Get(kPages[below(kPages.size())]);
      if (client.Read().status != 0) ++counts_.looks;
      nodes_[host]->Nodes();
    }
  }
}

void SoakTest::Complete(const Json& ask) {
  HttpClient client(kHttpPort);
  client.Post("/v1/completions", ask.dump());
  const HttpReply reply = client.Read();
  if (reply.status == 200) {
    ++counts_.completed;
  } else if (reply.status == 503 || reply.status == 429) {
    ++counts_.refused;
  } else {
    ++counts_.failed;
    ADD_FAILURE() << reply.head << reply.body;
  }
}

void SoakTest::Stream(const Json& ask, int events_max) {
  HttpClient client(kHttpPort);
  Json body = ask;
  body["stream"] = true;
  client.Post("/v1/completions", body.dump());
  const HttpReply reply = client.ReadHead();
  if (reply.status == 503 || reply.status == 429) {
    ++counts_.refused;
    return;
  }
  std::string all;
  int events = 0;
  for (std::string chunk; !(chunk = client.ReadChunk()).empty();) {
    all += chunk;
    if (events_max > 0 && ++events >= events_max) {
      ++counts_.cancelled;
      return;
    }
  }
  if (reply.status == 200 && absl::StrContains(all, "data: [DONE]") &&
      !absl::StrContains(all, "\"error\"")) {
    ++counts_.completed;
  } else {
    ++counts_.failed;
    ADD_FAILURE() << reply.head << all.substr(all.size() - std::min<size_t>(all.size(), 1000));
  }
}

void SoakTest::RestartOne(std::mt19937* random) {
  const size_t node = kStay + (*random)() % (kNodes - kStay);
  const std::string name = hosts_[node]->name();
  const absl::Duration away = absl::Milliseconds(500 + (*random)() % 4000);
  switch ((*random)() % 3) {
    case 0:
      ++gone_["stopped"];
      nodes_[node]->Stop();
      break;
    case 1: {
      ++gone_["killed"];
      const std::vector<pid_t> pids = WithDescendants(nodes_[node]->pid());
      for (const pid_t pid : pids) kill(pid, SIGKILL);
      break;
    }
    default: {
      const Json drained = Strata("drain " + name);
      ++gone_[drained.is_object() ? "drained" : "not drained"];
      if (!drained.is_object()) std::cout << drained << "\n";
      absl::SleepFor(away);
      Strata(absl::StrCat("drain ", name, " --undo"));
      return;
    }
  }
  absl::SleepFor(away);
  StartNode(node);
}

void SoakTest::FindProcesses() {
  const bool begins = processes_.empty();
  for (size_t i = 0; i < kStay; ++i) {
    ASSERT_TRUE(Runs(nodes_[i]->pid())) << nodes_[i]->errors();
    std::vector<pid_t> pids = Descendants(nodes_[i]->pid());
    const std::vector<pid_t> workers = OfVerb(pids, "worker");
    pids.push_back(nodes_[i]->pid());
    for (const pid_t pid : pids) {
      const bool is_node = pid == nodes_[i]->pid();
      const bool is_worker = std::ranges::find(workers, pid) != workers.end();
      Process& process = processes_[pid];
      process.what = absl::StrCat(hosts_[i]->name(), is_node     ? " node"
                                                     : is_worker ? " worker"
                                                                 : " other");
      if (begins) process.stays = is_node || is_worker;
    }
  }
}

void SoakTest::Look() {
  ASSERT_TRUE(turnstile_.Close()) << "a request does not end";
  ASSERT_TRUE(Settles()) << nodes_[0]->errors();
  // Loads the model where it was at first, so that looks compare like with like.
  Json unloaded;
  ASSERT_TRUE(Eventually(
      [&] {
        unloaded = Strata(absl::StrCat("unload '", kDemoName, "'"));
        return unloaded.is_object();
      },
      kSettlesWithin))
      << unloaded;
  ASSERT_NO_FATAL_FAILURE(Load(model_path_, kPlaces));
  absl::SleepFor(absl::Seconds(2));
  ASSERT_NO_FATAL_FAILURE(FindProcesses());
  for (int times = 0; times < 5; ++times) {
    if (times > 0) absl::SleepFor(absl::Milliseconds(300));
    for (auto& [pid, process] : processes_) {
      if (const std::optional<Usage> use = UsageOf(pid)) process.uses[look_].Take(*use);
    }
  }
  ++look_;
  turnstile_.Open();
}

bool SoakTest::Judge() const {
  bool good = true;
  int short_lived = 0;
  size_t compared = 0;  // of those that stay
  std::cout << absl::StreamFormat("%-16s %10s %10s %8s %14s %14s\n", "process", "MiB", "at the end",
                                  "growth", "descriptors", "threads");
  for (const auto& [pid, process] : processes_) {
    if (process.stays && process.uses.size() < static_cast<size_t>(look_)) {
      good = false;
      std::cout << absl::StreamFormat("%-16s  RESTARTED: %d was there at %u looks of %d\n",
                                      process.what, pid, process.uses.size(), look_);
    }
    std::vector<Usage> uses;
    for (const auto& [look, use] : process.uses) {
      if (look >= std::min(kWarmUp, look_ / 4)) uses.push_back(use);
    }
    const bool is_there = !process.uses.empty() && process.uses.rbegin()->first == look_ - 1;
    const size_t n = std::min(kCompared, uses.size() / 2);
    if (n == 0 || !is_there || uses.size() * 2 < static_cast<size_t>(look_)) {
      ++short_lived;
      continue;
    }
    compared += process.stays;
    double before = 0, after = 0;
    Usage first, last;
    for (size_t i = 0; i < n; ++i) {
      before += uses[i].rss_mib / static_cast<double>(n);
      after += uses[uses.size() - 1 - i].rss_mib / static_cast<double>(n);
      first.Take(uses[i]);
      last.Take(uses[uses.size() - 1 - i]);
    }
    const double growth = after / before - 1;
    const bool is_flat = growth <= kGrowthMax &&
                         last.descriptors <= first.descriptors + kSpareMax &&
                         last.threads <= first.threads + kSpareMax;
    good &= is_flat;
    std::cout << absl::StreamFormat("%-16s %10.1f %10.1f %+7.1f%% %6u -> %-4u %6u -> %-4u%s\n",
                                    process.what, before, after, growth * 100, first.descriptors,
                                    last.descriptors, first.threads, last.threads,
                                    is_flat ? "" : "  GROWS");
    if (is_flat) continue;
    std::cout << "  MiB at each look, and of mapped files:";
    for (const auto& [look, use] : process.uses) {
      std::cout << absl::StreamFormat(" %.1f (%.1f)", use.rss_mib, use.file_mib);
    }
    std::cout << "\n";
  }
  std::cout << short_lived
            << " processes are not compared: they came or went, or there were few looks\n";
  if (compared < kComparedMin) {
    good = false;
    std::cout << "only " << compared << " of the " << kComparedMin << " that stay are compared\n";
  }
  return good;
}

TEST_F(SoakTest, WhatStaysDoesNotGrow) {
  const int seconds = FromEnvironment("STRATA_SOAK_S", 0);
  const absl::Duration lasts = seconds > 0 ? absl::Seconds(seconds) : kTrial;
  const int looks = seconds > 0 ? kLooks : 1;
  std::mt19937 random(static_cast<uint32_t>(seed_));
  if (seconds > 0) FillCaches();
  ASSERT_NO_FATAL_FAILURE(FindProcesses());
  const absl::Time begin = absl::Now();
  for (int i = 0; i < looks; ++i) {
    do {
      absl::SleepFor(absl::Milliseconds(500 + random() % 2000));
      RestartOne(&random);
    } while (absl::Now() < begin + lasts * (i + 1) / looks);
    ASSERT_NO_FATAL_FAILURE(Look());
    if (seconds > 0) {
      std::cout << absl::StreamFormat("%4.0f min: %d requests, %d cancelled, %d failed\n",
                                      absl::ToDoubleMinutes(absl::Now() - begin), counts_.completed,
                                      counts_.cancelled, counts_.failed)
                << std::flush;
    }
  }
  ASSERT_TRUE(turnstile_.Close());
  std::cout << absl::StreamFormat(
      "seed %d: %d requests, %d cancelled by their client, %d refused, %d failed; %d pages\n",
      seed_, counts_.completed, counts_.cancelled, counts_.refused, counts_.failed, counts_.looks);
  for (const auto& [how, times] : gone_) std::cout << "  " << times << " times " << how << "\n";
  EXPECT_GT(counts_.completed, 0);
  const bool is_flat = Judge();
  if (seconds > 0) {
    EXPECT_TRUE(is_flat);
  }
}

}  // namespace
}  // namespace strata
