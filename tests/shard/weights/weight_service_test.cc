// A node serves blocks of its cache to others, over a real gRPC server.
#include "shard/weights/weight_service.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "shard/model/weight_blocks.h"
#include "shard/weights/weight_cache.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::strata::testing::BytesOfSlice;
using ::strata::testing::GgufBuilder;
using ::strata::testing::Model;
using ::strata::testing::Opened;
using ::strata::testing::Receiver;
using ::strata::testing::Source;
using ::strata::testing::SourceBytes;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;
using ::strata::testing::WriteLarge;
using ::testing::HasSubstr;

constexpr uint32_t kLayers = 6;
constexpr LayerRange kMiddle = {2, 4};

// Bytes that this process has read from files so far; none: the system does not say.
std::optional<uint64_t> BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  if (!(io >> name >> bytes) || name != "rchar:") return std::nullopt;
  return bytes;
}

TEST(SharedModel, IsNotReadAgainUntilItChanges) {
  if (!BytesRead()) GTEST_SKIP() << "no /proc/self/io";
  GgufBuilder builder = TinyLlama({.n_layer = kLayers});
  builder.Set("general.description", GgufValue::String(std::string(1 << 20, 'x')));
  const std::string path = Write(builder);
  Source source;
  const uint64_t before = *BytesRead();
  const auto id = source.Share(path);
  ASSERT_THAT(id, IsOk());
  const uint64_t first = *BytesRead();
  EXPECT_GT(first - before, 1 << 20);
  EXPECT_THAT(source.Share(path), IsOkAndHolds(*id));
  EXPECT_LT(*BytesRead() - first, 1 << 16);

  // The overwritten file is another model.
  const std::string other = Write(builder.Set("general.author", GgufValue::String("somebody")));
  std::filesystem::copy_file(other, path, std::filesystem::copy_options::overwrite_existing);
  const auto now = source.Share(path);
  ASSERT_THAT(now, IsOk());
  EXPECT_NE(*now, *id);
}

TEST(SharedModel, HasTheKeyOfItsFile) {
  const std::string path = Write(TinyLlama({.n_layer = kLayers}));
  Source source;
  EXPECT_EQ(source.service().FileKeyOf(path), "");
  ASSERT_THAT(source.Share(path), IsOk());
  EXPECT_EQ(source.service().FileKeyOf(path), Opened(path)->file_key());
  EXPECT_EQ(source.service().FileKeyOf(path + "x"), "");
}

TEST(SharedModel, ThatIsWrittenToWhileItIsReadIsNotServedFurther) {
  const std::string path = WriteLarge();
  Source source;
  wire::BlocksRequest request;
  request.set_model_id(*source.Share(path));
  const auto n_blocks = static_cast<uint32_t>(WeightBlocks(*Opened(path)).size());
  request.add_blocks()->set_end(n_blocks);
  grpc::ClientContext context;
  const auto reader = source.stub()->ReadBlocks(&context, request);
  wire::BlockChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  std::filesystem::last_write_time(path, std::filesystem::file_time_type());
  uint32_t last = 0;
  while (reader->Read(&chunk)) last = chunk.block();
  EXPECT_THAT(FromGrpc(reader->Finish()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path)));
  EXPECT_LT(last + 1, n_blocks);
}

// A node that fetched layers 2 and 3 from the file's node, and serves them to others.
class CachedWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    GgufBuilder builder = TinyLlama({.n_layer = kLayers});
    for (uint32_t i = 0; i < kLayers; ++i) {
      builder.Tensor(absl::StrCat("blk.", i, ".extra.weight"), {256, 1024});
    }
    path_ = Write(builder);
    auto fetched = receiver_.Fetch(*origin_.Share(path_), origin_.address(), kMiddle);
    ASSERT_THAT(fetched, IsOk());
    cached_path_ = fetched->path;
    fetched->lease.reset();
    provider_ = std::make_unique<Source>("", receiver_.cache());
    request_.set_model_id(Opened(path_)->id());
  }

  absl::StatusOr<wire::BlockList> List(Source* from, const std::string& id) {
    grpc::ClientContext context;
    wire::ListBlocksRequest request;
    request.set_model_id(id);
    wire::BlockList list;
    absl::Status status = FromGrpc(from->stub()->ListBlocks(&context, request, &list));
    if (!status.ok()) return status;
    return list;
  }

  // Requests all blocks that the provider lists.
  void AskForAll() {
    const auto list = List(provider_.get(), request_.model_id());
    ASSERT_THAT(list, IsOk());
    *request_.mutable_blocks() = list->blocks();
  }

  // In the cache: the first byte of the large block of layer 2.
  void Damage() {
    const Model model = Opened(path_);
    for (size_t i = 0; i < model->header().tensors.size(); ++i) {
      if (model->header().tensors[i].name != "blk.2.extra.weight") continue;
      std::fstream file(cached_path_, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(model->TensorAt(i).offset));
      file.put('\x55');
    }
  }

  Source origin_;
  Receiver receiver_;
  std::string path_, cached_path_;
  std::unique_ptr<Source> provider_;
  wire::BlocksRequest request_;
};

TEST_F(CachedWeights, AreListedAndServed) {
  AskForAll();
  uint64_t bytes = 0;
  EXPECT_THAT(provider_->Read(request_, &bytes), IsOk());
  EXPECT_EQ(bytes, SourceBytes(path_, kMiddle));
  EXPECT_EQ(provider_->service().bytes_sent(), bytes);
}

TEST_F(CachedWeights, OfAFileAreAllListed) {
  const auto list = List(&origin_, request_.model_id());
  ASSERT_THAT(list, IsOk());
  ASSERT_EQ(list->blocks_size(), 1);
  EXPECT_EQ(list->blocks(0).end(), WeightBlocks(*Opened(path_)).size());
}

TEST_F(CachedWeights, SufficeForAThirdNode) {
  Receiver third;
  const auto fetched = third.Fetch(request_.model_id(), provider_->address(), kMiddle);
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, kMiddle) == BytesOfSlice(path_, kMiddle));
  EXPECT_EQ(provider_->service().bytes_sent(), SourceBytes(path_, kMiddle));
}

TEST_F(CachedWeights, ThatAreNotThereAreNotFound) {
  request_.add_blocks()->set_end(static_cast<uint32_t>(WeightBlocks(*Opened(path_)).size()));
  EXPECT_THAT(provider_->Read(request_), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(List(provider_.get(), std::string(32, 'x')), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(List(provider_.get(), ""), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CachedWeights, ThatAreDamagedAreDroppedAndNotServed) {
  Damage();
  AskForAll();
  EXPECT_THAT(provider_->Read(request_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  // It is not listed any more, and the other blocks are served.
  AskForAll();
  uint64_t bytes = 0;
  EXPECT_THAT(provider_->Read(request_, &bytes), IsOk());
  EXPECT_EQ(bytes, SourceBytes(path_, kMiddle) - (1u << 20));
  // Its own node fetches it again.
  const auto fetched = receiver_.Fetch(request_.model_id(), origin_.address(), kMiddle);
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->bytes_fetched, 1u << 20);
}

TEST_F(CachedWeights, ThatWereDroppedMeanwhileAreNotFound) {
  AskForAll();
  const auto snapshot = receiver_.cache()->TakeSnapshot(request_.model_id());
  ASSERT_THAT(snapshot, IsOk());
  const auto& [block, hash] = *snapshot->hashes.begin();
  {
    const auto lease = receiver_.cache()->Lease(request_.model_id(), {0, kLayers}, {});
    ASSERT_THAT(lease, IsOk());
    ASSERT_THAT((*lease)->Forget({block}), IsOk());
  }
  EXPECT_THAT(provider_->Read(request_), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(receiver_.cache()->Confirm(request_.model_id(), *snapshot, block, hash),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CachedWeights, HashesOfLostBlocksStayKnown) {
  const auto snapshot = receiver_.cache()->TakeSnapshot(request_.model_id());
  ASSERT_THAT(snapshot, IsOk());
  const auto& [block, hash] = *snapshot->hashes.begin();
  EXPECT_THAT(receiver_.cache()->Confirm(request_.model_id(), *snapshot, block, "other"),
              StatusIs(absl::StatusCode::kDataLoss));
  const auto lease = receiver_.cache()->Lease(request_.model_id(), kMiddle, {});
  ASSERT_THAT(lease, IsOk());
  EXPECT_EQ((*lease)->Missing(), std::vector<uint32_t>{block});
  EXPECT_EQ((*lease)->KnownMissingHashes().at(block), hash);
}

}  // namespace
}  // namespace strata
