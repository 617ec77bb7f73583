// Workers and nodes that are lost in the middle of requests, which go on as if nothing had been.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/membership/flap_tracker.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "llama.h"
#include "node/gateway/generation_proto.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/frame.pb.h"
#include "shard/device/engine.h"
#include "tests/integration/api_cluster.h"
#include "tests/integration/near_ties.h"
#include "tests/integration/processes.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/send_signal.h"
#include "tests/support/test_key.h"
#include "tests/support/whole_model.h"
#include "transport/rpc/forwarding.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

using ::strata::testing::EventsOf;
using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::strata::testing::kNearTie;
using ::strata::testing::TwoNodes;
using ::strata::testing::WholeModel;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// The demo model on both nodes, and requests in flight through both.
class Recovery : public TwoNodes {
 protected:
  static constexpr int kRequests = 3;
  static constexpr size_t kTokens = 900;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(LoadModel());
    BeginRequests();
  }
  void StartBoth() {
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    coordinator_ = Coordinator();
    ASSERT_LT(coordinator_, 2u);
  }
  void LoadModel() {
    ASSERT_NO_FATAL_FAILURE(StartBoth());
    const Json loaded = LoadOnBoth(/*seqs=*/kRequests, Context());
    ASSERT_TRUE(loaded.is_object()) << loaded;
    model_ = loaded["model"];
  }
  static std::string PromptOf(int i) { return absl::StrCat("Chapter ", i, "\n"); }
  std::unique_ptr<Program> BeginRequest(int i) {
    std::vector<std::string> args = {
        "run",          model_,  PromptOf(i), "--max-tokens", absl::StrCat(kTokens),
        "--ignore-eos", "--json"};
    for (const std::string& arg : SamplingArgs()) args.push_back(arg);
    return Strata(AskedNode(), std::move(args));
  }
  virtual uint32_t Context() const { return 1024; }
  virtual std::vector<std::string> SamplingArgs() const { return {"--temperature", "0"}; }
  // Returns how many tokens are not those of libllama alone, though within rounding.
  virtual size_t Differ(WholeModel* whole, const std::vector<int32_t>& prompt,
                        const std::vector<int32_t>& tokens) const {
    return testing::NearTies(whole, prompt, tokens, kNearTie);
  }
  void BeginRequests() {
    for (int i = 0; i < kRequests; ++i) requests_.push_back(BeginRequest(i));
    ASSERT_TRUE(Eventually([this] { return TokensWritten() > TokensBeforeTheFault(); }));
  }
  virtual uint64_t TokensBeforeTheFault() const { return 60; }

  // The node that clients use: their connections outlive what the test does.
  virtual size_t AskedNode() const { return coordinator_; }

  // The first sample of a family; nullopt: there is none.
  std::optional<uint64_t> Metric(absl::string_view family) {
    const std::string page = Get(coordinator_, "/metrics").body;
    const size_t line = page.find(absl::StrCat("\n", family, "{"));
    const size_t at = line == std::string::npos ? line : page.find("} ", line);
    uint64_t value = 0;
    if (at == std::string::npos ||
        !absl::SimpleAtoi(page.substr(at + 2, page.find('\n', at) - at - 2), &value)) {
      return std::nullopt;
    }
    return value;
  }
  uint64_t TokensWritten() { return Metric("strata_tokens_total").value_or(0); }

  void ExpectWholeOutputs(const char* said = "is served again",
                          const char* kept = "1 of 2 stages kept") {
    StartEngine();
    auto whole = WholeModel::Open(STRATA_DEMO_MODEL, {.n_ctx = Context(), .n_seq_max = 1});
    ASSERT_TRUE(whole.ok()) << whole.status();
    size_t ties = 0;
    double pause_ms = 0;
    for (const auto& request : requests_) {
      ASSERT_EQ(request->ExitStatus(), 0) << request->err();
      const Json report = Json::parse(request->out(), nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(report.is_object()) << request->out();
      const std::vector<int32_t> tokens = report["tokens"];
      EXPECT_EQ(tokens.size(), kTokens);
      pause_ms = std::max(pause_ms, report["longest_pause_ms"].get<double>());
      ties += Differ(whole->get(), report["prompt"]["tokens"], tokens);
    }
    const std::string log = nodes_[AskedNode()]->err();
    ASSERT_THAT(log, HasSubstr(said)) << "nothing was lost";
    EXPECT_THAT(log, HasSubstr(kept));
    std::cout << log.substr(log.rfind(said)) << "; the longest pause was " << pause_ms << " ms; "
              << ties << " of " << requests_.size() * kTokens
              << " tokens are those of libllama alone within rounding, the others are the same\n";
    if (std::getenv("STRATA_CHAOS_LOGS") != nullptr) std::cout << log << "\n";
  }

  // The worker of a node's stage; 0: it has none.
  pid_t Worker(size_t node) {
    const Json stages = Node(coordinator_, node)["stages"];
    return stages.empty() ? 0 : stages[0]["worker_pid"].get<pid_t>();
  }

  // Expects `what` while the node is there and silent.
  template <typename Fn>
  void WhileFrozen(size_t node, Fn what) {
    const std::vector<pid_t> frozen = WithDescendants((*nodes_[node])->pid());
    for (const pid_t pid : frozen) kill(pid, SIGSTOP);
    what();
    for (const pid_t pid : frozen) kill(pid, SIGCONT);
  }

  std::string model_;
  size_t coordinator_ = 99;
  std::vector<std::unique_ptr<Program>> requests_;
};

// What users of others miss most: a worker's death that ends nothing, exo #2120 #1591, petals #587,
// llama.cpp #25938 #22643 #17647, gpustack #1151, distributed-llama #140.
TEST_F(Recovery, RequestsGoOnWhenAWorkerIsKilled) {
  testing::SendSignal(Worker(1 - coordinator_), SIGKILL);
  ExpectWholeOutputs();
}

TEST_F(Recovery, RequestsGoOnWhenAWorkerOfTheCoordinatorsOwnNodeAborts) {
  testing::SendSignal(Worker(coordinator_), SIGABRT);
  ExpectWholeOutputs();
}

TEST_F(Recovery, RequestsGoOnWhenANodeIsKilled) {
  kill((*nodes_[1 - coordinator_])->pid(), SIGKILL);
  ExpectWholeOutputs();
}

TEST_F(Recovery, RequestsGoOnWhenANodeIsStopped) {
  kill((*nodes_[1 - coordinator_])->pid(), SIGTERM);
  ExpectWholeOutputs();
}

TEST_F(Recovery, RequestsGoOnWhenANodeFreezes) {
  WhileFrozen(1 - coordinator_, [this] { ExpectWholeOutputs(); });
}

// Tokens that are sampled: each is a function of the seed and the position.
class RecoveryOfSampledSequences : public Recovery {
 protected:
  std::vector<std::string> SamplingArgs() const override {
    return {"--temperature", "0.8",     "--top-k", "40",     "--top-p",
            "0.95",          "--min-p", "0",       "--seed", "11"};
  }
  size_t Differ(WholeModel* whole, const std::vector<int32_t>& prompt,
                const std::vector<int32_t>& tokens) const override {
    wire::SequenceOpen open;
    open.mutable_prompt()->Add(prompt.begin(), prompt.end());
    wire::SamplerSettings* const sampler = open.mutable_sampler();
    sampler->set_seed(11);
    sampler->set_temperature(0.8f);
    sampler->set_top_k(40);
    sampler->set_top_p(0.95f);
    sampler->set_ignore_eog(true);
    return testing::NearDraws(whole, open, tokens, kNearTie);
  }
};

TEST_F(RecoveryOfSampledSequences, GoOnWithTheirSeedWhenANodeIsKilled) {
  kill((*nodes_[1 - coordinator_])->pid(), SIGKILL);
  ExpectWholeOutputs();
}

// Sequences longer than their context, whose first half they forget whenever it is full.
template <typename Base>
class WithShiftedSequences : public Base {
 protected:
  uint32_t Context() const override { return 256; }
  uint64_t TokensBeforeTheFault() const override { return Base::kRequests * 400; }
  std::vector<std::string> SamplingArgs() const override {
    return {"--temperature", "0", "--context-shift"};
  }
  size_t Differ(WholeModel* whole, const std::vector<int32_t>& prompt,
                const std::vector<int32_t>& tokens) const override {
    return testing::NearTies(whole, prompt, tokens, kNearTie, {.shifted_at = Context()});
  }
};
using RecoveryOfShiftedSequences = WithShiftedSequences<Recovery>;

TEST_F(RecoveryOfShiftedSequences, GoOnWhenAWorkerIsKilled) {
  testing::SendSignal(Worker(1 - coordinator_), SIGKILL);
  ExpectWholeOutputs();
}

TEST_F(Recovery, RequestsGoOnWhileANodeIsDrained) {
  const auto drain = Strata(coordinator_, {"drain", kNames[1 - coordinator_]});
  EXPECT_EQ(drain->ExitStatus(), 0) << drain->err();
  EXPECT_LT(TokensWritten(), kRequests * kTokens) << "they have ended before";
  const Json status = Run(coordinator_, {"status", "--json"});
  for (const auto& node : status["nodes"]) {
    EXPECT_EQ(node["stages"].size(), node["name"] == kNames[coordinator_] ? 2u : 0u) << status;
  }
  ExpectWholeOutputs("has moved");
  EXPECT_THAT(nodes_[coordinator_]->err(), HasSubstr("with their caches"));
}

// While one plan takes over from the other: then neither serves the model.
TEST_F(Recovery, RequestsEndWhenTheirModelIsUnloadedWhileItMoves) {
  const auto drain = Strata(coordinator_, {"drain", kNames[1 - coordinator_]});
  EXPECT_TRUE(
      Eventually([this] { return Metric("strata_model_serving") == 0u; }, absl::Milliseconds(1)));
  EXPECT_TRUE(Run(coordinator_, {"unload", model_, "--json"}).is_object());
  for (const auto& request : requests_) {
    EXPECT_NE(request->ExitStatus(), 0);
    EXPECT_THAT(request->err(), HasSubstr("was unloaded"));
  }
  drain->ExitStatus();
  EXPECT_TRUE(Eventually([this] { return Node(coordinator_, coordinator_)["stages"].empty(); }));
}

TEST_F(Recovery, LayersGoBackToANodeThatReturns) {
  const size_t other = 1 - coordinator_;
  kill((*nodes_[other])->pid(), SIGKILL);
  // A node that is back before gets its layers at once.
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(nodes_[coordinator_]->err(), "is served again");
  })) << nodes_[coordinator_]->err();
  ASSERT_NO_FATAL_FAILURE(StartAgain(other));
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(nodes_[coordinator_]->err(), "has moved") && Worker(other) != 0;
  })) << nodes_[coordinator_]->err();
  ExpectWholeOutputs("has moved");
}

// Layers that are merged into one stage while the model is idle, and split again under requests.
class RecoveryOfMergedLayers : public Recovery {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(LoadModel()); }

  size_t Stages(size_t node) { return Node(coordinator_, node)["stages"].size(); }

  void ExpectTheyPartAfterTheReturnOf(size_t other);
};

void RecoveryOfMergedLayers::ExpectTheyPartAfterTheReturnOf(size_t other) {
  coordinator_ = 1 - other;  // from now on
  kill((*nodes_[other])->pid(), SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(nodes_[coordinator_]->err(), "has moved") && Stages(coordinator_) == 1;
  })) << nodes_[coordinator_]->err();
  ASSERT_NO_FATAL_FAILURE(StartAgain(other));
  // The node measures itself before it gets layers: until then new requests replace those that end.
  absl::Time next = absl::InfinitePast();
  ASSERT_TRUE(Eventually([&] {
    const auto is_running = [](const auto& request) {
      return !(*request)->WaitForExit(absl::ZeroDuration());
    };
    if (absl::Now() > next && std::ranges::count_if(requests_, is_running) < kRequests) {
      requests_.push_back(BeginRequest(static_cast<int>(requests_.size())));
      next = absl::Now() + absl::Milliseconds(500);
    }
    return Worker(other) != 0;
  })) << nodes_[coordinator_]->err();
  ExpectWholeOutputs("moves to where its layers were assigned", "0 of 2 stages kept");
  EXPECT_THAT(nodes_[coordinator_]->err(), ContainsRegex("go on: [1-9][0-9]*, with their caches"));
}

TEST_F(RecoveryOfMergedLayers, PartWithTheirCachesWhenANodeReturns) {
  ExpectTheyPartAfterTheReturnOf(1 - coordinator_);
}

TEST_F(RecoveryOfMergedLayers, PartWithTheirCachesWhenTheCoordinatorReturns) {
  ExpectTheyPartAfterTheReturnOf(coordinator_);
}

// Through the node that does not coordinate: it keeps its requests, and coordinates from then on.
class RecoveryOfTheCoordinator : public Recovery {
 protected:
  size_t AskedNode() const override { return 1 - coordinator_; }
};

TEST_F(RecoveryOfTheCoordinator, RequestsGoOnWhenItIsKilled) {
  kill((*nodes_[coordinator_])->pid(), SIGKILL);
  ExpectWholeOutputs();
}

TEST_F(RecoveryOfTheCoordinator, RequestsGoOnWhenItIsStopped) {
  kill((*nodes_[coordinator_])->pid(), SIGTERM);
  ExpectWholeOutputs();
}

TEST_F(RecoveryOfTheCoordinator, RequestsGoOnWhenItFreezes) {
  WhileFrozen(coordinator_, [this] { ExpectWholeOutputs(); });
}

using RecoveryOfShiftedSequencesAndTheCoordinator = WithShiftedSequences<RecoveryOfTheCoordinator>;

TEST_F(RecoveryOfShiftedSequencesAndTheCoordinator, GoOnWhenItIsKilled) {
  kill((*nodes_[coordinator_])->pid(), SIGKILL);
  ExpectWholeOutputs();
}

// The first loss costs nothing, the second one ten seconds.
TEST_F(RecoveryOfMergedLayers, StayAwayLongerFromANodeThatComesAndGoes) {
  const size_t other = 1 - coordinator_;
  std::vector<absl::Duration> away;
  for (int i = 0; i < 2; ++i) {
    const absl::Time lost = absl::Now();
    kill((*nodes_[other])->pid(), SIGKILL);
    // Only a node that is gone counts as lost.
    ASSERT_TRUE(Eventually([&] { return Node(coordinator_, other)["state"] == "gone"; }));
    ASSERT_NO_FATAL_FAILURE(StartAgain(other));
    ASSERT_TRUE(Eventually([&] { return Worker(other) != 0; })) << nodes_[coordinator_]->err();
    away.push_back(absl::Now() - lost);
  }
  std::cout << "back after " << away[0] << ", then after " << away[1] << "\n";
  EXPECT_GE(away[1], kExclusionFirst);
}

// Streams of the API, read from the node that stays.
class RecoveryOfStreams : public RecoveryOfTheCoordinator,
                          public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(LoadModel());
    for (int i = 0; i < kRequests; ++i) {
      streams_.push_back(std::make_unique<HttpClient>(ports_[AskedNode()]));
      const Json ask = {{"model", model_},    {"prompt", PromptOf(i)}, {"max_tokens", kTokens},
                        {"ignore_eos", true}, {"temperature", 0},      {"stream", true},
                        {"logprobs", 1}};
      ASSERT_TRUE(streams_.back()->Post("/v1/completions", ask.dump()));
    }
    ASSERT_TRUE(Eventually([this] { return TokensWritten() > 60; }));
  }
  // With true the node that coordinates goes, with false the other one.
  size_t AskedNode() const override { return GetParam() ? 1 - coordinator_ : coordinator_; }

  std::vector<std::unique_ptr<HttpClient>> streams_;
};

TEST_P(RecoveryOfStreams, GoOnWhenANodeIsKilled) {
  kill((*nodes_[1 - AskedNode()])->pid(), SIGKILL);
  std::vector<HttpReply> replies;
  for (const auto& stream : streams_) replies.push_back(stream->Read());
  EXPECT_THAT(nodes_[AskedNode()]->err(), HasSubstr("is served again")) << "nothing was lost";
  StartEngine();
  auto whole = WholeModel::Open(STRATA_DEMO_MODEL, {.n_ctx = Context(), .n_seq_max = 1});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const llama_vocab* const vocab = llama_model_get_vocab((*whole)->model());
  std::map<std::string, int32_t> ids;  // by the token's text
  for (int32_t id = 0; id < llama_vocab_n_tokens(vocab); ++id) {
    char piece[256];
    const int32_t n = llama_token_to_piece(vocab, id, piece, sizeof(piece), 0, true);
    const bool is_byte = (llama_vocab_get_attr(vocab, id) & LLAMA_TOKEN_ATTR_BYTE) != 0;
    if (n > 0 && !is_byte) ids[std::string(piece, static_cast<size_t>(n))] = id;
  }
  size_t ties = 0;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(replies[i].status, 200) << replies[i].body;
    const std::vector<Json> events = EventsOf(replies[i].body);
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
    std::string text, said;
    std::vector<int32_t> tokens;
    for (const Json& event : events) {
      const Json& choice = event["choices"][0];
      text += choice["text"].get<std::string>();
      if (!choice["logprobs"].is_object()) continue;
      for (const std::string token : choice["logprobs"]["tokens"]) {
        ASSERT_TRUE(ids.contains(token)) << token;
        tokens.push_back(ids[token]);
        said += token;
      }
    }
    EXPECT_EQ(tokens.size(), kTokens);
    EXPECT_EQ(text, said);
    const std::string prompt = PromptOf(i);
    std::vector<int32_t> prompt_tokens(prompt.size() + 2);
    prompt_tokens.resize(static_cast<size_t>(llama_tokenize(
        vocab, prompt.data(), static_cast<int32_t>(prompt.size()), prompt_tokens.data(),
        static_cast<int32_t>(prompt_tokens.size()), true, true)));
    ties += testing::NearTies(whole->get(), prompt_tokens, tokens, kNearTie);
  }
  std::cout << ties << " of " << kRequests * kTokens
            << " tokens are those of libllama alone within rounding, the others are the same\n";
}

INSTANTIATE_TEST_SUITE_P(OfTheOtherNode, RecoveryOfStreams, ::testing::Bool());

// A model that is loaded for one request alone: it stays no longer, also where its coordinator
// goes.
class RecoveryOfALeasedModel : public RecoveryOfTheCoordinator {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartBoth());
    model_ = STRATA_DEMO_MODEL;
    requests_.push_back(BeginRequest(0));
    ASSERT_TRUE(Eventually([this] { return TokensWritten() > 60; }));
  }
  std::vector<std::string> SamplingArgs() const override {
    return {"--temperature",
            "0",
            "--ctx",
            "1024",
            "--assign",
            absl::StrCat(kNames[coordinator_], "=0-2,", kNames[1 - coordinator_], "=3-5")};
  }
  void ExpectItGoesWithItsRequest() {
    ExpectWholeOutputs();
    Json node;
    EXPECT_TRUE(Eventually([&] {
      node = Node(1 - coordinator_, 1 - coordinator_);
      return node["state"] == "alive" && node["stages"].empty();
    })) << node;
  }
};

TEST_F(RecoveryOfALeasedModel, StaysForItsRequestWhenItsCoordinatorIsKilled) {
  kill((*nodes_[coordinator_])->pid(), SIGKILL);
  ExpectItGoesWithItsRequest();
}

TEST_F(RecoveryOfALeasedModel, StaysForItsRequestWhenItsCoordinatorIsStopped) {
  kill((*nodes_[coordinator_])->pid(), SIGTERM);
  ExpectItGoesWithItsRequest();
}

TEST_F(RecoveryOfALeasedModel, StaysForItsRequestWhenItsCoordinatorFreezes) {
  WhileFrozen(coordinator_, [this] { ExpectItGoesWithItsRequest(); });
}

// All stages are on the coordinator: the other node knows of the model from its messages alone.
class RecoveryOfAllStages : public TwoNodes {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    coordinator_ = Coordinator();
    ASSERT_LT(coordinator_, 2u);
    const std::string assign = absl::StrCat(kNames[coordinator_], "=0-5");
    const Json loaded =
        Run(coordinator_, {"load", STRATA_DEMO_MODEL, "--assign", assign, "--json"});
    ASSERT_TRUE(loaded.is_object()) << loaded;
    model_ = loaded["model"];
  }

  void ExpectRequestGoesOnAfter(int signal) {
    const auto run =
        Strata(1 - coordinator_, {"run", model_, "One\n", "--max-tokens", "900", "--ignore-eos"});
    ASSERT_EQ(run->FirstLine(), "One") << run->err();
    kill((*nodes_[coordinator_])->pid(), signal);
    EXPECT_EQ(run->ExitStatus(), 0) << run->err();
    EXPECT_THAT(nodes_[1 - coordinator_]->err(), HasSubstr("is served again"));
  }

  size_t coordinator_ = 99;
  std::string model_;
};

TEST_F(RecoveryOfAllStages, AreLoadedAgainWhenTheirCoordinatorIsKilled) {
  ExpectRequestGoesOnAfter(SIGKILL);
}

TEST_F(RecoveryOfAllStages, AreLoadedAgainWhenTheirCoordinatorIsStopped) {
  ExpectRequestGoesOnAfter(SIGTERM);
}

// While the leadership changes, and before the next coordinator has the model.
TEST_F(RecoveryOfAllStages, AreThereForRequestsThatBeginWhileTheirCoordinatorStops) {
  constexpr int kNumRequests = 30;
  std::vector<HttpReply> replies(kNumRequests);
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumRequests; ++i) {
    if (i == kNumRequests / 3) kill((*nodes_[coordinator_])->pid(), SIGTERM);
    threads.emplace_back([this, i, &replies] {
      replies[i] = Post(1 - coordinator_, "/v1/completions",
                        {{"prompt", absl::StrCat(i, "\n")}, {"max_tokens", 8}});
    });
    absl::SleepFor(absl::Milliseconds(10));
  }
  for (std::thread& thread : threads) thread.join();
  for (const HttpReply& reply : replies) EXPECT_EQ(reply.status, 200) << reply.body;
  if (HasFailure()) std::cout << nodes_[coordinator_]->err() << nodes_[1 - coordinator_]->err();
}

TEST_F(RecoveryOfAllStages, AreNotLoadedAgainOnceTheyWereUnloaded) {
  ASSERT_TRUE(Run(coordinator_, {"unload", model_, "--json"}).is_object());
  // The other hears of it four times a second.
  absl::SleepFor(absl::Seconds(3));
  kill((*nodes_[coordinator_])->pid(), SIGKILL);
  const size_t other = 1 - coordinator_;
  Json status;
  EXPECT_TRUE(Eventually([&] {
    status = Run(other, {"status", "--json"});
    if (!status.is_object()) return false;
    for (const auto& each : status["nodes"]) {
      if (each["name"] == kNames[other]) return each["id"] == status["coordinator"];
    }
    return false;
  })) << status;
  EXPECT_NE(Strata(other, {"run", model_, "One", "--max-tokens", "4"})->ExitStatus(), 0);
  EXPECT_THAT(nodes_[other]->err(), Not(HasSubstr("is served again")));
}

// A load through the other node, which passes it on to the next coordinator: to itself.
class RecoveryOfALoad : public TwoNodes {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    coordinator_ = Coordinator();
    ASSERT_LT(coordinator_, 2u);
    load_ = Strata(1 - coordinator_, {"load", STRATA_DEMO_MODEL, "--json"});
    // The load takes some tens of milliseconds.
    ASSERT_TRUE(Eventually([this] { return absl::StrContains(load_->err(), " layers, "); },
                           absl::Milliseconds(1)))
        << load_->err();
  }

  void ExpectItGoesOnAfter(int signal) {
    kill((*nodes_[coordinator_])->pid(), signal);
    EXPECT_EQ(load_->ExitStatus(), 0) << load_->err();
    const auto run = Strata(1 - coordinator_, {"run", "Strata demo", "One", "--max-tokens", "4"});
    EXPECT_EQ(run->ExitStatus(), 0) << run->err() << nodes_[1 - coordinator_]->err();
  }

  size_t coordinator_ = 99;
  std::unique_ptr<Program> load_;
};

TEST_F(RecoveryOfALoad, GoesOnWhenItsCoordinatorIsKilled) { ExpectItGoesOnAfter(SIGKILL); }

TEST_F(RecoveryOfALoad, GoesOnWhenItsCoordinatorIsStopped) { ExpectItGoesOnAfter(SIGTERM); }

TEST_F(RecoveryOfALoad, DoesNotGoOnWhenItsModelIsUnloaded) {
  EXPECT_TRUE(Run(coordinator_, {"unload", "Strata demo", "--json"}).is_object());
  load_->ExitStatus();  // it may have ended before
  const auto run = Strata(coordinator_, {"run", "Strata demo", "One", "--max-tokens", "4"});
  EXPECT_NE(run->ExitStatus(), 0);
}

// A forwarded request, as from a node that still takes this one for the coordinator: it fails at
// once.
TEST_F(TwoNodes, ARequestComesBackFromANodeThatDoesNotCoordinate) {
  const size_t coordinator = Coordinator();
  ASSERT_LT(coordinator, 2u);
  testing::UseTestKey();
  const auto stub = wire::Coordinator::NewStub(MakeChannel(addresses_[1 - coordinator]));
  grpc::ClientContext context;
  context.AddMetadata(kForwardedKey, "1");
  wire::GenerateRequest request;
  request.set_model("any");
  request.set_prompt("One");
  const auto reader = stub->Generate(&context, request);
  wire::GenerateEvent event;
  EXPECT_FALSE(reader->Read(&event)) << event.ShortDebugString();
  const absl::Status status = RequestStatusFromGrpc(reader->Finish());
  EXPECT_TRUE(IsLeaderChanged(status)) << status;
}

TEST_F(TwoNodes, AModelThatHasNoPlaceLeftSaysWhatIsMissingAndComesBackWithItsNode) {
  const size_t coordinator = Coordinator();
  ASSERT_LT(coordinator, 2u);
  const size_t other = 1 - coordinator;
  const Json loaded =
      Run(coordinator, {"load", STRATA_DEMO_MODEL, "--exclude", kNames[coordinator], "--json"});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  const std::string model = loaded["model"];
  std::vector<std::unique_ptr<Program>> runs;
  for (int i = 0; i < 3; ++i) {
    runs.push_back(
        Strata(coordinator, {"run", model, "One\n", "--max-tokens", "900", "--ignore-eos"}));
    ASSERT_EQ(runs.back()->FirstLine(), "One") << runs.back()->err();
  }
  HttpClient stream(ports_[coordinator]);
  ASSERT_TRUE(stream.Post("/v1/completions", Json({{"model", model},
                                                   {"prompt", "One\n"},
                                                   {"max_tokens", 900},
                                                   {"ignore_eos", true},
                                                   {"stream", true}})
                                                 .dump()));
  kill((*nodes_[other])->pid(), SIGKILL);
  // Each request ends with one error that says what is missing.
  for (const auto& run : runs) {
    EXPECT_NE(run->ExitStatus(), 0);
    EXPECT_THAT(run->err(), ContainsRegex("[0-9.]+ MiB are needed"));
  }
  EXPECT_THAT(stream.Read().body, ContainsRegex("[0-9.]+ MiB are needed"));
  const auto late = Strata(coordinator, {"run", model, "One", "--max-tokens", "4"});
  EXPECT_NE(late->ExitStatus(), 0);
  EXPECT_THAT(late->err(), ContainsRegex("[0-9.]+ MiB are needed"));
  // Nor does a load by hand that fails keep the model from coming back.
  const auto load =
      Strata(coordinator, {"load", STRATA_DEMO_MODEL, "--exclude", kNames[coordinator]});
  EXPECT_NE(load->ExitStatus(), 0);
  EXPECT_THAT(load->err(), ContainsRegex("[0-9.]+ MiB are needed"));

  ASSERT_NO_FATAL_FAILURE(StartAgain(other));
  std::string last;
  EXPECT_TRUE(Eventually([&] {
    const auto run = Strata(coordinator, {"run", model, "One", "--max-tokens", "4"});
    last = run->err();
    return run->ExitStatus() == 0;
  })) << last;
}

// The next coordinator, which is the request's own node, waits a minute for a node to come.
TEST_F(TwoNodes, ARequestThatTheNextCoordinatorHasNoPlaceForSaysWhatIsMissing) {
  const size_t coordinator = Coordinator();
  ASSERT_LT(coordinator, 2u);
  const size_t other = 1 - coordinator;
  const Json loaded =
      Run(coordinator, {"load", STRATA_DEMO_MODEL, "--exclude", kNames[other], "--json"});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  const auto run =
      Strata(other, {"run", loaded["model"], "One\n", "--max-tokens", "900", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  kill((*nodes_[coordinator])->pid(), SIGKILL);
  EXPECT_NE(run->ExitStatus(), 0);
  EXPECT_THAT(run->err(), ContainsRegex("[0-9.]+ MiB are needed"));
}

}  // namespace
}  // namespace strata
