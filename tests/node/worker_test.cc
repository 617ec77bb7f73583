// The node with real workers, which run libllama on small models: what it aborts on stays in there.
#include "node/worker.h"

#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "coordinator/node_client.h"
#include "coordinator/pipeline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/model_file.h"
#include "tests/node/node_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

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

TEST(Worker, WhatLibllamaAssertsWhileLoadingIsTheStatusOfTheStage) {
  RunningNode node(STRATA_PROGRAM);
  // Headers that are whole, so that nothing before libllama can object to them.
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
  void OnResult(wire::Result) override {}
  void OnStepError(wire::StepError) override {}
  void OnWritable() override {}
  void OnBroken(absl::Status status) override {
    status_ = std::move(status);
    broken_.Notify();
  }
  absl::Status WaitForEnd() {
    EXPECT_TRUE(broken_.WaitForNotificationWithTimeout(absl::Seconds(30)));
    return status_;
  }

 private:
  absl::Status status_;
  absl::Notification broken_;
};

class WorkerDeathInAStep : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Build(uint64_t epoch, Listener* listener) {
    const auto model = ModelFile::Open(path_);
    PipelineOptions options;
    options.model_path = path_;
    options.model_id = (*model)->id();
    options.epoch = EpochOf(epoch);
    options.stages = {{0, 3}, {3, 6}};
    options.nodes = {clients_[0].get(), clients_[1].get()};
    options.n_ctx = 128;
    options.n_batch = kBatch;
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

  // Sends a step and lets the worker of stage 1 die of `signum` before its result is back.
  absl::Status DieInAStep(int signum) {
    Listener listener;
    const std::unique_ptr<Pipeline> pipeline = Build(1, &listener);
    if (pipeline == nullptr) return absl::InternalError("not built");
    const pid_t pid = pipeline->stages()[1].worker_pid();
    kill(pid, SIGSTOP);  // the step arrives, and does not get through
    wire::Step step;
    for (int32_t i = 0; i < static_cast<int32_t>(kBatch); ++i) {
      step.add_tokens(3 + i);
      step.add_positions(i);
      step.add_slots(0);
    }
    EXPECT_TRUE(pipeline->Submit(std::move(step)).ok());
    kill(pid, signum);
    if (signum != SIGSTOP) kill(pid, SIGCONT);
    return pipeline->Diagnose(listener.WaitForEnd());
  }

  // Both nodes still serve: the same stages again, of a newer epoch.
  void ExpectNodesGoOn() {
    Listener listener;
    EXPECT_NE(Build(2, &listener), nullptr);
  }

  const std::string path_ = WriteModel(TinyLlama({}));
  RunningNode nodes_[2] = {RunningNode(STRATA_PROGRAM), RunningNode(STRATA_PROGRAM)};
  std::vector<std::unique_ptr<NodeClient>> clients_;
};

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
