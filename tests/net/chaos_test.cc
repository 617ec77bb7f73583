// Requests in flight through a cluster, and one fault after the other under them: processes that
// die, hang or abort, networks that break, split, lose packets or crawl, and disks that are full or
// crawl when layers have to move; two faults at a time (a worker and then the coordinator, two of
// four nodes, a cable or the coordinator during a drain), and the cached weights of a loaded model,
// which vanish before a worker dies. Eight requests are in flight at each fault: until then each
// client sends the next request when its own has ended. Every request ends, and each of its tokens
// is what it would have been without the fault; only a request whose own node died may end with an
// error. After each round no process and no socket is left over.
//
// A round depends on its seed alone; in rounds in a row the kinds take turns. STRATA_CHAOS_ROUNDS
// and STRATA_CHAOS_SEED choose; without them, it is one round of each of the first three kinds.
// With STRATA_CHAOS_ROUNDS, a fault that cannot be made here fails the test. STRATA_CHAOS_MODEL,
// _CONTEXT, _PROMPT, _TOKENS, _BEGIN_MS and _END_S choose another model (scripts/chaos).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
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
#include "shard/device/engine.h"
#include "shard/model/model_file.h"
#include "tests/integration/near_ties.h"
#include "tests/net/chaos_cluster.h"
#include "tests/net/chaos_faults.h"
#include "tests/net/chaos_totals.h"
#include "tests/net/network.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr size_t kNodes = ChaosCluster::kNodes;
constexpr size_t kWithFile = ChaosCluster::kWithFile;
constexpr size_t kClients = 8;
constexpr uint64_t kDiskBytes = uint64_t{64} << 20;  // of a node's cache, besides the model twice
// In so many rounds in a row two hit the coordinator, two a gateway, and three any node. The number
// of kinds has no divisor in common with it, so each kind meets all of these in its turn.
constexpr size_t kShares = 7;
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr char kNoAnswer[] = "no node answers at";
// From so many rounds on, a fifth at least hit the coordinator, and a fifth a gateway.
constexpr int kRoundsMany = 20;

int FromEnvironment(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  int number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number : otherwise;
}

std::string ModelPath() {
  const char* const path = std::getenv("STRATA_CHAOS_MODEL");
  return path != nullptr && *path != 0 ? path : STRATA_DEMO_MODEL;
}

// The beginning of all prompts.
std::string PromptOf(int bytes) {
  std::string prompt;
  for (int page = 1; static_cast<int>(prompt.size()) < bytes; ++page) {
    absl::StrAppend(&prompt, "The ship's log, page ", page, ", says that the wind was ",
                    page % 3 == 0 ? "fair" : "against us", " for ", page % 7, " hours.\n");
  }
  return prompt;
}

// Sends one request after the other to a node.
struct Client {
  size_t at = 0;  // the node
  std::vector<std::unique_ptr<StrataRun>> runs;
};

// One round, as its seed and the cluster's coordinator make it.
struct ChaosRound {
  FaultKind kind;
  size_t gateways[2] = {};  // nodes that clients use
  size_t coordinator = kNodes;
  size_t victim = kNodes;
  size_t other = kNodes;       // where the second of two faults happens
  std::vector<size_t> stages;  // the nodes that hold the model's three, in order
  size_t loaded_by = 0;
  absl::Duration begins;  // the fault, after the first requests
  absl::Duration lasts;

  bool HitsCoordinator() const { return victim == coordinator; }
  bool HitsGateway() const { return victim == gateways[0] || victim == gateways[1]; }
};

class ChaosTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) {
      if (is_explicit_) FAIL() << status.message();
      GTEST_SKIP() << status.message();
    }
    auto header = ModelFile::Open(ModelPath());
    ASSERT_TRUE(header.ok()) << header.status();
    n_layer_ = (*header)->n_layer();
    ASSERT_GE(n_layer_, 3u);
    cluster_ =
        std::make_unique<ChaosCluster>(ModelPath(), kDiskBytes + 2 * (*header)->tensor_bytes());
    // With fewer kinds a seed would be another round.
    if (is_explicit_ && !cluster_->without().empty()) FAIL() << cluster_->without();
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

  // Plays a round and prints a line about it.
  void Round(uint32_t seed);
  // Draws always in the same order, or a seed would be another round; the fault draws after it.
  void Draw(uint32_t seed, std::mt19937* random, ChaosRound* round) const;
  void Load(const ChaosRound& round, std::string* model);
  void SendNext(const std::string& model, const std::string& title, Client* client) const;
  // Each client sends the next request when its own has ended, until the fault comes.
  void WriteUntilTheFault(const ChaosRound& round, const std::string& model, uint32_t seed,
                          std::vector<Client>* clients) const;
  // `where` describes the fault, for failures.
  void ExpectEnds(const std::vector<Client>& clients, absl::Time repaired,
                  const std::string& where);
  void ExpectRight(const ChaosRound& round, const std::vector<Client>& clients,
                   const std::string& where, RoundStats* stats);
  // All nodes are alive, nothing is loaded, and no process or socket is left over.
  void ExpectAsBefore(const std::string& model);
  std::string NameOf(size_t node) const { return cluster_->host(node).name(); }

  std::unique_ptr<ChaosCluster> cluster_;
  std::unique_ptr<testing::WholeModel> whole_;
  const bool is_explicit_ = std::getenv("STRATA_CHAOS_ROUNDS") != nullptr;
  const int context_ = FromEnvironment("STRATA_CHAOS_CONTEXT", 1024);
  const int n_tokens_ = FromEnvironment("STRATA_CHAOS_TOKENS", 700);
  const std::string prompt_ = PromptOf(FromEnvironment("STRATA_CHAOS_PROMPT", 0));
  // The longest time from the first requests to the fault.
  const int begins_ms_ = FromEnvironment("STRATA_CHAOS_BEGIN_MS", 1500);
  // Within which requests end once the last fault is repaired, besides the time of loads after it.
  const absl::Duration ends_within_ = absl::Seconds(FromEnvironment("STRATA_CHAOS_END_S", 30));
  std::vector<FaultKind> faults_;  // those that can be made here
  size_t n_layer_ = 0;
  std::vector<int32_t> cached_tokens_;
  ChaosTotals totals_;
};

void ChaosTest::SendNext(const std::string& model, const std::string& title, Client* client) const {
  const std::string prompt =
      absl::StrCat(prompt_, "Chapter ", title, ", part ", client->runs.size() + 1, "\n");
  client->runs.push_back(std::make_unique<StrataRun>(
      cluster_->host(client->at),
      std::vector<std::string>{"run", model, prompt, "--max-tokens", absl::StrCat(n_tokens_),
                               "--ignore-eos", "--temperature", "0", "--json", "--node",
                               cluster_->node(client->at).address()}));
}

void ChaosTest::Draw(uint32_t seed, std::mt19937* random, ChaosRound* round) const {
  const auto below = [&](size_t n) { return static_cast<size_t>((*random)() % n); };
  // Two nodes are gateways. Cut off from the others, they can still serve: each has the file.
  const size_t first = below(kWithFile);
  const size_t second = (first + 1 + below(kWithFile - 1)) % kWithFile;
  round->gateways[0] = first;
  round->gateways[1] = second;
  round->coordinator = cluster_->Coordinator(first);
  ASSERT_LT(round->coordinator, kNodes);

  round->kind = faults_[seed % faults_.size()];
  const size_t share = seed % kShares;
  round->victim = share < 2 ? round->coordinator : share < 4 ? first : below(kNodes);

  // Three of the four hold the model, the victim among them where it needs a worker.
  std::vector<size_t> order = {0, 1, 2, 3};
  for (size_t i = kNodes - 1; i > 0; --i) std::swap(order[i], order[below(i + 1)]);
  // Only a node without the file has weights in its cache.
  if (round->kind.fault == Fault::kWeights) round->victim = kNodes - 1;
  if (AbortsItsWorker(round->kind.fault) && order[kNodes - 1] == round->victim) {
    std::swap(order[kNodes - 1], order[below(kNodes - 1)]);
  }
  order.pop_back();
  round->stages = std::move(order);
  round->loaded_by = below(kWithFile);
  round->begins = absl::Milliseconds(below(static_cast<size_t>(begins_ms_)));
  round->lasts = absl::Milliseconds(300 + below(6000));
  // Of two nodes that die at once, one is no gateway.
  round->other = round->coordinator;
  if (round->kind.fault == Fault::kTwoNodes) {
    do {
      round->other = below(kNodes);
    } while (round->other == round->victim ||
             (round->HitsGateway() && (round->other == first || round->other == second)));
  }
}

void ChaosTest::Load(const ChaosRound& round, std::string* model) {
  const size_t third = n_layer_ / 3;
  const std::string assign = absl::StrCat(
      NameOf(round.stages[0]), "=0-", third - 1, ",", NameOf(round.stages[1]), "=", third, "-",
      2 * third - 1, ",", NameOf(round.stages[2]), "=", 2 * third, "-", n_layer_ - 1);
  const Json loaded = cluster_->Strata(
      round.loaded_by, {"load", cluster_->model_path(), "--assign", assign, "--seqs",
                        absl::StrCat(kClients), "--ctx", absl::StrCat(context_)});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  *model = loaded["model"];
}

void ChaosTest::WriteUntilTheFault(const ChaosRound& round, const std::string& model, uint32_t seed,
                                   std::vector<Client>* clients) const {
  clients->resize(kClients);
  const auto send = [&](size_t i) {
    SendNext(model, absl::StrCat(seed, " of ", i), &(*clients)[i]);
  };
  for (size_t i = 0; i < kClients; ++i) {
    (*clients)[i].at = round.gateways[i % 2];
    send(i);
  }
  for (const absl::Time until = absl::Now() + round.begins; absl::Now() < until;) {
    absl::SleepFor(std::min(kLookEvery, until - absl::Now()));
    for (size_t i = 0; i < kClients; ++i) {
      if ((*clients)[i].runs.back()->WaitUntil(absl::InfinitePast())) send(i);
    }
  }
}

void ChaosTest::ExpectEnds(const std::vector<Client>& clients, absl::Time repaired,
                           const std::string& where) {
  for (const Client& client : clients) {
    StrataRun* const run = client.runs.back().get();
    double loading = 0;
    bool ended = run->WaitUntil(repaired + ends_within_);
    while (!ended && cluster_->LoadedFor() > loading) {
      loading = cluster_->LoadedFor();
      ended = run->WaitUntil(repaired + ends_within_ + absl::Seconds(loading));
    }
    ASSERT_TRUE(ended) << "a request at " << NameOf(client.at) << " has not ended; " << where;
  }
}

void ChaosTest::ExpectRight(const ChaosRound& round, const std::vector<Client>& clients,
                            const std::string& where, RoundStats* stats) {
  for (const Client& client : clients) {
    for (const auto& run : client.runs) {
      ++stats->requests;
      const bool was_hit = run == client.runs.back();
      const bool of_other = EndsOthersProcess(round.kind.fault) && client.at == round.other;
      const bool by_victim = was_hit && (client.at == round.victim || of_other);
      const bool lost = (client.at == round.victim && EndsItsProcess(round.kind.fault)) || of_other;
      const Json report = run->Report();
      // A client waits some seconds for an answer of its own node.
      const std::string words = report.is_object() ? "" : report.dump();
      const bool gave_up =
          round.kind.fault == Fault::kFreeze && absl::StrContains(words, kNoAnswer);
      if (!report.is_object() && by_victim && (lost || gave_up)) {
        ++stats->excused;
        continue;
      }
      ASSERT_TRUE(report.is_object())
          << "a request at " << NameOf(client.at) << (was_hit ? "" : ", before") << ": " << report
          << "; " << where;
      const std::vector<int32_t> tokens = report["tokens"];
      EXPECT_EQ(tokens.size(), static_cast<size_t>(n_tokens_));
      const std::vector<int32_t> prompt = report["prompt"]["tokens"];
      stats->ties += testing::NearTies(whole_.get(), prompt, tokens, testing::kNearTie,
                                       {.held = &cached_tokens_});
      stats->tokens += tokens.size();
      stats->longest_sequence = std::max(stats->longest_sequence, prompt.size() + tokens.size());
      if (!was_hit) continue;
      double* const longest = by_victim ? &stats->own_pause : &stats->pause;
      *longest = std::max(*longest, report["longest_pause_ms"].get<double>() / 1000);
    }
  }
  stats->loading = std::min(stats->pause, cluster_->LoadedFor());
}

void ChaosTest::Round(uint32_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  ChaosRound round;
  ASSERT_NO_FATAL_FAILURE(Draw(seed, &random, &round));
  std::string model;
  ASSERT_NO_FATAL_FAILURE(Load(round, &model));
  Prepare(round.kind.fault, cluster_.get());
  std::vector<Client> clients;
  WriteUntilTheFault(round, model, seed, &clients);

  cluster_->ForgetLogs();
  std::string what = round.kind.name;
  const std::function<void()> repair =
      Begin(round.kind.fault, cluster_.get(), {.node = round.victim, .other = round.other}, &random,
            &what);
  absl::SleepFor(round.lasts);
  repair();
  const absl::Time repaired = absl::Now();
  const std::string where =
      absl::StrCat(what, ": ", NameOf(round.victim), "; coordinates: ", NameOf(round.coordinator),
                   "; the second fault: ", NameOf(round.other));
  ASSERT_NO_FATAL_FAILURE(ExpectEnds(clients, repaired, where));
  RoundStats stats = {.hit_coordinator = round.HitsCoordinator(),
                      .hit_gateway = round.HitsGateway(),
                      .ended = absl::ToDoubleSeconds(absl::Now() - repaired)};
  ASSERT_NO_FATAL_FAILURE(ExpectRight(round, clients, where, &stats));
  totals_.Add(round.kind.name, stats);
  std::cout
      << absl::StreamFormat(
             "seed %u: %s %s%s%s after %.1f s for %.1f s; the longest pause was %.1f s, of "
             "which loading %.1f s, %.1f s of its own requests; requests ended %.1f s after it was "
             "repaired, %u of %u excused; served again %u times, moved %u times, %u of them "
             "without caches\n",
             seed, NameOf(round.victim), what, stats.hit_coordinator ? ", coordinates" : "",
             stats.hit_gateway ? ", is a gateway" : "", absl::ToDoubleSeconds(round.begins),
             absl::ToDoubleSeconds(round.lasts), stats.pause, stats.loading, stats.own_pause,
             stats.ended, stats.excused, stats.requests, cluster_->Says("is served again"),
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

TEST_F(ChaosTest, EveryRequestEndsAndIsRight) {
  const int rounds = FromEnvironment("STRATA_CHAOS_ROUNDS", 3);
  // The first kind, however many kinds there are.
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
  std::cout << totals_.Text();
  if (rounds >= kRoundsMany) {
    EXPECT_TRUE(totals_.HitCoordinatorOften());
    EXPECT_TRUE(totals_.HitGatewayOften());
  }
}

}  // namespace
}  // namespace strata
