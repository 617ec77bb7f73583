// The node with real workers, which run libllama on small models: its aborts end the worker alone.
#include "node/workers/worker.h"

#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/generation/pipeline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/model/model_file.h"
#include "tests/node/daemon/node_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/send_signal.h"
#include "tests/support/temp_folder.h"
#include "transport/link/frame.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using testing::EpochOf;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::MakeTestFolder;
using testing::RunningNode;
using ::testing::StartsWith;
using testing::TinyLlama;
using testing::WriteFile;

constexpr uint32_t kBatch = 96;

std::string WriteModel(const GgufBuilder& builder) {
  std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, builder.Build());
  return path;
}

// The model at `path` as the only stage of a plan.
wire::StageSpec WholeModel(const std::string& path) {
  const auto model = ModelFile::Open(path);
  EXPECT_TRUE(model.ok()) << model.status();
  wire::StageSpec spec;
  spec.set_model_id((*model)->id());
  *spec.mutable_epoch() = EpochOf(1);
  spec.set_n_stages(1);
  spec.set_model_path(path);
  spec.mutable_layers()->set_end((*model)->n_layer());
  spec.set_n_ctx(128);
  spec.set_n_seq_max(1);
  spec.set_n_batch(kBatch);
  return spec;
}

TEST(Worker, LoadsAStageAndTokenizes) {
  RunningNode node(STRATA_PROGRAM);
  const RunningNode::Load load = node.LoadStage(WholeModel(WriteModel(TinyLlama({}))));
  ASSERT_TRUE(load.status.ok()) << load.status;
  EXPECT_GT(load.progress, 0);
  EXPECT_GT(load.info.slice_bytes(), 0u);
  EXPECT_GT(load.info.kv_bytes(), 0u);
  const auto tokens = node.Tokenize(0, "ab");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_GE(tokens->tokens_size(), 2);
  EXPECT_EQ(tokens->n_ctx_train(), 128u);
}

TEST(Worker, GivesTheTextOfTokens) {
  RunningNode node(STRATA_PROGRAM);
  const RunningNode::Load load = node.LoadStage(WholeModel(WriteModel(TinyLlama({}))));
  ASSERT_TRUE(load.status.ok()) << load.status;
  const auto tokens = node.Tokenize(0, "abba");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const auto text = node.Detokenize(0, {tokens->tokens().begin(), tokens->tokens().end()});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, ::testing::EndsWith("abba"));
  for (const int32_t token : {-1, 1 << 30}) {
    EXPECT_EQ(node.Detokenize(0, {token}).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(node.Detokenize(1, {1}).status().code(), absl::StatusCode::kNotFound);
}

TEST(Worker, AnAssertionOfLibllamaWhileLoadingIsTheStatusOfTheStage) {
  RunningNode node(STRATA_PROGRAM);
  // Complete headers, so that nothing before libllama can object to them.
  const std::vector<std::pair<std::string, GgufValue>> nonsense = {
      {"llama.expert_count", GgufValue::U32(4)},
      {"llama.expert_used_count", GgufValue::U32(4)},
      {"llama.rope.scaling.type", GgufValue::String("nonsense")},
  };
  for (const auto& [key, value] : nonsense) {
    GgufBuilder builder = TinyLlama({});
    builder.Set(key, value);
    const absl::Status status = node.LoadStage(WholeModel(WriteModel(builder))).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << key;
    EXPECT_THAT(std::string(status.message()),
                StartsWith("stage 0 (layers 0-5) on node-2: the worker aborted while loading "
                           "(signal 6, Aborted): "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("GGML_ASSERT("));
  }
  EXPECT_TRUE(node.LoadStage(WholeModel(WriteModel(TinyLlama({})))).status.ok());
}

TEST(Worker, AFlippedBitThatMakesTwoTokensOneStaysInTheWorker) {
  std::string bytes = TinyLlama({}).Build();
  const size_t at = bytes.find("word261");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 6] ^= 1;  // word260 is there already
  const std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, bytes);
  RunningNode node(STRATA_PROGRAM);
  const absl::Status status = node.LoadStage(WholeModel(path)).status;
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), StartsWith("stage 0 (layers 0-5) on node-2: "));
  EXPECT_TRUE(node.LoadStage(WholeModel(WriteModel(TinyLlama({})))).status.ok());
}

// Waits for a pipeline to break.
class Listener final : public Pipeline::Listener {
 public:
  void OnResult(wire::Result result) override {
    result_ = std::move(result);
    has_result_.Notify();
  }
  void OnStepError(wire::StepError) override {}
  void OnWritable() override {}
  void OnBroken(absl::Status status) override {
    status_ = std::move(status);
    broken_.Notify();
  }
  wire::Result WaitForResult() {
    EXPECT_TRUE(has_result_.WaitForNotificationWithTimeout(absl::Seconds(30)));
    return result_;
  }
  absl::Status WaitForEnd() {
    EXPECT_TRUE(broken_.WaitForNotificationWithTimeout(absl::Seconds(30)));
    return status_;
  }

 private:
  wire::Result result_;
  absl::Status status_;
  absl::Notification has_result_, broken_;
};

class TwoWorkers : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Build(uint64_t epoch, Listener* listener, uint64_t kept = 0) {
    const auto model = ModelFile::Open(path_);
    PipelineOptions options;
    options.model_path = path_;
    options.model_id = (*model)->id();
    options.epoch = EpochOf(epoch);
    options.stages = {{.layers = {0, 3}, .node = clients_[0].get()},
                      {.layers = {3, 6}, .node = clients_[1].get()}};
    options.n_ctx = 128;
    options.n_batch = kBatch;
    for (uint32_t i = 0; kept != 0 && i < 2; ++i) {
      wire::KeptStage& stage = options.stages[i].kept.emplace();
      *stage.mutable_epoch() = EpochOf(kept);
      stage.set_stage(i);
    }
    auto pipeline = Pipeline::Build(std::move(options), listener,
                                    [](size_t, const wire::LoadProgress&) { return true; });
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  void SetUp() override {
    for (const RunningNode& node : nodes_) {
      auto client = NodeClient::Connect({.address = node.address()});
      ASSERT_TRUE(client.ok()) << client.status();
      clients_.push_back(*std::move(client));
    }
  }

  // From position 0 of slot 0 on.
  static wire::Step Prompt() {
    wire::Step step;
    for (int32_t i = 0; i < static_cast<int32_t>(kBatch); ++i) {
      step.add_tokens(3 + i);
      step.add_positions(i);
      step.add_slots(0);
    }
    return step;
  }

  const std::string path_ = WriteModel(TinyLlama({}));
  RunningNode nodes_[2] = {RunningNode(STRATA_PROGRAM), RunningNode(STRATA_PROGRAM)};
  std::vector<std::unique_ptr<NodeClient>> clients_;
};

class WorkerDeathInAStep : public TwoWorkers {
 protected:
  // Sends a step and lets the worker of stage 1 die of `signum` before its result is back.
  absl::Status DieInAStep(int signum) {
    Listener listener;
    const std::unique_ptr<Pipeline> pipeline = Build(1, &listener);
    if (pipeline == nullptr) return absl::InternalError("not built");
    const pid_t pid = pipeline->stages()[1].worker_pid();
    testing::SendSignal(pid, SIGSTOP);  // the step arrives, and does not get through
    EXPECT_TRUE(pipeline->Submit(Prompt()).ok());
    testing::SendSignal(pid, signum);
    if (signum != SIGSTOP) kill(pid, SIGCONT);
    return pipeline->Diagnose(listener.WaitForEnd());
  }

  // Both nodes still serve: the same stages again, of a newer epoch.
  void ExpectNodesGoOn() {
    Listener listener;
    EXPECT_NE(Build(2, &listener), nullptr);
  }
};

// The token that follows the prompt in a fresh sequence.
int32_t NextToken(Pipeline* pipeline, Listener* listener, wire::Step prompt) {
  wire::SequenceOpen* open = prompt.add_opens();
  open->set_slot(0);
  prompt.add_sample_rows(kBatch - 1);
  for (const int32_t token : prompt.tokens()) open->add_prompt(token);
  EXPECT_TRUE(pipeline->Submit(std::move(prompt)).ok());
  const wire::Result result = listener->WaitForResult();
  EXPECT_EQ(result.errors_size(), 0);
  return result.tokens_size() == 1 ? result.tokens(0).token() : -1;
}

TEST_F(TwoWorkers, AStageOfAnEarlierPlanIsKeptWithItsWeightsAndWithoutItsSequences) {
  Listener first, second;
  int32_t token = 0, pids[2];
  {
    const std::unique_ptr<Pipeline> pipeline = Build(1, &first);
    ASSERT_NE(pipeline, nullptr);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_FALSE(pipeline->stages()[i].kept());
      pids[i] = pipeline->stages()[i].worker_pid();
    }
    token = NextToken(pipeline.get(), &first, Prompt());
    pipeline->DisownStages();
  }
  const std::unique_ptr<Pipeline> pipeline = Build(2, &second, /*kept=*/1);
  ASSERT_NE(pipeline, nullptr);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(pipeline->stages()[i].kept());
    EXPECT_EQ(pipeline->stages()[i].load_ms(), 0u);
    EXPECT_EQ(pipeline->stages()[i].worker_pid(), pids[i]);
    const wire::GetInfoResponse info = nodes_[i].GetInfo();
    ASSERT_EQ(info.stages_size(), 1);
    EXPECT_EQ(info.stages(0).epoch().counter(), 2u);
    EXPECT_EQ(info.stages(0).state(), wire::StageStatus::SERVING);
  }
  EXPECT_EQ(NextToken(pipeline.get(), &second, Prompt()), token);
}

TEST_F(TwoWorkers, AStageThatIsMissingOrDifferentIsLoaded) {
  Listener first, second;
  const std::unique_ptr<Pipeline> before = Build(1, &first);
  ASSERT_NE(before, nullptr);
  wire::StageSpec spec = WholeModel(path_);
  *spec.mutable_epoch() = EpochOf(2);
  *spec.mutable_kept()->mutable_epoch() = EpochOf(1);
  spec.mutable_layers()->set_end(4);  // kept would be 3
  spec.set_n_stages(2);
  const RunningNode::Load load = nodes_[0].LoadStage(spec);
  ASSERT_TRUE(load.status.ok()) << load.status;
  EXPECT_FALSE(load.info.kept());
  EXPECT_EQ(nodes_[0].GetInfo().stages_size(), 2);  // the other one is as it was
  const std::unique_ptr<Pipeline> after = Build(3, &second, /*kept=*/7);
  ASSERT_NE(after, nullptr);
  EXPECT_FALSE(after->stages()[0].kept());
}

TEST_F(TwoWorkers, AStepThatIsTooLongIsRefusedAndTheNextOneGoesThrough) {
  Listener listener;
  const std::unique_ptr<Pipeline> pipeline = Build(1, &listener);
  ASSERT_NE(pipeline, nullptr);
  wire::Step step = Prompt();
  // The parts that the stages add to a step count, too.
  step.add_opens()->mutable_sampler()->set_grammar(std::string(kFrameHeaderBytesMax - 1000, 'x'));
  EXPECT_THAT(pipeline->Submit(std::move(step)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most")));
  EXPECT_GE(NextToken(pipeline.get(), &listener, Prompt()), 0);
}

TEST_F(WorkerDeathInAStep, ByAbortIsAFailedStage) {
  EXPECT_THAT(DieInAStep(SIGABRT).ToString(),
              StartsWith("ABORTED: stage 1 (layers 3-5) on node-2: the worker aborted while "
                         "serving (signal 6, Aborted)"));
  ExpectNodesGoOn();
}

TEST_F(WorkerDeathInAStep, ByTheOutOfMemoryKillerIsAFailedStage) {
  EXPECT_THAT(DieInAStep(SIGKILL).ToString(),
              StartsWith("RESOURCE_EXHAUSTED: stage 1 (layers 3-5) on node-2: the worker was "
                         "killed while serving (signal 9, Killed: "));
  ExpectNodesGoOn();
}

TEST_F(WorkerDeathInAStep, ByFreezingIsAFailedStage) {
  EXPECT_THAT(DieInAStep(SIGSTOP).ToString(), HasSubstr("stopped answering"));
  ExpectNodesGoOn();
}

}  // namespace
}  // namespace strata
