// Weights over a real gRPC server: weight_service and weight_fetcher together.
#include "node/weight_fetcher.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "ggml.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "node/weight_service.h"
#include "shard/slice.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include "transport/grpc_link.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::GgufBuilder;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::PartPath;
using ::strata::testing::TinyLlama;
using ::strata::testing::WriteFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Model = std::shared_ptr<const ModelFile>;
using Fetched = WeightFetcher::Fetched;

constexpr uint32_t kLayers = 6;

GgufBuilder Builder(bool tied = false) {
  GgufBuilder builder = TinyLlama({.n_layer = kLayers, .tied = tied});
  for (uint32_t i = 0; i < kLayers; ++i) {
    builder.Tensor(absl::StrCat("blk.", i, ".extra.weight"), {256, 1024});
  }
  return builder;
}

// Too large for everything between two disks: queues, gRPC's windows, the kernel's buffers.
std::string WriteLarge() {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  for (int i = 0; i < 6; ++i) {
    builder.TensorOfType(absl::StrCat("blk.", i % 2, ".extra", i, ".weight"), {4096, 4096},
                         GGML_TYPE_F16);
  }
  const std::string path = MakeTestFolder() + "/large.gguf";
  WriteFile(path, builder.Build());
  return path;
}

std::string Write(const GgufBuilder& builder) {
  const std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, builder.Build());
  return path;
}

Model Opened(const std::string& path) {
  auto model = ModelFile::Open(path);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

std::string BytesOfSlice(const std::string& path, LayerRange layers) {
  auto slice = Slice::Make(Opened(path), layers, {});
  EXPECT_TRUE(slice.ok()) << slice.status();
  std::string bytes(slice->file_bytes(), '\0');
  EXPECT_TRUE(slice->ReadAt(0, bytes.data(), bytes.size()).ok());
  return bytes;
}

uint64_t SourceBytes(const std::string& path, LayerRange layers) {
  const Model model = Opened(path);
  auto slice = Slice::Make(model, layers, {});
  EXPECT_TRUE(slice.ok()) << slice.status();
  uint64_t bytes = 0;
  for (const size_t tensor : slice->source_tensors()) {
    bytes += model->header().tensors[tensor].bytes;
  }
  return bytes;
}

// The node that has the file.
class Source {
 public:
  explicit Source(const std::string& hashes_folder = "") : service_(hashes_folder) {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", LinkServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
    stub_ = wire::Weights::NewStub(MakeChannel(address_));
  }
  ~Source() { Stop(); }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  const std::string& address() const { return address_; }
  wire::Weights::Stub* stub() { return stub_.get(); }
  const WeightService& service() const { return service_; }

  // Returns its id.
  absl::StatusOr<std::string> Share(const std::string& path) {
    grpc::ClientContext context;
    wire::ShareModelRequest request;
    request.set_path(path);
    wire::ShareModelResponse response;
    absl::Status status = FromGrpc(stub_->ShareModel(&context, request, &response));
    if (!status.ok()) return status;
    return response.model_id();
  }

  absl::Status Read(const wire::BlocksRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->ReadBlocks(&context, request);
    wire::BlockChunk chunk;
    while (reader->Read(&chunk)) {
    }
    return FromGrpc(reader->Finish());
  }

 private:
  WeightService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unique_ptr<wire::Weights::Stub> stub_;
};

// A node without the file.
class Receiver {
 public:
  explicit Receiver(const std::string& folder = MakeTestFolder())
      : folder_(folder), cache_(*WeightCache::Open({.folder = folder})), fetcher_(cache_) {}

  using Progress = std::function<void(uint64_t done, uint64_t total)>;

  // Waits. `progress` comes on the fetcher's threads.
  absl::StatusOr<Fetched> Fetch(
      const std::string& id, const std::string& address, LayerRange layers,
      Progress progress = [](uint64_t, uint64_t) {}, const std::string& path = "") {
    absl::Notification done;
    absl::StatusOr<Fetched> outcome;
    WeightFetcher::Callbacks callbacks;
    callbacks.progress = std::move(progress);
    callbacks.done = [&](absl::StatusOr<Fetched> fetched) {
      outcome = std::move(fetched);
      done.Notify();
    };
    {
      absl::MutexLock lock(mu_);
      job_ = fetcher_.Start({.model_id = id, .path = path, .address = address, .layers = layers},
                            std::move(callbacks));
    }
    started_.store(true);
    done.WaitForNotification();
    started_.store(false);
    return outcome;
  }

  // Any thread, of the fetch that runs.
  void Cancel() {
    while (!started_.load()) std::this_thread::yield();
    absl::MutexLock lock(mu_);
    WeightFetcher::Cancel(job_.get());
  }

  WeightCache* cache() { return cache_.get(); }
  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_;
  const std::shared_ptr<WeightCache> cache_;
  absl::Mutex mu_;
  std::shared_ptr<WeightFetcher::Job> job_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> started_{false};
  WeightFetcher fetcher_;
};

class WeightsOfModel : public ::testing::TestWithParam<bool> {};

TEST_P(WeightsOfModel, ASliceComesAsItIsAndNothingElse) {
  const std::string path = Write(Builder(/*tied=*/GetParam()));
  Source source;
  const auto id = source.Share(path);
  ASSERT_THAT(id, IsOk());
  for (const LayerRange layers : {LayerRange{0, 2}, {2, 5}, {5, 6}, {0, kLayers}}) {
    Receiver receiver;
    const uint64_t before = source.service().bytes_sent();
    uint64_t last_done = 0, last_total = 0;
    const auto fetched = receiver.Fetch(*id, source.address(), layers, [&](uint64_t d, uint64_t t) {
      last_done = d;
      last_total = t;
    });
    ASSERT_THAT(fetched, IsOk());
    const uint64_t bytes = SourceBytes(path, layers);
    EXPECT_EQ(fetched->bytes_fetched, bytes);
    EXPECT_EQ(source.service().bytes_sent() - before, bytes);
    EXPECT_EQ(last_done, bytes);
    EXPECT_EQ(last_total, 2 * bytes);  // it is loaded then
    EXPECT_TRUE(BytesOfSlice(fetched->path, layers) == BytesOfSlice(path, layers))
        << layers.begin << "-" << layers.end;
  }
}

INSTANTIATE_TEST_SUITE_P(Tied, WeightsOfModel, ::testing::Bool());

TEST(Weights, OfSplitModels) {
  const std::string prefix = MakeTestFolder() + "/model";
  const std::vector<std::string> parts = Builder().BuildParts(3);
  for (int i = 0; i < 3; ++i) WriteFile(PartPath(prefix, i + 1, 3), parts[i]);
  Source source;
  const auto id = source.Share(PartPath(prefix, 2, 3));
  ASSERT_THAT(id, IsOk());
  Receiver receiver;
  const auto fetched = receiver.Fetch(*id, source.address(), {1, 4});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {1, 4}) == BytesOfSlice(PartPath(prefix, 1, 3), {1, 4}));
}

TEST(Weights, ASecondFetchAsksForNothing) {
  const std::string path = Write(Builder());
  Source source;
  const auto id = source.Share(path);
  const std::string folder = MakeTestFolder();
  {
    Receiver receiver(folder);
    ASSERT_THAT(receiver.Fetch(*id, source.address(), {1, 4}), IsOk());
    const auto again = receiver.Fetch(*id, source.address(), {1, 4});
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(again->bytes_fetched, 0u);
  }
  const uint64_t hashed = source.service().bytes_hashed();
  Receiver restarted(folder);
  const auto fetched = restarted.Fetch(*id, source.address(), {1, 4});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, 0u);
  EXPECT_EQ(source.service().bytes_sent(), SourceBytes(path, {1, 4}));
  EXPECT_EQ(source.service().bytes_hashed(), hashed);  // each block was hashed once
  EXPECT_EQ(hashed, SourceBytes(path, {1, 4}));
}

TEST(Weights, AChangedCutAsksOnlyForWhatIsNew) {
  const std::string path = Write(Builder());
  Source source;
  const auto id = source.Share(path);
  Receiver receiver;
  ASSERT_THAT(receiver.Fetch(*id, source.address(), {1, 3}), IsOk());
  const auto fetched = receiver.Fetch(*id, source.address(), {2, 5});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, SourceBytes(path, {1, 5}) - SourceBytes(path, {1, 3}));
}

TEST(Weights, AreNotFetchedWhenTheFileIsHere) {
  const std::string path = Write(Builder());
  const std::string id = Opened(path)->id();
  Receiver receiver;
  const auto fetched = receiver.Fetch(id, "127.0.0.1:1", {0, 2}, [](uint64_t, uint64_t) {}, path);
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->path, path);
  EXPECT_EQ(fetched->lease, nullptr);
}

TEST(Weights, AreFetchedWhenTheFileHereIsAnother) {
  const std::string path = Write(Builder());
  Source source;
  const auto id = source.Share(path);
  Receiver receiver;
  const auto fetched = receiver.Fetch(
      *id, source.address(), {0, 2}, [](uint64_t, uint64_t) {}, Write(Builder(/*tied=*/true)));
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, SourceBytes(path, {0, 2}));
}

TEST(Weights, AreUsedFromTheCacheWhenTheSourceHasGone) {
  const std::string path = Write(Builder());
  Source source;
  const auto id = source.Share(path);
  Receiver receiver;
  ASSERT_THAT(receiver.Fetch(*id, source.address(), {0, 2}), IsOk());
  ASSERT_THAT(source.Share(Write(TinyLlama({.n_layer = 2}))), IsOk());
  Source other;  // does not share it
  EXPECT_THAT(receiver.Fetch(*id, other.address(), {0, 2}), IsOk());
  EXPECT_THAT(receiver.Fetch(*id, other.address(), {0, 3}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(other.address())));
}

// The byte at `tensor`'s beginning, which is not in a sample, is flipped.
void FlipByte(const std::string& path, absl::string_view tensor) {
  const Model model = Opened(path);
  for (size_t i = 0; i < model->header().tensors.size(); ++i) {
    if (model->header().tensors[i].name != tensor) continue;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto offset = static_cast<std::streamoff>(model->TensorAt(i).offset);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get());
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
    return;
  }
  FAIL() << "no tensor " << tensor;
}

TEST(Weights, ADamagedBlockIsFetchedAgain) {
  const std::string path = Write(Builder());
  Source source;
  const auto id = source.Share(path);
  const std::string folder = MakeTestFolder();
  {
    Receiver receiver(folder);
    const auto fetched = receiver.Fetch(*id, source.address(), {1, 4});
    ASSERT_THAT(fetched, IsOk());
    FlipByte(fetched->path, "blk.2.extra.weight");
  }
  Receiver receiver(folder);
  const auto fetched = receiver.Fetch(*id, source.address(), {1, 4});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, 1u << 20);
  EXPECT_TRUE(BytesOfSlice(fetched->path, {1, 4}) == BytesOfSlice(path, {1, 4}));
}

TEST(Weights, OfAnotherFileWithTheSameIdAreToldApart) {
  const std::string path = Write(Builder());
  const std::string other = MakeTestFolder() + "/other.gguf";
  std::filesystem::copy_file(path, other);
  FlipByte(other, "blk.2.extra.weight");
  Source source;
  const auto id = source.Share(path);
  Receiver receiver;
  ASSERT_THAT(receiver.Fetch(*id, source.address(), {1, 4}), IsOk());
  ASSERT_THAT(source.Share(other), ::absl_testing::IsOkAndHolds(*id));
  const auto fetched = receiver.Fetch(*id, source.address(), {1, 4});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, 1u << 20);
  EXPECT_TRUE(BytesOfSlice(fetched->path, {1, 4}) == BytesOfSlice(other, {1, 4}));
}

TEST(Weights, HashesOutliveTheSource) {
  const std::string path = Write(Builder()), hashes = MakeTestFolder() + "/hashes";
  Receiver receiver;
  std::string id;
  {
    Source source(hashes);
    id = *source.Share(path);
    ASSERT_THAT(receiver.Fetch(id, source.address(), {1, 4}), IsOk());
  }
  Source source(hashes);
  ASSERT_THAT(source.Share(path), IsOk());
  const auto fetched = receiver.Fetch(id, source.address(), {1, 4});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, 0u);
  EXPECT_EQ(source.service().bytes_hashed(), 0u);
  // A file that was written to has hashes of its own.
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now());
  ASSERT_THAT(source.Share(path), IsOk());
  ASSERT_THAT(receiver.Fetch(id, source.address(), {1, 4}), IsOk());
  EXPECT_EQ(source.service().bytes_hashed(), SourceBytes(path, {1, 4}));
}

TEST(Weights, OfAFileThatChangedAreRefused) {
  const std::string path = Write(Builder());
  Source source;
  const auto id = source.Share(path);
  FlipByte(path, "blk.2.extra.weight");
  std::filesystem::last_write_time(path, std::filesystem::file_time_type());
  Receiver receiver;
  EXPECT_THAT(receiver.Fetch(*id, source.address(), {1, 4}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path), HasSubstr("changed"))));
}

TEST(Weights, OnlyWhatIsSharedIsServed) {
  const std::string path = Write(Builder());
  Source source;
  wire::BlocksRequest request;
  request.set_model_id(Opened(path)->id());
  request.add_blocks()->set_end(1);
  EXPECT_THAT(source.Read(request), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(source.Share("/etc/passwd"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(source.Share("/nowhere.gguf"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(source.Share(path), IsOk());
  EXPECT_THAT(source.Read(request), IsOk());
  request.mutable_blocks(0)->set_end(1'000'000);
  EXPECT_THAT(source.Read(request), StatusIs(absl::StatusCode::kInvalidArgument));
  request.mutable_blocks(0)->set_begin(5);
  request.mutable_blocks(0)->set_end(4);
  EXPECT_THAT(source.Read(request), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Weights, ASourceThatDiesIsNamedAndWhatCameStays) {
  const std::string path = WriteLarge();
  auto source = std::make_unique<Source>();
  const auto id = source->Share(path);
  const std::string address = source->address();
  Receiver receiver;
  absl::Notification some_came, source_died;
  std::thread killer([&] {
    some_came.WaitForNotification();
    source->Stop();
    source_died.Notify();
  });
  const auto fetched = receiver.Fetch(*id, address, {0, 2}, [&](uint64_t done, uint64_t) {
    if (done < 2 * kWeightBlockBytes || some_came.HasBeenNotified()) return;
    some_came.Notify();
    source_died.WaitForNotification();
  });
  killer.join();
  EXPECT_THAT(fetched, StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));

  Source again;
  ASSERT_THAT(again.Share(path), IsOk());
  const auto rest = receiver.Fetch(*id, again.address(), {0, 2});
  ASSERT_THAT(rest, IsOk());
  EXPECT_LE(rest->bytes_fetched, SourceBytes(path, {0, 2}) - kWeightBlockBytes);
  EXPECT_TRUE(BytesOfSlice(rest->path, {0, 2}) == BytesOfSlice(path, {0, 2}));
}

TEST(Weights, AFetchIsCancelledAtAnyTime) {
  const std::string path = WriteLarge();
  Source source;
  const auto id = source.Share(path);
  Receiver receiver;
  const auto cancelled =
      receiver.Fetch(*id, source.address(), {0, 2}, [&](uint64_t done, uint64_t) {
        if (done > 0) receiver.Cancel();
      });
  EXPECT_THAT(cancelled, StatusIs(absl::StatusCode::kCancelled));
  // Nobody listens there, which is noticed after seconds only.
  std::thread canceller([&] { receiver.Cancel(); });
  EXPECT_THAT(receiver.Fetch(*id, "127.0.0.1:1", {0, 2}), StatusIs(absl::StatusCode::kCancelled));
  canceller.join();
  EXPECT_THAT(receiver.Fetch(*id, source.address(), {0, 2}), IsOk());
}

TEST(Weights, WithoutACacheAreNotFetched) {
  WeightFetcher fetcher(nullptr);
  absl::Notification done;
  absl::Status status;
  fetcher.Start({.model_id = std::string(32, 'x'), .address = "127.0.0.1:1", .layers = {0, 2}},
                {.progress = [](uint64_t, uint64_t) {},
                 .done =
                     [&](absl::StatusOr<Fetched> fetched) {
                       status = fetched.status();
                       done.Notify();
                     }});
  done.WaitForNotification();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--cache-dir")));
}

}  // namespace
}  // namespace strata
