// Texts on their way through a cluster, and one thing after the other that goes wrong under them:
// processes that die, hang or abort, and networks that break, split, lose or crawl. Every text
// ends, and is what it would have been; only those whose own node went may end with an error.
//
// A round is made from its seed alone. STRATA_CHAOS_ROUNDS and STRATA_CHAOS_SEED choose
// (scripts/chaos).
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/child_process.h"
#include "shard/engine.h"
#include "tests/integration/near_ties.h"
#include "tests/integration/processes.h"
#include "tests/net/network.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr size_t kNodes = 4;
constexpr size_t kTexts = 8;
constexpr int kTokens = 300;
// After the last of what went wrong has been mended.
constexpr absl::Duration kEndsWithin = absl::Seconds(30);
constexpr absl::Duration kSettlesWithin = absl::Seconds(60);
// What rounding can do: a text that is fed again goes through the kernels in other batches.
constexpr float kNearTie = 0.3f;

constexpr char kInterface[] = "eth0";

enum class Fault { kKill, kStop, kFreeze, kAbort, kCable, kSplit, kMute, kDeaf, kLoss, kSlow };
struct FaultKind {
  Fault fault;
  const char* name;
};
constexpr FaultKind kFaults[] = {
    {Fault::kKill, "killed"},        {Fault::kStop, "stopped"},
    {Fault::kFreeze, "frozen"},      {Fault::kAbort, "its worker aborted"},
    {Fault::kCable, "cable pulled"}, {Fault::kSplit, "cut off from half of the others"},
    {Fault::kMute, "not heard"},     {Fault::kDeaf, "hearing nothing"},
    {Fault::kLoss, "30 % lost"},     {Fault::kSlow, "at 2 Mbit/s"},
};

int FromEnvironment(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  int number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number : otherwise;
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
    for (size_t i = 0; i < kNodes; ++i) {
      hosts_.push_back(std::make_unique<Host>(absl::StrCat("host-", i)));
      lan_.Plug(*hosts_[i], kInterface, {absl::StrCat("10.83.0.", i + 1, "/24")});
      StartNode(i);
    }
    ASSERT_TRUE(Settles());
    StartEngine();
    auto whole = testing::WholeModel::Open(STRATA_DEMO_MODEL, {.n_ctx = 512, .n_seq_max = 1});
    ASSERT_TRUE(whole.ok()) << whole.status();
    whole_ = *std::move(whole);
  }

  void StartNode(size_t i) {
    nodes_.resize(kNodes);
    nodes_[i] = std::make_unique<NodeOn>(hosts_[i].get(), hosts_[i]->name(),
                                         std::vector<std::string>{}, NodeOn::Measure::kYes);
  }

  // Everybody sees everybody.
  bool Settles() {
    return Eventually(
        [this] {
          return std::ranges::all_of(nodes_, [this](const auto& node) {
            return std::ranges::all_of(nodes_,
                                       [&](const auto& other) { return node->Sees(*other); });
          });
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

  std::vector<pid_t> ProcessesOf(size_t node) {
    std::vector<pid_t> pids = Descendants(nodes_[node]->pid());
    pids.push_back(nodes_[node]->pid());
    return pids;
  }

  // Lets it happen; what is returned mends it.
  std::function<void()> Begin(Fault fault, size_t node, std::mt19937* random);
  // One round; what happened, in a line.
  void Round(uint32_t seed);

  Switch lan_{"lan"};
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<NodeOn>> nodes_;
  std::unique_ptr<testing::WholeModel> whole_;
  std::vector<double> seconds_;  // from the mended fault to the last text's end, by round
  std::vector<double> pauses_;   // the longest between two tokens of any text, by round
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
      for (const pid_t pid : OfVerb(ProcessesOf(node), "worker")) kill(pid, SIGABRT);
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
  }
  return [] {};
}

void ChaosTest::Round(uint32_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };

  // Three of the four hold the model; any two take the texts.
  std::vector<size_t> order = {0, 1, 2, 3};
  for (size_t i = kNodes - 1; i > 0; --i) std::swap(order[i], order[below(i + 1)]);
  const std::string assign =
      absl::StrCat(hosts_[order[0]]->name(), "=0-1,", hosts_[order[1]]->name(), "=2-3,",
                   hosts_[order[2]]->name(), "=4-5");
  const size_t first = below(kNodes);
  const size_t second = (first + 1 + below(kNodes - 1)) % kNodes;
  const size_t gateways[] = {first, second};
  const Json loaded = Strata(gateways[0], {"load", STRATA_DEMO_MODEL, "--assign", assign, "--seqs",
                                           absl::StrCat(kTexts), "--ctx", "512"});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  const std::string model = loaded["model"];
  const size_t coordinator = Coordinator(gateways[0]);
  ASSERT_LT(coordinator, kNodes);

  const FaultKind kind = kFaults[below(std::size(kFaults))];
  const size_t share = below(10);
  const size_t victim = share < 3 ? coordinator : share < 6 ? gateways[0] : below(kNodes);
  const absl::Duration begins = absl::Milliseconds(below(1500));
  const absl::Duration lasts = absl::Milliseconds(300 + below(6000));

  std::vector<std::unique_ptr<StrataRun>> texts;
  for (size_t i = 0; i < kTexts; ++i) {
    const size_t at = gateways[i % 2];
    texts.push_back(std::make_unique<StrataRun>(
        *hosts_[at],
        std::vector<std::string>{"run", model, absl::StrCat("Chapter ", seed, " of ", i, "\n"),
                                 "--max-tokens", absl::StrCat(kTokens), "--ignore-eos",
                                 "--temperature", "0", "--json", "--node", nodes_[at]->address()}));
  }
  absl::SleepFor(begins);
  const std::function<void()> mend = Begin(kind.fault, victim, &random);
  absl::SleepFor(lasts);
  mend();
  const absl::Time mended = absl::Now();

  for (size_t i = 0; i < kTexts; ++i) {
    ASSERT_TRUE(texts[i]->WaitUntil(mended + kEndsWithin))
        << "text " << i << " by " << hosts_[gateways[i % 2]]->name() << " has not ended; "
        << kind.name << ": " << hosts_[victim]->name()
        << "; coordinates: " << hosts_[coordinator]->name();
  }
  const double took = absl::ToDoubleSeconds(absl::Now() - mended);
  size_t excused = 0;
  double pause = 0;
  for (size_t i = 0; i < kTexts; ++i) {
    const bool may_fail =
        gateways[i % 2] == victim && (kind.fault == Fault::kKill || kind.fault == Fault::kStop);
    const Json report = texts[i]->Report();
    if (!report.is_object() && may_fail) {
      ++excused;
      continue;
    }
    ASSERT_TRUE(report.is_object())
        << "text " << i << " by " << hosts_[gateways[i % 2]]->name() << ": " << report << "; "
        << kind.name << ": " << hosts_[victim]->name();
    const std::vector<int32_t> tokens = report["tokens"];
    EXPECT_EQ(tokens.size(), static_cast<size_t>(kTokens));
    ties_ += testing::NearTies(whole_.get(), report["prompt"]["tokens"], tokens, kNearTie);
    tokens_ += tokens.size();
    pause = std::max(pause, report["longest_pause_ms"].get<double>() / 1000);
  }
  seconds_.push_back(took);
  pauses_.push_back(pause);
  excused_ += excused;
  std::cout << absl::StreamFormat(
                   "seed %u: %s %s%s%s after %.1f s for %.1f s; the longest pause was %.1f s, "
                   "texts ended %.1f s after it was mended, %u excused\n",
                   seed, hosts_[victim]->name(), kind.name,
                   victim == coordinator ? ", coordinates" : "",
                   victim == first || victim == second ? ", takes texts" : "",
                   absl::ToDoubleSeconds(begins), absl::ToDoubleSeconds(lasts), pause, took,
                   excused)
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
}

TEST_F(ChaosTest, EveryTextEndsAndIsRight) {
  const int rounds = FromEnvironment("STRATA_CHAOS_ROUNDS", 4);
  const int seed = FromEnvironment("STRATA_CHAOS_SEED", 1);
  for (int i = 0; i < rounds; ++i) {
    Round(static_cast<uint32_t>(seed + i));
    if (HasFatalFailure() || std::getenv("STRATA_CHAOS_LOGS") != nullptr) {
      for (const auto& node : nodes_) std::cout << node->name() << ":\n" << node->errors() << "\n";
      if (HasFatalFailure()) return;
    }
  }
  const auto percentiles = [](std::vector<double> values) {
    std::ranges::sort(values);
    return absl::StrFormat("%.1f s (p50), %.1f s (p99)", values[values.size() / 2],
                           values[values.size() * 99 / 100]);
  };
  std::cout << absl::StreamFormat(
      "%d rounds: the longest pause was %s; the last text ended %s after the fault was mended; %u "
      "texts excused; %u of %u tokens are as likely as the likeliest within rounding, the others "
      "are it\n",
      rounds, percentiles(pauses_), percentiles(seconds_), excused_, ties_, tokens_);
}

}  // namespace
}  // namespace strata
