// Texts on their way through a cluster, and one thing after the other that goes wrong under them:
// processes that die, hang or abort, networks that break, split, lose or crawl, and disks that are
// full or crawl when layers have to move; two such things at a time (a worker and then the
// coordinator, two of four nodes, a cable or the coordinator during a drain), and the cached
// weights of a loaded model, which vanish before a worker dies. Eight are on their way whenever it
// happens: until then each client asks for the next one when its text has ended. Every text ends,
// and each of its tokens is what it would have been; only those whose own node went may end with an
// error. After each round no process and no socket is left over.
//
// A round is made from its seed alone; in rounds in a row the kinds take turns. STRATA_CHAOS_ROUNDS
// and STRATA_CHAOS_SEED choose; without, it is one round of each of the first three kinds. Where
// somebody says how many, what cannot be made here is a failure. STRATA_CHAOS_MODEL, _CONTEXT,
// _PROMPT, _TOKENS, _BEGIN_MS and _END_S choose another model (scripts/chaos).
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

// Has one text written after the other by a node.
struct Client {
  size_t at = 0;  // the node
  std::vector<std::unique_ptr<StrataRun>> texts;
};

// One round, as its seed and the cluster's coordinator make it.
struct ChaosRound {
  FaultKind kind;
  size_t gateways[2] = {};  // nodes that take the texts
  size_t coordinator = kNodes;
  size_t victim = kNodes;
  size_t other = kNodes;       // where the second of two faults happens
  std::vector<size_t> stages;  // the nodes that hold the model's three, in order
  size_t loaded_by = 0;
  absl::Duration begins;  // the fault, after the first texts were asked for
  absl::Duration lasts;

  bool HitsCoordinator() const { return victim == coordinator; }
  bool HitsGateway() const { return victim == gateways[0] || victim == gateways[1]; }
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

  // Prints what happened, in a line.
  void Round(uint32_t seed);
  // Always in the same order, or a seed would be another round; the fault draws behind it.
  void Draw(uint32_t seed, std::mt19937* random, ChaosRound* round) const;
  void Load(const ChaosRound& round, std::string* model);
  void AskForNext(const std::string& model, const std::string& title, Client* client) const;
  // Each client asks for the next text when its own has ended, until the fault comes.
  void WriteUntilTheFault(const ChaosRound& round, const std::string& model, uint32_t seed,
                          std::vector<Client>* clients) const;
  // `where` says in a failure what has happened.
  void ExpectEnds(const std::vector<Client>& clients, absl::Time mended, const std::string& where);
  void ExpectRight(const ChaosRound& round, const std::vector<Client>& clients,
                   const std::string& where, ChaosSeen* seen);
  // Everybody is there, nothing is loaded, and nothing is left over of what was.
  void ExpectAsBefore(const std::string& model);
  std::string NameOf(size_t node) const { return cluster_->host(node).name(); }

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
  std::vector<int32_t> whole_holds_;
  ChaosTotals totals_;
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

void ChaosTest::Draw(uint32_t seed, std::mt19937* random, ChaosRound* round) const {
  const auto below = [&](size_t n) { return static_cast<size_t>((*random)() % n); };
  // Two take the texts. On their own they can still do without the others.
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
  // Only who has no file has it from a cache.
  if (round->kind.fault == Fault::kWeights) round->victim = kNodes - 1;
  if (AbortsItsWorker(round->kind.fault) && order[kNodes - 1] == round->victim) {
    std::swap(order[kNodes - 1], order[below(kNodes - 1)]);
  }
  order.pop_back();
  round->stages = std::move(order);
  round->loaded_by = below(kWithFile);
  round->begins = absl::Milliseconds(below(static_cast<size_t>(begins_ms_)));
  round->lasts = absl::Milliseconds(300 + below(6000));
  // Of two that go at once, one takes no texts.
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
  const auto ask = [&](size_t i) {
    AskForNext(model, absl::StrCat(seed, " of ", i), &(*clients)[i]);
  };
  for (size_t i = 0; i < kClients; ++i) {
    (*clients)[i].at = round.gateways[i % 2];
    ask(i);
  }
  for (const absl::Time until = absl::Now() + round.begins; absl::Now() < until;) {
    absl::SleepFor(std::min(kLookEvery, until - absl::Now()));
    for (size_t i = 0; i < kClients; ++i) {
      if ((*clients)[i].texts.back()->WaitUntil(absl::InfinitePast())) ask(i);
    }
  }
}

void ChaosTest::ExpectEnds(const std::vector<Client>& clients, absl::Time mended,
                           const std::string& where) {
  for (const Client& client : clients) {
    StrataRun* const text = client.texts.back().get();
    double loading = 0;
    bool ended = text->WaitUntil(mended + ends_within_);
    while (!ended && cluster_->LoadedFor() > loading) {
      loading = cluster_->LoadedFor();
      ended = text->WaitUntil(mended + ends_within_ + absl::Seconds(loading));
    }
    ASSERT_TRUE(ended) << "a text by " << NameOf(client.at) << " has not ended; " << where;
  }
}

void ChaosTest::ExpectRight(const ChaosRound& round, const std::vector<Client>& clients,
                            const std::string& where, ChaosSeen* seen) {
  for (const Client& client : clients) {
    for (const auto& text : client.texts) {
      ++seen->texts;
      const bool was_hit = text == client.texts.back();
      const bool of_other = EndsOthersProcess(round.kind.fault) && client.at == round.other;
      const bool by_victim = was_hit && (client.at == round.victim || of_other);
      const bool lost = (client.at == round.victim && EndsItsProcess(round.kind.fault)) || of_other;
      const Json report = text->Report();
      // A client waits some seconds for a word of its own node.
      const std::string words = report.is_object() ? "" : report.dump();
      const bool gave_up =
          round.kind.fault == Fault::kFreeze && absl::StrContains(words, kNoAnswer);
      if (!report.is_object() && by_victim && (lost || gave_up)) {
        ++seen->excused;
        continue;
      }
      ASSERT_TRUE(report.is_object())
          << "a text by " << NameOf(client.at) << (was_hit ? "" : ", before") << ": " << report
          << "; " << where;
      const std::vector<int32_t> tokens = report["tokens"];
      EXPECT_EQ(tokens.size(), static_cast<size_t>(n_tokens_));
      const std::vector<int32_t> prompt = report["prompt"]["tokens"];
      seen->ties += testing::NearTies(whole_.get(), prompt, tokens, testing::kNearTie,
                                      {.held = &whole_holds_});
      seen->tokens += tokens.size();
      seen->longest_sequence = std::max(seen->longest_sequence, prompt.size() + tokens.size());
      if (!was_hit) continue;
      double* const longest = by_victim ? &seen->own_pause : &seen->pause;
      *longest = std::max(*longest, report["longest_pause_ms"].get<double>() / 1000);
    }
  }
  seen->loading = std::min(seen->pause, cluster_->LoadedFor());
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
  const std::function<void()> mend =
      Begin(round.kind.fault, cluster_.get(), {.node = round.victim, .other = round.other}, &random,
            &what);
  absl::SleepFor(round.lasts);
  mend();
  const absl::Time mended = absl::Now();
  const std::string where =
      absl::StrCat(what, ": ", NameOf(round.victim), "; coordinates: ", NameOf(round.coordinator),
                   "; the other place: ", NameOf(round.other));
  ASSERT_NO_FATAL_FAILURE(ExpectEnds(clients, mended, where));
  ChaosSeen seen = {.hit_coordinator = round.HitsCoordinator(),
                    .hit_gateway = round.HitsGateway(),
                    .ended = absl::ToDoubleSeconds(absl::Now() - mended)};
  ASSERT_NO_FATAL_FAILURE(ExpectRight(round, clients, where, &seen));
  totals_.Add(round.kind.name, seen);
  std::cout
      << absl::StreamFormat(
             "seed %u: %s %s%s%s after %.1f s for %.1f s; the longest pause was %.1f s, of "
             "which loading %.1f s, %.1f s of its own texts; texts ended %.1f s after it was "
             "mended, %u of %u excused; served again %u times, moved %u times, %u of them without "
             "caches\n",
             seed, NameOf(round.victim), what, seen.hit_coordinator ? ", coordinates" : "",
             seen.hit_gateway ? ", takes texts" : "", absl::ToDoubleSeconds(round.begins),
             absl::ToDoubleSeconds(round.lasts), seen.pause, seen.loading, seen.own_pause,
             seen.ended, seen.excused, seen.texts, cluster_->Says("is served again"),
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

TEST_F(ChaosTest, EveryTextEndsAndIsRight) {
  const int rounds = FromEnvironment("STRATA_CHAOS_ROUNDS", 3);
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
  std::cout << totals_.Text();
  if (rounds >= kRoundsMany) {
    EXPECT_TRUE(totals_.HitCoordinatorOften());
    EXPECT_TRUE(totals_.HitGatewayOften());
  }
}

}  // namespace
}  // namespace strata
