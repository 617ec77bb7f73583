#include "shard/worker/worker_service.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/node.grpc.pb.h"
#include "shard/model/model_file.h"
#include "shard/model/weight_blocks.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include "transport/base/clock.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using ::strata::testing::MakeTestFolder;
using ::strata::testing::TinyLlama;
using ::strata::testing::WriteFile;

// More than gRPC has threads for callbacks: half the cores, and 16 at most.
constexpr uint32_t kStages = 20;

// A worker that holds a whole model, each layer a stage of its own.
class WorkerOfManyStages : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = MakeTestFolder() + "/model.gguf";
    WriteFile(path, TinyLlama({.n_layer = kStages}).Build());
    const auto model = ModelFile::Open(path);
    ASSERT_TRUE(model.ok()) << model.status();
    auto server = WorkerServer::Start({}, Clock::Real());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = wire::Worker::NewStub(MakeChannel(server_->address()));
    for (uint32_t i = 0; i < kStages; ++i) {
      wire::LoadStageRequest request;
      wire::StageSpec* spec = request.mutable_spec();
      spec->set_model_id((*model)->id());
      *spec->mutable_epoch() = Epoch();
      spec->set_stage(i);
      spec->set_n_stages(kStages);
      spec->set_model_path(path);
      spec->mutable_layers()->set_begin(i);
      spec->mutable_layers()->set_end(i + 1);
      spec->set_n_ctx(32);
      spec->set_n_seq_max(1);
      spec->set_n_batch(8);
      spec_ = *spec;
      grpc::ClientContext context;
      const auto reader = stub_->LoadStage(&context, request);
      wire::LoadStageEvent event;
      while (reader->Read(&event)) {
      }
      const absl::Status status = FromGrpc(reader->Finish());
      ASSERT_TRUE(status.ok()) << status;
    }
    // From the last to the first, like a pipeline; the last stage's link would leave the worker.
    for (uint32_t i = kStages - 1; i-- > 0;) {
      grpc::ClientContext context;
      wire::ConnectStageRequest request;
      *request.mutable_epoch() = Epoch();
      request.set_stage(i);
      request.set_next_address(server_->address());
      wire::ConnectStageResponse response;
      const absl::Status status = FromGrpc(stub_->ConnectStage(&context, request, &response));
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  static wire::Epoch Epoch() {
    wire::Epoch epoch;
    epoch.set_counter(1);
    epoch.set_coordinator_id("test");
    return epoch;
  }

  absl::Status Unload(uint32_t stage) {
    grpc::ClientContext context;
    // A hundred times the usual duration. Deadlocked threads are freed by other deadlines after
    // about 30 s.
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(12));
    wire::UnloadStageRequest request;
    *request.mutable_epoch() = Epoch();
    request.set_stage(stage);
    wire::UnloadStageResponse response;
    return FromGrpc(stub_->UnloadStage(&context, request, &response));
  }

  wire::StageSpec spec_;  // of the last one
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<wire::Worker::Stub> stub_;
};

TEST_F(WorkerOfManyStages, UnloadsThemAtTheSameTime) {
  std::vector<absl::Status> statuses(kStages);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kStages; ++i) {
    threads.emplace_back([this, &statuses, i] { statuses[i] = Unload(i); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
  // The worker still answers.
  EXPECT_TRUE(Unload(0).ok());
}

TEST_F(WorkerOfManyStages, ReportsAStagesActivationRuleAndRefusesInvalidOnes) {
  const auto connect = [this](int type) {
    grpc::ClientContext context;
    wire::ConnectStageRequest request;
    *request.mutable_epoch() = Epoch();
    request.set_stage(3);
    request.set_next_address(server_->address());
    request.mutable_activations()->set_type(static_cast<wire::ActivationType>(type));
    wire::ConnectStageResponse response;
    return FromGrpc(stub_->ConnectStage(&context, request, &response));
  };
  const auto sends = [this] {
    grpc::ClientContext context;
    wire::PingResponse response;
    EXPECT_TRUE(stub_->Ping(&context, {}, &response).ok());
    EXPECT_EQ(response.stages_size(), static_cast<int>(kStages));
    return response.stages(3).activations().type();
  };
  EXPECT_EQ(sends(), wire::F32);
  EXPECT_EQ(connect(77).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sends(), wire::F32);
  // The next stage has a link already; the rule applies whether or not it takes another.
  (void)connect(wire::BF16);
  EXPECT_EQ(sends(), wire::BF16);
}

// A hostile member calls a worker directly, past the node's own bound.
TEST_F(WorkerOfManyStages, ThousandsOfLoadsOfAHostileMemberAreRefusedAndLeaveThemServed) {
  const auto load = [this](uint64_t epoch, const std::string& path, uint32_t n_threads = 1) {
    wire::LoadStageRequest request;
    wire::StageSpec* spec = request.mutable_spec();
    *spec = spec_;
    spec->mutable_epoch()->set_counter(epoch);
    spec->set_model_path(path);
    spec->set_n_threads(n_threads);
    grpc::ClientContext context;
    const auto reader = stub_->LoadStage(&context, request);
    wire::LoadStageEvent event;
    while (reader->Read(&event)) {
    }
    return FromGrpc(reader->Finish()).code();
  };
  // A failed load frees its place, however often.
  for (uint64_t i = 0; i < 2'000; ++i) {
    ASSERT_EQ(load(100 + i, "/no/such/model.gguf"), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(load(99, spec_.model_path(), 4'000'000'000), absl::StatusCode::kInvalidArgument);
  for (uint64_t i = kStages; i < kWorkerStagesMax; ++i) {
    ASSERT_EQ(load(10'000 + i, spec_.model_path()), absl::StatusCode::kOk);
  }
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(load(20'000 + i, spec_.model_path()), absl::StatusCode::kResourceExhausted);
  }
  grpc::ClientContext context;
  wire::PingResponse response;
  ASSERT_TRUE(stub_->Ping(&context, {}, &response).ok());
  EXPECT_EQ(response.stages_size(), static_cast<int>(kWorkerStagesMax));
  for (uint32_t i = 0; i < kStages; ++i) {
    grpc::ClientContext call;
    wire::TokenizeRequest request;
    *request.mutable_epoch() = Epoch();
    request.set_stage(i);
    request.set_text("still there");
    wire::TokenizeResponse tokens;
    const absl::Status status = FromGrpc(stub_->Tokenize(&call, request, &tokens));
    const bool has_words = i == 0 || i + 1 == kStages;
    EXPECT_EQ(status.code(),
              has_words ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(WorkerOfManyStages, StopsWithThemLoaded) { server_.reset(); }

TEST_F(WorkerOfManyStages, StopsWhileTheyAreUnloaded) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kStages; ++i) {
    threads.emplace_back([this, i] {
      const absl::Status status = Unload(i);
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsCancelled(status))
          << status;
    });
  }
  server_.reset();
  for (std::thread& thread : threads) thread.join();
}

// A worker that loads from its node's cache, or from a file that its node names.
class WorkerThatTrustsNoDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteFile(path_, TinyLlama({.n_layer = 4}).Build());
    model_ = *ModelFile::Open(path_);
    auto server = WorkerServer::Start({}, Clock::Real());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = wire::Worker::NewStub(MakeChannel(server_->address()));
    wire::StageSpec* spec = request_.mutable_spec();
    spec->set_model_id(model_->id());
    spec->mutable_epoch()->set_coordinator_id("test");
    spec->set_n_stages(1);
    spec->set_model_path(path_);
    spec->mutable_layers()->set_end(4);
    spec->set_n_ctx(32);
    spec->set_n_seq_max(1);
    spec->set_n_batch(8);
    spec->set_use_mmap(true);
  }

  // BLAKE3 of each block of the whole model.
  std::string Hashes() const {
    std::string hashes;
    const WeightBlocks blocks(*model_);
    for (uint32_t block = 0; block < blocks.size(); ++block) {
      std::string bytes(blocks[block].bytes, '\0');
      EXPECT_TRUE(
          model_->Read(blocks[block].part, blocks[block].offset, absl::MakeSpan(bytes)).ok());
      hashes += HashOfBytes(bytes);
    }
    return hashes;
  }

  absl::Status Load() {
    request_.mutable_spec()->mutable_epoch()->set_counter(++epoch_);
    grpc::ClientContext context;
    const auto reader = stub_->LoadStage(&context, request_);
    wire::LoadStageEvent event;
    while (reader->Read(&event)) {
    }
    return FromGrpc(reader->Finish());
  }

  // Whether a mapping of the file is in this process.
  bool IsMapped() const {
    std::ifstream maps("/proc/self/maps");
    const std::string all{std::istreambuf_iterator<char>(maps), {}};
    return all.find(std::filesystem::canonical(path_)) != std::string::npos;
  }

  const std::string path_ = MakeTestFolder() + "/model.gguf";
  std::shared_ptr<const ModelFile> model_;
  uint64_t epoch_ = 0;
  wire::LoadStageRequest request_;
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<wire::Worker::Stub> stub_;
};

TEST_F(WorkerThatTrustsNoDisk, LoadsBlocksThatMatchTheirHashesAndMapsNothing) {
  request_.set_block_hashes(Hashes());
  absl::Status status = Load();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_FALSE(IsMapped());
  request_.clear_block_hashes();
  status = Load();
  EXPECT_TRUE(status.ok()) << status;
#ifdef __linux__
  EXPECT_TRUE(IsMapped());
#endif
}

TEST_F(WorkerThatTrustsNoDisk, RefusesABlockThatIsDamagedByName) {
  request_.set_block_hashes(Hashes());
  const WeightBlock last = WeightBlocks(*model_)[WeightBlocks(*model_).size() - 1];
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(last.offset + last.bytes - 1));
    file.put('\x55');
  }
  const absl::Status status = Load();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_NE(status.message().find("block"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
}

TEST_F(WorkerThatTrustsNoDisk, ReportsAMissingOrOtherModelsCacheAsDamaged) {
  request_.set_block_hashes(Hashes());
  WriteFile(path_, TinyLlama({.n_layer = 5}).Build());
  EXPECT_EQ(Load().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(path_);
  EXPECT_EQ(Load().code(), absl::StatusCode::kDataLoss);
  request_.clear_block_hashes();
  EXPECT_EQ(Load().code(), absl::StatusCode::kNotFound);
}

TEST_F(WorkerThatTrustsNoDisk, RefusesHashesOfOtherBlocks) {
  request_.set_block_hashes("some");
  EXPECT_EQ(Load().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WorkerThatTrustsNoDisk, RefusesAFileThatWasReplacedSinceItWasShared) {
  request_.set_file_key(model_->file_key());
  absl::Status status = Load();
  EXPECT_TRUE(status.ok()) << status;
  const auto time = std::filesystem::last_write_time(path_);
  std::filesystem::copy_file(path_, path_ + ".new");
  std::filesystem::rename(path_ + ".new", path_);
  std::filesystem::last_write_time(path_, time);
  status = Load();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("load the model again"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace strata
