// The node with workers that misbehave (fake_worker.cc), through its service.
#include "node/workers/stage_host.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/node_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/node/daemon/node_fixture.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/send_signal.h"
#include "tests/support/temp_folder.h"
#include "transport/base/version.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using ::testing::EndsWith;
using testing::EpochOf;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeTestFolder;
using testing::RunningNode;
using ::testing::StartsWith;
using testing::TinyLlama;
using testing::WriteFile;

wire::StageSpec Spec(const std::string& how, uint32_t stage = 1, uint64_t epoch = 1) {
  wire::StageSpec spec;
  *spec.mutable_epoch() = EpochOf(epoch);
  spec.set_stage(stage);
  spec.set_n_stages(3);
  spec.mutable_layers()->set_begin(2 * stage);
  spec.mutable_layers()->set_end(2 * stage + 3);
  spec.set_model_path(how);
  return spec;
}

std::vector<wire::SelfTest> SelfTests(RunningNode* node, const std::string& model_id) {
  grpc::ClientContext context;
  wire::GetInfoRequest request;
  request.set_self_tests_of(model_id);
  wire::GetInfoResponse info;
  EXPECT_TRUE(node->stub()->GetInfo(&context, request, &info).ok());
  return {info.self_tests().begin(), info.self_tests().end()};
}

bool HasChildren() {
  siginfo_t info;
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void WaitUntilGone(pid_t pid) {
  while (kill(pid, 0) == 0) std::this_thread::yield();
}

TEST(StageHost, ASelfTestIsKeptOnceItsStageIsLinked) {
  RunningNode node(FAKE_WORKER);
  wire::StageSpec spec = Spec("fine");
  spec.set_model_id("the model");
  const RunningNode::Load load = node.LoadStage(spec);
  ASSERT_TRUE(load.status.ok()) << load.status;
  EXPECT_EQ(load.info.self_test().node_name(), "node-2");
  EXPECT_EQ(load.info.self_test().device(), "CPU");
  EXPECT_NE(load.info.self_test().unix_s(), 0);
  EXPECT_THAT(SelfTests(&node, "the model"), IsEmpty());
  ASSERT_TRUE(node.Connect(1, "somewhere").ok());
  const auto kept = SelfTests(&node, "the model");
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].SerializeAsString(), load.info.self_test().SerializeAsString());
  EXPECT_THAT(SelfTests(&node, "another"), IsEmpty());
  EXPECT_THAT(node.GetInfo().self_tests(), IsEmpty());
}

TEST(StageHost, LoadsThroughAWorkerAndPassesItsProgressOn) {
  RunningNode node(FAKE_WORKER);
  const RunningNode::Load load = node.LoadStage(Spec("fine"));
  ASSERT_TRUE(load.status.ok()) << load.status;
  EXPECT_GE(load.progress, 1);
  EXPECT_EQ(load.info.stage(), 1u);
  EXPECT_NE(load.info.worker_pid(), getpid());
  EXPECT_THAT(load.info.link_address(), StartsWith("127.0.0.1:"));
  EXPECT_TRUE(node.Tokenize(1, "four").ok());
  EXPECT_TRUE(node.Connect(1, "somewhere").ok());
}

TEST(StageHost, ReportsTheNodeAndItsStages) {
  RunningNode node(FAKE_WORKER);
  const int32_t pid = node.LoadStage(Spec("fine")).info.worker_pid();
  const wire::GetInfoResponse info = node.GetInfo();
  EXPECT_EQ(info.name(), "node-2");
  EXPECT_EQ(info.node_id().size(), 32u);
  EXPECT_EQ(info.versions().protocol(), kProtocolVersion);
  EXPECT_GT(info.memory_free(), 0u);
  EXPECT_LE(info.memory_free(), info.memory_total());
  EXPECT_GE(info.cores(), 1u);
  ASSERT_EQ(info.stages_size(), 1);
  EXPECT_EQ(info.stages(0).stage(), 1u);
  EXPECT_EQ(info.stages(0).layers().end(), 5u);
  EXPECT_EQ(info.stages(0).worker_pid(), pid);
  EXPECT_TRUE(FromWire(info.stages(0).status()).ok());
}

// Waits until the stage's worker has reported it; half a minute at most.
wire::StageStatus WaitForReport(RunningNode* node, int place) {
  const absl::Time until = absl::Now() + absl::Seconds(30);
  while (true) {
    const wire::GetInfoResponse info = node->GetInfo();
    if (place < info.stages_size() && info.stages(place).steps_done() > 0) {
      return info.stages(place);
    }
    if (absl::Now() > until) return {};
  }
}

TEST(StageHost, ReportsTheStateOfEachStage) {
  RunningNode node(FAKE_WORKER, {.ping_every_ms = 5});
  wire::StageSpec spec = Spec("/no/such/fine.gguf", 1);
  spec.set_model_id("id");
  ASSERT_TRUE(node.LoadStage(spec).status.ok());
  ASSERT_TRUE(node.LoadStage(Spec("fine", 2)).status.ok());
  for (int place = 0; place < 2; ++place) {
    const wire::StageStatus stage = WaitForReport(&node, place);
    EXPECT_EQ(stage.state(), wire::StageStatus::SERVING);
    EXPECT_EQ(stage.n_stages(), 3u);
    EXPECT_EQ(stage.model_id(), place == 0 ? "id" : "");
    EXPECT_EQ(stage.model_name(), "fine");
    EXPECT_EQ(stage.device(), "CPU");
    // Counted for each stage, though one worker has both.
    EXPECT_EQ(stage.steps_done(), 101u + static_cast<uint64_t>(place));
    EXPECT_EQ(stage.resident_bytes(), 123'456u);
    EXPECT_GT(stage.told_ms(), 0);
    EXPECT_EQ(stage.busy_ms(), 0u);
  }
}

TEST(StageHost, ReportsTheProgressOfALoad) {
  RunningNode node(FAKE_WORKER);
  grpc::ClientContext context;
  std::thread client([&] { node.LoadStage(Spec("endless"), &context); });
  wire::GetInfoResponse info;
  while (info.stages_size() == 0 || info.stages(0).progress().bytes_done() == 0) {
    info = node.GetInfo();
  }
  EXPECT_EQ(info.stages(0).state(), wire::StageStatus::LOADING);
  EXPECT_EQ(info.stages(0).progress().bytes_done(), 1u);
  EXPECT_EQ(info.stages(0).progress().bytes_total(), 2u);
  context.TryCancel();
  client.join();
  EXPECT_EQ(node.WaitForStageStatus(1, absl::StatusCode::kUnavailable).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(node.GetInfo().stages(0).state(), wire::StageStatus::FAILED);
}

TEST(StageHost, StagesOfADeviceShareAWorker) {
  RunningNode node(FAKE_WORKER);
  const int32_t first = node.LoadStage(Spec("fine", 0)).info.worker_pid();
  EXPECT_EQ(node.LoadStage(Spec("fine", 1)).info.worker_pid(), first);
  wire::StageSpec other = Spec("fine", 2);
  other.set_device("CUDA0");
  EXPECT_NE(node.LoadStage(other).info.worker_pid(), first);
}

TEST(StageHost, RefusesADeviceThatIsNotOffered) {
  RunningNode node(FAKE_WORKER, {}, {.devices = {"CUDA0"}});
  EXPECT_EQ(node.LoadStage(Spec("fine")).status,
            absl::FailedPreconditionError("stage 1 (layers 2-4) on node-2: CPU is not offered "
                                          "there, only CUDA0 (--device)"));
  EXPECT_EQ(node.GetInfo().stages_size(), 0);
  wire::StageSpec spec = Spec("fine");
  spec.set_device("CUDA0");
  EXPECT_TRUE(node.LoadStage(spec).status.ok());
}

TEST(StageHost, GivesAStageTheMemoryThatOthersLeaveOfTheLimit) {
  RunningNode node(FAKE_WORKER, {}, {.memory = {"5000,CUDA0=700"}});
  ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());
  auto shortage = ShortageOf(node.LoadStage(Spec("room", 1)).status);
  ASSERT_TRUE(shortage.has_value());
  // Weights, keys and values, compute buffers; nothing is on another device.
  EXPECT_EQ(shortage->free_bytes, 5000u - 900u - 100u - 10u - 200u);
  wire::StageSpec spec = Spec("room", 2);
  spec.set_device("CUDA0");
  spec.set_memory_bytes_max(1 << 30);  // the node ignores it
  shortage = ShortageOf(node.LoadStage(spec).status);
  ASSERT_TRUE(shortage.has_value());
  EXPECT_EQ(shortage->free_bytes, 700u);
}

TEST(StageHost, AWorkerKilledForMemoryWhileLoadingIsAShortage) {
  RunningNode node(FAKE_WORKER);
  for (const char* how : {"kill", "bad_alloc", "ggml_malloc"}) {
    const absl::Status status = node.LoadStage(Spec(how)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    // Of the machine's memory, whatever the worker's device.
    ASSERT_TRUE(ShortageOf(status).has_value()) << status;
    EXPECT_TRUE(ShortageOf(status)->on_host);
  }
  EXPECT_FALSE(ShortageOf(node.LoadStage(Spec("abort")).status).has_value());
}

TEST(StageHost, WordsOfALoadThatFailedDoNotExplainALaterDeath) {
  RunningNode node(FAKE_WORKER);
  // The words come through a pipe, the status through gRPC; the words may come later.
  bool was_memory = true;
  for (int i = 0; i < 20 && was_memory; ++i) {
    ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());  // keeps the worker
    ASSERT_EQ(node.LoadStage(Spec("full", 1)).status.code(), absl::StatusCode::kResourceExhausted);
    was_memory = ShortageOf(node.LoadStage(Spec("abort", 2)).status).has_value();
  }
  EXPECT_FALSE(was_memory);
}

TEST(StageHost, AWorkerThatAbortsWhileLoadingIsAFailedStage) {
  RunningNode node(FAKE_WORKER);
  const RunningNode::Load load = node.LoadStage(Spec("abort"));
  EXPECT_EQ(load.status,
            absl::AbortedError("stage 1 (layers 2-4) on node-2: the worker aborted while loading "
                               "(signal 6, Aborted): FAKE_ASSERT(n_head > 0) failed"));
  const wire::GetInfoResponse info = node.GetInfo();
  ASSERT_EQ(info.stages_size(), 1);
  EXPECT_EQ(info.stages(0).worker_pid(), 0);
  EXPECT_EQ(FromWire(info.stages(0).status()), load.status);

  EXPECT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  EXPECT_TRUE(node.WaitForStageStatus(1, absl::StatusCode::kUnknown).ok());
}

TEST(StageHost, OtherStagesOfADeadWorkerFailToo) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());
  EXPECT_FALSE(node.LoadStage(Spec("segv", 1)).status.ok());
  EXPECT_THAT(std::string(node.WaitForStageStatus(0).message()),
              StartsWith("stage 0 (layers 0-2) on node-2: the worker crashed while serving "
                         "(signal 11, Segmentation fault)"));
}

TEST(StageHost, AWorkerOnAnotherDeviceGoesOn) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());
  wire::StageSpec other = Spec("abort", 1);
  other.set_device("CUDA0");
  EXPECT_FALSE(node.LoadStage(other).status.ok());
  EXPECT_TRUE(node.Tokenize(0, "still here").ok());
}

TEST(StageHost, AnAbortInTheMiddleOfARequestIsItsStatus) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  EXPECT_EQ(node.Tokenize(1, "abort").status(),
            absl::AbortedError("stage 1 (layers 2-4) on node-2: the worker aborted while serving "
                               "(signal 6, Aborted): FAKE_ASSERT(n_head > 0) failed"));
  EXPECT_EQ(node.Connect(1, "somewhere").code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  EXPECT_TRUE(node.Tokenize(1, "again").ok());
}

TEST(StageHost, AKilledWorkerMayHaveTakenAllMemory) {
  RunningNode node(FAKE_WORKER);
  const int32_t pid = node.LoadStage(Spec("fine")).info.worker_pid();
  testing::SendSignal(pid, SIGKILL);
  const absl::Status status = node.WaitForStageStatus(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the worker was killed while serving (signal 9, Killed: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory"));
  EXPECT_EQ(node.Tokenize(1, "x").status(), status);
  EXPECT_TRUE(node.LoadStage(Spec("fine")).status.ok());
}

TEST(StageHost, AnUncaughtBadAllocIsOutOfMemory) {
  RunningNode node(FAKE_WORKER);
  EXPECT_EQ(node.LoadStage(Spec("bad_alloc")).status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(StageHost, AWorkerThatExitsIsAFailedStage) {
  RunningNode node(FAKE_WORKER);
  EXPECT_THAT(std::string(node.LoadStage(Spec("exit")).status.message()),
              EndsWith("the worker exited while loading (status 7)"));
}

TEST(StageHost, AFrozenWorkerIsKilled) {
  RunningNode node(FAKE_WORKER, {.ping_every_ms = 100, .silent_ms = 3'000});
  ASSERT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  const absl::Status status = node.Tokenize(1, "stop").status();
  EXPECT_EQ(status,
            absl::DeadlineExceededError("stage 1 (layers 2-4) on node-2: the worker stopped "
                                        "answering while serving (silent for 3 s, so it was "
                                        "killed)"));
  EXPECT_TRUE(node.LoadStage(Spec("fine")).status.ok());
}

TEST(StageHost, AWorkerFrozenWhileLoadingIsKilled) {
  RunningNode node(FAKE_WORKER, {.ping_every_ms = 100, .silent_ms = 1'000});
  EXPECT_EQ(node.LoadStage(Spec("stop")).status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(StageHost, AWorkerThatHangsInAStepIsKilled) {
  RunningNode node(FAKE_WORKER, {.ping_every_ms = 20});
  ASSERT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  EXPECT_TRUE(node.Tokenize(1, "busy").ok());
  const absl::Status status = node.WaitForStageStatus(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("hung while serving (more than 120 s on one step, so it was killed)"));
}

TEST(StageHost, ALongLoadIsNoHang) {
  RunningNode node(FAKE_WORKER, {.ping_every_ms = 5});
  // Longer on a step than is allowed without a load, and still answers.
  setenv("FAKE_WORKER_START", "busy", 1);
  grpc::ClientContext context;
  std::thread client([&] {
    EXPECT_EQ(node.LoadStage(Spec("endless"), &context).status.code(),
              absl::StatusCode::kCancelled);
  });
  while (node.GetInfo().stages_size() == 0 || node.GetInfo().stages(0).worker_pid() == 0) {
  }
  for (int i = 0; i < 200; ++i) {  // many pings
    EXPECT_EQ(node.WaitForStageStatus(1).code(), absl::StatusCode::kUnavailable);
  }
  context.TryCancel();
  client.join();
  unsetenv("FAKE_WORKER_START");
}

TEST(StageHost, AStepThatHangsBesideALoadIsNoticed) {
  RunningNode node(FAKE_WORKER, {.ping_every_ms = 5});
  setenv("FAKE_WORKER_START", "stuck", 1);
  const absl::Status status = node.LoadStage(Spec("endless")).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("hung while loading (more than 600 s on one step, so it was killed)"));
  unsetenv("FAKE_WORKER_START");
}

TEST(StageHost, AWorkerThatNeverStartsIsKilled) {
  setenv("FAKE_WORKER_START", "never", 1);
  RunningNode node(FAKE_WORKER, {.start_ms = 100});
  EXPECT_EQ(node.LoadStage(Spec("fine")).status,
            absl::DeadlineExceededError("stage 1 (layers 2-4) on node-2: the worker did not start "
                                        "before loading (no address after 100 ms)"));
  unsetenv("FAKE_WORKER_START");
}

TEST(StageHost, AWorkerThatDiesAtStartIsAFailedStage) {
  setenv("FAKE_WORKER_START", "abort", 1);
  RunningNode node(FAKE_WORKER);
  EXPECT_THAT(std::string(node.LoadStage(Spec("fine")).status.message()),
              EndsWith("the worker aborted before loading (signal 6, Aborted): "
                       "FAKE_ASSERT(n_head > 0) failed"));
  unsetenv("FAKE_WORKER_START");
}

TEST(StageHost, AMissingProgramFailsTheLoad) {
  RunningNode node("/no/such/program");
  const absl::Status status = node.LoadStage(Spec("fine")).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/program"));
}

TEST(StageHost, AWorkersErrorIsPassedOn) {
  RunningNode node(FAKE_WORKER);
  EXPECT_EQ(
      node.LoadStage(Spec("refuse")).status,
      absl::InvalidArgumentError("stage 1 (layers 2-4) on node-2: tensor blk.0.x is cut short"));
  EXPECT_EQ(node.LoadStage(Spec("unavailable")).status,
            absl::UnavailableError("stage 1 (layers 2-4) on node-2: the disk is gone"));
  EXPECT_EQ(node.LoadStage(Spec("silent")).status.code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  EXPECT_EQ(node.Connect(1, "nowhere"),
            absl::UnavailableError("stage 1 (layers 2-4) on node-2: nobody listens there"));
  EXPECT_TRUE(node.Tokenize(1, "still here").ok());
}

// Weights from the cache of a node whose worker finds them damaged.
class StageHostWithACache : public ::testing::Test {
 protected:
  RunningNode::Load Load(const std::string& origin) {
    GgufBuilder builder = TinyLlama({.n_layer = 6});
    const std::string path = MakeTestFolder() + "/model.gguf";
    WriteFile(path, builder.Build());
    wire::StageSpec spec = Spec("/nowhere.gguf");
    spec.set_model_id(*source_.Share(path));
    spec.set_source_address(source_.address());
    spec.set_origin(origin);
    return node_.LoadStage(spec);
  }

  testing::Source source_;
  const std::string cache_ = MakeTestFolder();
  RunningNode node_{FAKE_WORKER, {}, {}, cache_};
};

TEST_F(StageHostWithACache, DamagedWeightsAreCheckedAndLoadedAgain) {
  const RunningNode::Load load = Load("damaged once");
  EXPECT_TRUE(load.status.ok()) << load.status;
  EXPECT_EQ(load.info.stage(), 1u);
}

TEST_F(StageHostWithACache, WeightsThatAreDamagedAgainEndTheLoadWithAnErrorAboutTheDisk) {
  const absl::Status status = Load("damaged").status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 7 is damaged"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--cache-dir"));
  EXPECT_TRUE(Load("fine").status.ok());
}

TEST(StageHost, OlderEpochsOfAnotherCoordinatorAreRefused) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine", 1, 5)).status.ok());
  wire::StageSpec late = Spec("fine", 2);
  *late.mutable_epoch() = EpochOf(4, "before");
  EXPECT_EQ(
      node.LoadStage(late).status,
      absl::AbortedError("node-2: epoch 4 of before is older than the newest seen, 5 of test"));
  EXPECT_EQ(node.GetInfo().stages_size(), 1);
  *late.mutable_epoch() = EpochOf(6, "next");
  EXPECT_TRUE(node.LoadStage(late).status.ok());
}

TEST(StageHost, PlansOfOneCoordinatorCoexist) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine", 1, 5)).status.ok());
  ASSERT_TRUE(node.LoadStage(Spec("fine", 1, 4)).status.ok());
  EXPECT_EQ(node.GetInfo().stages_size(), 2);
  EXPECT_TRUE(node.Unload(1, 3).ok());  // there is none
  EXPECT_TRUE(node.Unload(1, 4).ok());
  ASSERT_EQ(node.GetInfo().stages_size(), 1);
  EXPECT_EQ(node.GetInfo().stages(0).epoch().counter(), 5);
}

TEST(StageHost, AStageIsLoadedOnce) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  EXPECT_EQ(node.LoadStage(Spec("fine")).status.code(), absl::StatusCode::kAlreadyExists);
}

TEST(StageHost, RefusesMoreStagesThanItKeeps) {
  RunningNode node(FAKE_WORKER);
  for (uint32_t i = 0; i < kStagesMax; ++i) {
    ASSERT_TRUE(node.LoadStage(Spec("fine", i)).status.ok()) << i;
  }
  EXPECT_EQ(node.LoadStage(Spec("fine", kStagesMax)).status.code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(StageHost, ThousandsOfLoadsThatFailLeaveRoomForOthers) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());
  for (uint32_t i = 1; i < 20 * kStagesMax; ++i) {
    ASSERT_EQ(node.LoadStage(Spec("refuse", i)).status.code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(node.LoadStage(Spec("fine", 100'000)).status.ok());
  EXPECT_LE(node.GetInfo().stages_size(), static_cast<int>(kStagesMax));
  EXPECT_TRUE(node.Tokenize(0, "four").ok());
}

TEST(StageHost, DeviceNamesOfStrangersMakeRoomForEachOther) {
  RunningNode node(FAKE_WORKER);
  for (size_t i = 0; i < kDevicesMax + 2; ++i) {
    wire::StageSpec spec = Spec("exit", 1);  // the same stage each time
    spec.set_device("device " + std::to_string(i));
    EXPECT_EQ(node.LoadStage(spec).status.code(), absl::StatusCode::kAborted) << i;
  }
}

TEST(StageHost, AMissingStageIsNotFound) {
  RunningNode node(FAKE_WORKER);
  EXPECT_EQ(node.Tokenize(3, "x").status(),
            absl::NotFoundError("no stage 3 of this plan on node-2"));
  EXPECT_EQ(node.Connect(3, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(node.Unload(3).ok());
}

TEST(StageHost, AWorkerWithoutStagesIsStopped) {
  RunningNode node(FAKE_WORKER);
  const int32_t pid = node.LoadStage(Spec("fine")).info.worker_pid();
  EXPECT_TRUE(node.Unload(1).ok());
  EXPECT_EQ(node.GetInfo().stages_size(), 0);
  WaitUntilGone(pid);
  // While the previous worker stops, or after that, a fresh one is started.
  for (int i = 0; i < 5; ++i) {
    const RunningNode::Load load = node.LoadStage(Spec("fine"));
    ASSERT_TRUE(load.status.ok()) << load.status;
    EXPECT_TRUE(node.Unload(1).ok());
  }
}

TEST(StageHost, UnloadingForgetsAFailedStage) {
  RunningNode node(FAKE_WORKER);
  EXPECT_FALSE(node.LoadStage(Spec("abort")).status.ok());
  EXPECT_TRUE(node.Unload(1).ok());
  EXPECT_EQ(node.GetInfo().stages_size(), 0);
}

TEST(StageHost, UnloadingEndsALoad) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());
  std::thread client([&] {
    EXPECT_EQ(node.LoadStage(Spec("endless")).status.code(), absl::StatusCode::kCancelled);
  });
  while (node.GetInfo().stages_size() < 2) {
  }
  EXPECT_TRUE(node.Unload(1).ok());
  client.join();
  EXPECT_EQ(node.GetInfo().stages_size(), 1);
  EXPECT_TRUE(node.Tokenize(0, "still here").ok());
}

// The caller of a load is asked again and again whether to continue.
TEST(StageHost, ALoadWithoutProgressCanBeCancelled) {
  RunningNode node(FAKE_WORKER);
  const auto client = NodeClient::Connect({.address = node.address()});
  ASSERT_TRUE(client.ok()) << client.status();
  bool heard = false;
  int asked_after = 0;
  const auto loaded = (*client)->LoadStage(Spec("endless"), [&](const wire::LoadProgress& done) {
    if (heard) ++asked_after;  // the worker reports progress once
    heard = heard || done.bytes_done() > 0;
    return asked_after < 2;
  });
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kCancelled);
  EXPECT_GE(asked_after, 2);
}

TEST(StageHost, AClientThatLeavesCancelsItsLoad) {
  RunningNode node(FAKE_WORKER);
  grpc::ClientContext context;
  std::thread client([&] { node.LoadStage(Spec("endless"), &context); });
  while (node.GetInfo().stages_size() == 0) {
  }
  context.TryCancel();
  client.join();
  EXPECT_EQ(node.WaitForStageStatus(1, absl::StatusCode::kUnavailable).code(),
            absl::StatusCode::kCancelled);
}

// The worker ignores the cancellation, and keeps running for another stage.
TEST(StageHost, AStageThatWasLoadedAfterItsCancellationIsUnloaded) {
  RunningNode node(FAKE_WORKER, {.ping_every_ms = 20});
  ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());
  grpc::ClientContext context;
  std::thread client([&] { node.LoadStage(Spec("late"), &context); });
  while (node.GetInfo().stages_size() < 2 ||
         node.GetInfo().stages(1).state() != wire::StageStatus::LOADING) {
  }
  context.TryCancel();
  client.join();
  const absl::Time until = absl::Now() + absl::Seconds(30);
  int32_t unloaded = 0;
  while (unloaded == 0 && absl::Now() < until) {
    unloaded = node.Tokenize(0, "how many were unloaded")->tokens(0);
  }
  EXPECT_EQ(unloaded, 1);
  EXPECT_EQ(node.WaitForStageStatus(1, absl::StatusCode::kUnavailable).code(),
            absl::StatusCode::kCancelled);
}

// The worker may have begun to unload: the stage does not serve again.
TEST(StageHost, AStageWhoseUnloadTimedOutStaysUnloading) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("unload hangs")).status.ok());
  EXPECT_EQ(node.Unload(1, 1, absl::Seconds(2)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(node.Tokenize(1, "the worker's answer").ok());
  ASSERT_EQ(node.GetInfo().stages_size(), 1);
  EXPECT_EQ(node.GetInfo().stages(0).state(), wire::StageStatus::UNLOADING);
  EXPECT_TRUE(node.Unload(1).ok());
  EXPECT_EQ(node.GetInfo().stages_size(), 0);
}

TEST(StageHost, AClientsDeadlineReachesTheWorker) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine")).status.ok());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  wire::TokenizeRequest request;
  *request.mutable_epoch() = EpochOf(1);
  request.set_stage(1);
  request.set_text("endless");
  wire::TokenizeResponse response;
  EXPECT_EQ(FromGrpc(node.stub()->Tokenize(&context, request, &response)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(node.Tokenize(1, "still here").ok());
}

TEST(StageHost, StoppingEndsLoadsAndCallsAndLeavesNoProcessBehind) {
  RunningNode node(FAKE_WORKER);
  ASSERT_TRUE(node.LoadStage(Spec("fine", 0)).status.ok());
  wire::StageSpec endless = Spec("endless", 1);
  endless.set_device("CUDA0");
  std::thread loading([&] {
    EXPECT_EQ(node.LoadStage(endless).status,
              absl::UnavailableError("stage 1 (layers 2-4) on node-2: the node is stopping"));
  });
  std::thread calling([&] { EXPECT_FALSE(node.Tokenize(0, "endless").ok()); });
  while (node.GetInfo().stages_size() < 2) {
  }
  node.Stop();
  loading.join();
  calling.join();
  EXPECT_FALSE(HasChildren());
}

TEST(StageHost, StoppingKillsAFrozenWorker) {
  RunningNode node(FAKE_WORKER, {.stop_ms = 50});
  const int32_t pid = node.LoadStage(Spec("fine")).info.worker_pid();
  testing::SendSignal(pid, SIGSTOP);
  node.Stop();
  EXPECT_FALSE(HasChildren());
}

TEST(WorkerDeath, LongLastWordsAreShortenedToTheirEnd) {
  ChildExit exit;
  exit.signal = SIGABRT;
  for (int i = 0; i < 1000; ++i) exit.last_words += "line " + std::to_string(i) + "\n\n";
  const absl::Status lines = DeathFromExit(exit).ToStatus("while loading");
  EXPECT_LT(lines.message().size(), 1200u);
  EXPECT_THAT(std::string(lines.message()), EndsWith("line 998 | line 999"));
  exit.last_words = std::string(4000, 'x') + "end\n";
  const absl::Status line = DeathFromExit(exit).ToStatus("while loading");
  EXPECT_LT(line.message().size(), 1200u);
  EXPECT_THAT(std::string(line.message()), EndsWith("xend"));
}

}  // namespace
}  // namespace strata
