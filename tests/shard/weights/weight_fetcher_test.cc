// Weights over a real gRPC server: weight_service and weight_fetcher together.
#include "shard/weights/weight_fetcher.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
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
#include "shard/model/slice.h"
#include "shard/weights/weight_service.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/raw_message.h"
#include "tests/support/taken_port.h"
#include "tests/support/temp_folder.h"
#include "tests/transport/rpc/grpc_server.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::BytesOfSlice;
using ::strata::testing::Fetched;
using ::strata::testing::GgufBuilder;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::Model;
using ::strata::testing::Opened;
using ::strata::testing::PartPath;
using ::strata::testing::Receiver;
using ::strata::testing::Source;
using ::strata::testing::SourceBytes;
using ::strata::testing::TakenPort;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;
using ::strata::testing::WriteFile;
using ::strata::testing::WriteLarge;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kLayers = 6;

GgufBuilder Builder(bool tied = false) {
  GgufBuilder builder = TinyLlama({.n_layer = kLayers, .tied = tied});
  for (uint32_t i = 0; i < kLayers; ++i) {
    builder.Tensor(absl::StrCat("blk.", i, ".extra.weight"), {256, 1024});
  }
  return builder;
}

class WeightsOfModel : public ::testing::TestWithParam<bool> {};

TEST_P(WeightsOfModel, FetchesExactlyTheSlice) {
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

// A feature that users of other systems miss: loading without sending everything again, exo #2117,
// llama.cpp #10095 #8114 #25890.
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

TEST(Weights, AChangedCutRequestsOnlyNewBlocks) {
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

// No node has the file any more; of the peers, one is gone and one has another model's blocks.
TEST(Weights, WithoutASourceComeFromThePeersThatHaveThem) {
  const std::string path = Write(Builder());
  Receiver first, receiver;
  std::string id;
  {
    Source source;
    id = *source.Share(path);
    ASSERT_THAT(first.Fetch(id, source.address(), {0, 3}), IsOk());
  }
  const TakenPort nobody({.listens = false});
  Source stranger, peer("", first.cache());
  ASSERT_THAT(stranger.Share(Write(TinyLlama({.n_layer = 2}))), IsOk());
  const auto fetch = [&](LayerRange layers) {
    return receiver.Fetch({.model_id = id,
                           .path = "",
                           .address = "",
                           .peers = {nobody.address(), stranger.address(), peer.address()},
                           .layers = layers});
  };
  const auto fetched = fetch({0, 2});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {0, 2}) == BytesOfSlice(path, {0, 2}));
  EXPECT_THAT(fetch({2, 4}), StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("no node that answers has the model's file")));
}

// Flips the first byte of `tensor`, which is not in a sample.
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
  // The node's request after its worker found it.
  Receiver receiver(folder);
  const auto fetched = receiver.Fetch(
      {.model_id = *id, .address = source.address(), .layers = {1, 4}, .check_again = true});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, 1u << 20);
  EXPECT_TRUE(BytesOfSlice(fetched->path, {1, 4}) == BytesOfSlice(path, {1, 4}));
}

// Removed while nothing is loaded, for example to free disk space.
TEST(Weights, ThatWereRemovedFromTheCacheAreFetchedAgain) {
  namespace fs = std::filesystem;
  const std::string path = Write(Builder());
  Source source;
  const auto id = source.Share(path);
  Receiver receiver;
  const auto fetch = [&] { return receiver.Fetch(*id, source.address(), {1, 4}); };
  std::string cached;
  {
    const auto fetched = fetch();
    ASSERT_THAT(fetched, IsOk());
    cached = fetched->path;
    EXPECT_FALSE(fetched->block_hashes.empty());
  }
  const std::vector<std::function<void()>> mishaps = {
      [&] { fs::remove_all(fs::path(cached).parent_path()); },
      [&] { fs::remove_all(receiver.folder()); },
      [&] { fs::remove(cached); },
      [&] { fs::resize_file(cached, fs::file_size(cached) / 2); },
  };
  for (const std::function<void()>& happen : mishaps) {
    happen();
    const auto fetched = fetch();
    ASSERT_THAT(fetched, IsOk());
    EXPECT_GT(fetched->bytes_fetched, 0u);
    EXPECT_TRUE(BytesOfSlice(fetched->path, {1, 4}) == BytesOfSlice(path, {1, 4}));
  }
}

TEST(Weights, OfAnotherFileWithTheSameIdAreDistinguished) {
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
  // A file that was written to has other hashes.
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

TEST(Weights, OnlySharedModelsAreServed) {
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

TEST(Weights, ASourceThatDiesIsNamedAndFetchedBlocksStay) {
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
  EXPECT_THAT(receiver.Fetch(*id, source.address(), {0, 2}), IsOk());
}

TEST(Weights, ASourceThatRefusesIsNamedAtOnce) {
  const TakenPort nobody({.listens = false});
  Receiver receiver;
  EXPECT_THAT(receiver.Fetch(std::string(32, 'x'), nobody.address(), {0, 2}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(nobody.address()), HasSubstr("nobody listens there"))));
}

TEST(Weights, ASourceThatIsMuteIsNamedAfterAWhile) {
  const TakenPort mute({});
  Receiver receiver;
  EXPECT_THAT(receiver.Fetch(std::string(32, 'x'), mute.address(), {0, 2}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(mute.address()), HasSubstr("nobody answers there"))));
}

// gRPC reports the end of a call only after all earlier messages have been read.
TEST(Weights, AnAnswerThatIsNoMessageEndsTheFetch) {
  class Garbage final : public grpc::CallbackGenericService {
    class Call final : public grpc::ServerGenericBidiReactor {
     public:
      Call() { OnWriteDone(true); }
      void OnWriteDone(bool) override {
        if (left_-- == 0) return Finish(grpc::Status::OK);
        out_ = testing::MessageOf("\xff\xff\xff");
        StartWrite(&out_);
      }
      void OnDone() override { delete this; }

     private:
      int left_ = 3;
      grpc::ByteBuffer out_;
    };
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
      return new Call;
    }
  };
  Garbage service;
  const ServiceServer server({.others = &service});
  const std::string address = server.address();
  Receiver receiver;
  const absl::Status status = receiver.Fetch(std::string(32, 'm'), address, {0, kLayers}).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
}

TEST(Weights, AFetchFromAMuteSourceIsCancelled) {
  const TakenPort mute({});
  Receiver receiver;
  std::thread canceller([&] { receiver.Cancel(); });
  EXPECT_THAT(receiver.Fetch(std::string(32, 'x'), mute.address(), {0, 2}),
              StatusIs(absl::StatusCode::kCancelled));
  canceller.join();
}

TEST(Weights, WithoutACacheAreNotFetched) {
  WeightFetcher fetcher(nullptr);
  absl::Notification done;
  absl::Status status;
  fetcher.Start({.model_id = std::string(32, 'x'), .address = "127.0.0.1:1", .layers = {0, 2}},
                {.progress = [](uint64_t, uint64_t) {},
                 .done =
                     [&](const absl::StatusOr<Fetched>& fetched) {
                       status = fetched.status();
                       done.Notify();
                     }});
  done.WaitForNotification();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--cache-dir")));
}

}  // namespace
}  // namespace strata
