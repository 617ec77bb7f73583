// Texts on their way through a cluster, and one thing after the other that goes wrong under them:
// processes that die, hang or abort, networks that break, split, lose or crawl, and disks that are
// full or crawl when layers have to move. Eight are on their way whenever it happens: until then
// each client asks for the next one when its text has ended. Every text ends, and is what it would
// have been; only those whose own node went may end with an error. After each round no process and
// no socket is left over.
//
// A round is made from its seed alone; in rounds in a row the kinds take turns. STRATA_CHAOS_ROUNDS
// and STRATA_CHAOS_SEED choose; without, it is one round of each of the first six kinds. Where
// somebody says how many, what cannot be made here is a failure. STRATA_CHAOS_MODEL, _CONTEXT,
// _PROMPT, _TOKENS, _BEGIN_MS and _END_S choose another model (scripts/chaos).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shard/engine.h"
#include "shard/model_file.h"
#include "tests/integration/near_ties.h"
#include "tests/net/chaos_cluster.h"
#include "tests/net/chaos_faults.h"
#include "tests/net/network.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr size_t kNodes = ChaosCluster::kNodes;
constexpr size_t kWithFile = ChaosCluster::kWithFile;
constexpr size_t kClients = 8;
constexpr uint64_t kDiskBytes = uint64_t{64} << 20;  // of a node's cache, besides the model twice
// Of so many rounds in a row two hit the coordinator, two a node that takes texts, and three any.
// The number of kinds has no divisor in common with it: each kind meets all of these in its turn.
constexpr size_t kShares = 7;
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr char kNoAnswer[] = "no node answers at";
constexpr int kRoundsMany = 20;  // of which the two have a fifth each at least, whichever they are

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

// Has one text written after the other by a node.
struct Client {
  size_t at = 0;  // the node
  std::vector<std::unique_ptr<StrataRun>> texts;
};

class ChaosTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) {
      if (asked_for_) FAIL() << status.message();
      GTEST_SKIP() << status.message();
    }
    auto header = ModelFile::Open(ModelPath());
    ASSERT_TRUE(header.ok()) << header.status();
    n_layer_ = (*header)->n_layer();
    ASSERT_GE(n_layer_, 3u);
    cluster_ =
        std::make_unique<ChaosCluster>(ModelPath(), kDiskBytes + 2 * (*header)->tensor_bytes());
    // With fewer kinds a seed would be another round.
    if (asked_for_ && !cluster_->without().empty()) FAIL() << cluster_->without();
    std::cout << cluster_->without();
    faults_ = FaultsFor(cluster_.get());
    ASSERT_TRUE(cluster_->Settles());
    StartEngine();
    auto whole = testing::WholeModel::Open(
        ModelPath(), {.n_ctx = static_cast<uint32_t>(context_), .n_seq_max = 1});
    ASSERT_TRUE(whole.ok()) << whole.status();
    whole_ = *std::move(whole);
  }
  void TearDown() override { cluster_.reset(); }

  // One round; what happened, in a line.
  void Round(uint32_t seed);
  void AskForNext(const std::string& model, const std::string& title, Client* client) const;
  // Everybody is there, nothing is loaded, and nothing is left over of what was.
  void ExpectAsBefore(const std::string& model);
  void PrintTotals(int rounds) const;

  std::unique_ptr<ChaosCluster> cluster_;
  std::unique_ptr<testing::WholeModel> whole_;
  const bool asked_for_ = std::getenv("STRATA_CHAOS_ROUNDS") != nullptr;
  const int context_ = FromEnvironment("STRATA_CHAOS_CONTEXT", 1024);
  const int n_tokens_ = FromEnvironment("STRATA_CHAOS_TOKENS", 700);
  const std::string prompt_ = PromptOf(FromEnvironment("STRATA_CHAOS_PROMPT", 0));
  // After the first texts were asked for, at most.
  const int begins_ms_ = FromEnvironment("STRATA_CHAOS_BEGIN_MS", 1500);
  // After the last of what went wrong has been mended, and what was loaded then.
  const absl::Duration ends_within_ = absl::Seconds(FromEnvironment("STRATA_CHAOS_END_S", 30));
  std::vector<FaultKind> faults_;  // those that can be made here
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
  std::vector<int32_t> whole_holds_;
  size_t n_context_ = 0;  // the most tokens of a text with its prompt
  size_t ties_ = 0, tokens_ = 0, texts_ = 0, excused_ = 0;
};

void ChaosTest::AskForNext(const std::string& model, const std::string& title,
                           Client* client) const {
  const std::string prompt =
      absl::StrCat(prompt_, "Chapter ", title, ", part ", client->texts.size() + 1, "\n");
  client->texts.push_back(std::make_unique<StrataRun>(
      cluster_->host(client->at),
      std::vector<std::string>{"run", model, prompt, "--max-tokens", absl::StrCat(n_tokens_),
                               "--ignore-eos", "--temperature", "0", "--json", "--node",
                               cluster_->node(client->at).address()}));
}

void ChaosTest::Round(uint32_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto name = [&](size_t node) { return cluster_->host(node).name(); };

  // Two take the texts. On their own they can still do without the others.
  const size_t first = below(kWithFile);
  const size_t second = (first + 1 + below(kWithFile - 1)) % kWithFile;
  const size_t gateways[] = {first, second};
  const size_t coordinator = cluster_->Coordinator(gateways[0]);
  ASSERT_LT(coordinator, kNodes);

  const FaultKind kind = faults_[seed % faults_.size()];
  const size_t share = seed % kShares;
  const size_t victim = share < 2 ? coordinator : share < 4 ? gateways[0] : below(kNodes);

  // Three of the four hold the model, the victim among them where it needs a worker.
  std::vector<size_t> order = {0, 1, 2, 3};
  for (size_t i = kNodes - 1; i > 0; --i) std::swap(order[i], order[below(i + 1)]);
  if (AbortsItsWorker(kind.fault) && order[kNodes - 1] == victim) {
    std::swap(order[kNodes - 1], order[below(kNodes - 1)]);
  }
  const size_t third = n_layer_ / 3;
  const std::string assign =
      absl::StrCat(name(order[0]), "=0-", third - 1, ",", name(order[1]), "=", third, "-",
                   2 * third - 1, ",", name(order[2]), "=", 2 * third, "-", n_layer_ - 1);
  const Json loaded = cluster_->Strata(
      below(kWithFile), {"load", cluster_->model_path(), "--assign", assign, "--seqs",
                         absl::StrCat(kClients), "--ctx", absl::StrCat(context_)});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  const std::string model = loaded["model"];
  const absl::Duration begins = absl::Milliseconds(below(static_cast<size_t>(begins_ms_)));
  const absl::Duration lasts = absl::Milliseconds(300 + below(6000));

  Prepare(kind.fault, cluster_.get());
  std::vector<Client> clients(kClients);
  const auto ask = [&](size_t i) { AskForNext(model, absl::StrCat(seed, " of ", i), &clients[i]); };
  for (size_t i = 0; i < kClients; ++i) {
    clients[i].at = gateways[i % 2];
    ask(i);
  }
  for (const absl::Time until = absl::Now() + begins; absl::Now() < until;) {
    absl::SleepFor(std::min(kLookEvery, until - absl::Now()));
    for (size_t i = 0; i < kClients; ++i) {
      if (clients[i].texts.back()->WaitUntil(absl::InfinitePast())) ask(i);
    }
  }
  cluster_->ForgetLogs();
  std::string what = kind.name;
  const std::function<void()> mend = Begin(kind.fault, cluster_.get(), victim, &random, &what);
  absl::SleepFor(lasts);
  mend();
  const absl::Time mended = absl::Now();

  for (const Client& client : clients) {
    StrataRun* const text = client.texts.back().get();
    double loading = 0;
    bool ended = text->WaitUntil(mended + ends_within_);
    while (!ended && cluster_->LoadedFor() > loading) {
      loading = cluster_->LoadedFor();
      ended = text->WaitUntil(mended + ends_within_ + absl::Seconds(loading));
    }
    ASSERT_TRUE(ended) << "a text by " << name(client.at) << " has not ended; " << what << ": "
                       << name(victim) << "; coordinates: " << name(coordinator);
  }
  const double took = absl::ToDoubleSeconds(absl::Now() - mended);
  size_t excused = 0, n_texts = 0;
  double pause = 0, own_pause = 0;  // of texts that other nodes take, and the victim
  for (const Client& client : clients) {
    n_texts += client.texts.size();
    for (const auto& text : client.texts) {
      const bool was_hit = text == client.texts.back();
      const bool by_victim = was_hit && client.at == victim;
      const Json report = text->Report();
      // A client waits some seconds for a word of its own node.
      const std::string words = report.is_object() ? "" : report.dump();
      const bool gave_up = kind.fault == Fault::kFreeze && absl::StrContains(words, kNoAnswer);
      if (!report.is_object() && by_victim && (EndsItsProcess(kind.fault) || gave_up)) {
        ++excused;
        continue;
      }
      ASSERT_TRUE(report.is_object())
          << "a text by " << name(client.at) << (was_hit ? "" : ", before") << ": " << report
          << "; " << what << ": " << name(victim);
      const std::vector<int32_t> tokens = report["tokens"];
      EXPECT_EQ(tokens.size(), static_cast<size_t>(n_tokens_));
      const std::vector<int32_t> prompt = report["prompt"]["tokens"];
      ties_ += testing::NearTies(whole_.get(), prompt, tokens, testing::kNearTie,
                                 {.held = &whole_holds_});
      tokens_ += tokens.size();
      n_context_ = std::max(n_context_, prompt.size() + tokens.size());
      if (!was_hit) continue;
      double* const longest = by_victim ? &own_pause : &pause;
      *longest = std::max(*longest, report["longest_pause_ms"].get<double>() / 1000);
    }
  }
  texts_ += n_texts;
  seconds_.push_back(took);
  const double loading = std::min(pause, cluster_->LoadedFor());
  for (Pauses* const pauses : {&pauses_, &pauses_of_[kind.name]}) {
    pauses->all.push_back(pause);
    pauses->loading.push_back(loading);
  }
  excused_ += excused;
  ++rounds_;
  hit_coordinator_ += victim == coordinator;
  hit_gateway_ += victim == first || victim == second;
  std::cout
      << absl::StreamFormat(
             "seed %u: %s %s%s%s after %.1f s for %.1f s; the longest pause was %.1f s, of "
             "which loading %.1f s, %.1f s of its own texts; texts ended %.1f s after it was "
             "mended, %u of %u excused; served again %u times, moved %u times, %u of them without "
             "caches\n",
             seed, name(victim), what, victim == coordinator ? ", coordinates" : "",
             victim == first || victim == second ? ", takes texts" : "",
             absl::ToDoubleSeconds(begins), absl::ToDoubleSeconds(lasts), pause, loading, own_pause,
             took, excused, n_texts, cluster_->Says("is served again"),
             cluster_->Says(" has moved: "), cluster_->Says("they are fed again"))
      << std::flush;
  ExpectAsBefore(model);
}

void ChaosTest::ExpectAsBefore(const std::string& model) {
  ASSERT_TRUE(cluster_->Settles());
  Json status;
  ASSERT_TRUE(Eventually(
      [&] {
        cluster_->Strata(0, {"unload", model});
        status = cluster_->Strata(0, {"status"});
        if (!status.is_object() || status["nodes"].size() < kNodes) return false;
        for (const Json& node : status["nodes"]) {
          if (node["state"] == "alive" && !node["stages"].empty()) return false;
        }
        return true;
      },
      ChaosCluster::kSettlesWithin))
      << status.dump(1);
  std::vector<std::string> left;
  EXPECT_TRUE(Eventually(
      [&] {
        left = cluster_->LeftOver();
        return left.empty();
      },
      ChaosCluster::kSettlesWithin))
      << left.size() << " left over:\n"
      << absl::StrJoin(left, "\n");
}

void ChaosTest::PrintTotals(int rounds) const {
  for (const auto& [name, pauses] : pauses_of_) {
    std::cout << absl::StreamFormat("%s: %u rounds; paused for %s, of which loading %s\n", name,
                                    pauses.all.size(), Percentiles(pauses.all),
                                    Percentiles(pauses.loading));
  }
  std::cout << absl::StreamFormat(
      "%d rounds: texts paused for %s, the longest in each round, of which loading %s; the last "
      "text ended %s after the fault was mended; %.0f %% of the rounds hit the coordinator, %.0f "
      "%% a node that takes texts; %u of %u texts excused; %u of %u tokens, behind up to %u "
      "others, are as likely as the likeliest within rounding, the others are it\n",
      rounds, Percentiles(pauses_.all), Percentiles(pauses_.loading), Percentiles(seconds_),
      100.0 * hit_coordinator_ / rounds_, 100.0 * hit_gateway_ / rounds_, excused_, texts_, ties_,
      tokens_, n_context_);
}

TEST_F(ChaosTest, EveryTextEndsAndIsRight) {
  const int rounds = FromEnvironment("STRATA_CHAOS_ROUNDS", 6);
  // That of the first kind, however many there are.
  const int seed = FromEnvironment("STRATA_CHAOS_SEED", 0);
  for (int i = 0; i < rounds; ++i) {
    Round(static_cast<uint32_t>(seed + i));
    if (HasFailure() || std::getenv("STRATA_CHAOS_LOGS") != nullptr) {
      for (size_t node = 0; node < kNodes; ++node) {
        std::cout << cluster_->node(node).name() << ":\n" << cluster_->node(node).errors() << "\n";
      }
      if (HasFatalFailure()) return;
    }
  }
  PrintTotals(rounds);
  if (rounds >= kRoundsMany) {
    EXPECT_GE(5 * hit_coordinator_, rounds_);
    EXPECT_GE(5 * hit_gateway_, rounds_);
  }
}

}  // namespace
}  // namespace strata
