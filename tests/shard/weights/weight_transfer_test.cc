// Weights from several nodes at once: honest, slow, lying and dying ones.
#include "shard/weights/weight_transfer.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "shard/model/weight_blocks.h"
#include "shard/weights/weight_fetcher.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/taken_port.h"
#include "transport/rpc/grpc_deadline.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::BytesOfSlice;
using ::strata::testing::Fetched;
using ::strata::testing::GgufBuilder;
using ::strata::testing::Model;
using ::strata::testing::Opened;
using ::strata::testing::Receiver;
using ::strata::testing::Source;
using ::strata::testing::SourceBytes;
using ::strata::testing::TakenPort;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kLayers = 8;
constexpr LayerRange kAll = {0, kLayers};
constexpr absl::Duration kLong = absl::Seconds(60);

// A node that has some blocks of a model and sends them by a test's script.
class ScriptedNode final : public wire::Weights::Service {
 public:
  struct Script {
    std::function<bool(uint32_t block)> has = [](uint32_t) { return true; };
    std::function<bool(uint32_t block)> flips = [](uint32_t) { return false; };
    bool hashes_flipped = false;  // each block is sent with the hash of the sent bytes
    // Called before the last chunk of each block; an error ends the call there.
    std::function<grpc::Status()> gives = [] { return grpc::Status::OK; };
  };

  ScriptedNode(const std::string& path, Script script)
      : model_(Opened(path)), blocks_(*model_), script_(std::move(script)) {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", ProcessServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~ScriptedNode() override {
    server_->Shutdown(DeadlineIn(absl::ZeroDuration()));
    server_->Wait();
  }

  const std::string& address() const { return address_; }
  // Waits for the first request to read.
  void AwaitRequest() { requested_.WaitForNotification(); }
  // Blocks that were sent completely, once for each time.
  std::multiset<uint32_t> given() {
    absl::MutexLock lock(mu_);
    return given_;
  }

  grpc::Status DescribeModel(grpc::ServerContext*, const wire::DescribeModelRequest*,
                             grpc::ServerWriter<wire::ModelPiece>* writer) override {
    wire::ModelPiece sizes;
    sizes.add_part_bytes(model_->part_bytes(0));
    writer->Write(sizes);
    for (const ModelFile::Range& range : model_->identity()) {
      wire::ModelPiece piece;
      piece.set_offset(range.offset);
      piece.mutable_data()->resize(range.bytes);
      EXPECT_TRUE(model_->Read(0, range.offset, absl::MakeSpan(*piece.mutable_data())).ok());
      writer->Write(piece);
    }
    return grpc::Status::OK;
  }
  grpc::Status ListBlocks(grpc::ServerContext*, const wire::ListBlocksRequest*,
                          wire::BlockList* list) override {
    for (uint32_t block = 0; block < blocks_.size(); ++block) {
      if (!script_.has(block)) continue;
      wire::BlockRange* const range = list->add_blocks();
      range->set_begin(block);
      range->set_end(block + 1);
    }
    return grpc::Status::OK;
  }
  grpc::Status HashBlocks(grpc::ServerContext*, const wire::BlocksRequest* request,
                          grpc::ServerWriter<wire::BlockHashes>* writer) override {
    if (request->known_only()) return grpc::Status::OK;
    wire::BlockHashes answer;
    for (const uint32_t block : Listed(*request)) {
      wire::BlockHash* const hash = answer.add_hashes();
      hash->set_block(block);
      WeightHasher hasher;
      hasher.Add(DataOf(block));
      hash->set_hash(hasher.Finish());
    }
    writer->Write(answer);
    return grpc::Status::OK;
  }
  grpc::Status ReadBlocks(grpc::ServerContext*, const wire::BlocksRequest* request,
                          grpc::ServerWriter<wire::BlockChunk>* writer) override {
    {
      absl::MutexLock lock(mu_);
      if (!requested_.HasBeenNotified()) requested_.Notify();
    }
    for (const uint32_t block : Listed(*request)) {
      std::string data = DataOf(block);
      const std::string right = data;
      if (script_.flips(block)) data[data.size() / 2] ^= 1;
      WeightHasher hasher;
      hasher.Add(script_.hashes_flipped ? data : right);
      const size_t half = data.size() / 2;
      wire::BlockChunk chunk;
      chunk.set_block(block);
      chunk.set_data(data.substr(0, half));
      writer->Write(chunk);
      if (grpc::Status status = script_.gives(); !status.ok()) return status;
      chunk.set_offset(half);
      chunk.set_data(data.substr(half));
      chunk.set_hash(hasher.Finish());
      {
        absl::MutexLock lock(mu_);
        given_.insert(block);
      }
      if (!writer->Write(chunk)) break;
    }
    return grpc::Status::OK;
  }

 private:
  std::string DataOf(uint32_t block) const {
    std::string data(blocks_[block].bytes, '\0');
    EXPECT_TRUE(model_->Read(0, blocks_[block].offset, absl::MakeSpan(data)).ok());
    return data;
  }
  static std::vector<uint32_t> Listed(const wire::BlocksRequest& request) {
    std::vector<uint32_t> listed;
    for (const wire::BlockRange& range : request.blocks()) {
      for (uint32_t block = range.begin(); block < range.end(); ++block) listed.push_back(block);
    }
    return listed;
  }

  const Model model_;
  const WeightBlocks blocks_;
  const Script script_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  absl::Notification requested_;
  absl::Mutex mu_;
  std::multiset<uint32_t> given_ ABSL_GUARDED_BY(mu_);
};

class WeightsOfSeveral : public ::testing::Test {
 protected:
  using Script = ScriptedNode::Script;

  void SetUp() override {
    GgufBuilder builder = TinyLlama({.n_layer = kLayers});
    for (uint32_t i = 0; i < kLayers; ++i) {
      builder.Tensor(absl::StrCat("blk.", i, ".extra.weight"), {256, 1024});
    }
    path_ = Write(builder);
    id_ = Opened(path_)->id();
  }

  absl::StatusOr<Fetched> Fetch(const std::string& source, std::vector<std::string> peers,
                                absl::Duration idle_max = kWeightIdleMax) {
    WeightFetcher::Request request;
    request.model_id = id_;
    request.address = source;
    request.peers = std::move(peers);
    request.layers = kAll;
    request.idle_max = idle_max;
    request.join_max = kLong;
    return receiver_.Fetch(std::move(request));
  }

  void ExpectAll(const absl::StatusOr<Fetched>& fetched) {
    ASSERT_THAT(fetched.status(), IsOk());
    EXPECT_TRUE(BytesOfSlice(fetched->path, kAll) == BytesOfSlice(path_, kAll));
    uint64_t bytes = 0;
    for (const WeightTransfer::Share& share : fetched->shares) bytes += share.bytes;
    EXPECT_EQ(bytes, fetched->bytes_fetched);
  }

  // The receiver learns all hashes, and gets one layer.
  void LearnHashes() {
    Source origin;
    ASSERT_THAT(origin.Share(path_), IsOk());
    Receiver other;  // makes the origin hash all blocks
    ASSERT_THAT(other.Fetch(id_, origin.address(), kAll), IsOk());
    ASSERT_THAT(receiver_.Fetch(id_, origin.address(), {2, 3}), IsOk());
  }

  std::string path_, id_;
  Receiver receiver_;
};

TEST_F(WeightsOfSeveral, AllNodesSendInParallelAndNoBlockTwice) {
  // Each node continues only when the others have a request, too.
  std::vector<std::unique_ptr<ScriptedNode>> nodes;
  absl::Notification all_are_there;
  const auto gives = [&] {
    all_are_there.WaitForNotification();
    for (const auto& node : nodes) node->AwaitRequest();
    return grpc::Status::OK;
  };
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(std::make_unique<ScriptedNode>(path_, Script{.gives = gives}));
  }
  all_are_there.Notify();
  const auto fetched =
      Fetch(nodes[0]->address(), {nodes[1]->address(), nodes[2]->address(), nodes[1]->address()});
  ExpectAll(fetched);
  ASSERT_EQ(fetched->shares.size(), 3u);
  std::multiset<uint32_t> given;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(fetched->shares[i].bytes, 0u) << i;
    EXPECT_EQ(fetched->shares[i].address, nodes[i]->address());
    given.merge(nodes[i]->given());
  }
  EXPECT_EQ(given.size(), std::set<uint32_t>(given.begin(), given.end()).size());
  EXPECT_EQ(fetched->bytes_fetched, SourceBytes(path_, kAll));
}

TEST_F(WeightsOfSeveral, ASlowNodeIsNotAwaited) {
  Source source;
  ASSERT_THAT(source.Share(path_), IsOk());
  absl::Notification almost_all_came;
  ScriptedNode slow(path_, {.gives = [&] {
                      almost_all_came.WaitForNotification();
                      return grpc::Status::OK;
                    }});
  WeightFetcher::Request request;
  request.model_id = id_;
  request.address = source.address();
  request.peers = {slow.address()};
  request.layers = kAll;
  request.join_max = kLong;
  // The slow node's first request is at most half.
  const uint64_t half = SourceBytes(path_, kAll) / 2;
  const auto fetched = receiver_.Fetch(std::move(request), [&](uint64_t done, uint64_t) {
    if (done >= half && !almost_all_came.HasBeenNotified()) almost_all_came.Notify();
  });
  ExpectAll(fetched);
  EXPECT_GT(fetched->shares[0].bytes, 0u);
}

TEST_F(WeightsOfSeveral, AWrongBlockIsRefusedAndComesFromAnother) {
  ScriptedNode liar(path_, {.flips = [](uint32_t) { return true; }});
  ScriptedNode source(path_, {.gives = [&] {
                        liar.AwaitRequest();
                        return grpc::Status::OK;
                      }});
  const auto fetched = Fetch(source.address(), {liar.address()});
  ExpectAll(fetched);
  EXPECT_EQ(fetched->shares[0].bytes, SourceBytes(path_, kAll));
  EXPECT_EQ(fetched->shares[1].bytes, 0u);
  // None of them was requested again.
  const std::multiset<uint32_t> given = liar.given();
  EXPECT_EQ(given.size(), std::set<uint32_t>(given.begin(), given.end()).size());
  EXPECT_FALSE(given.empty());
}

TEST_F(WeightsOfSeveral, AWrongBlockOfTheSourceComesFromAPeer) {
  Source honest;
  ASSERT_THAT(honest.Share(path_), IsOk());
  Receiver other;
  auto fetched_there = other.Fetch(id_, honest.address(), kAll);
  ASSERT_THAT(fetched_there, IsOk());
  Source peer("", other.cache());
  uint32_t large = 0;
  const WeightBlocks blocks(*Opened(path_));
  while (blocks[large].bytes < (1u << 20)) ++large;
  ScriptedNode source(path_, {.flips = [large](uint32_t block) { return block == large; }});
  const auto fetched = Fetch(source.address(), {peer.address()});
  ExpectAll(fetched);
  EXPECT_GE(fetched->shares[1].bytes, 1u << 20);
}

TEST_F(WeightsOfSeveral, WrongBlocksWithoutAnotherProviderEndTheFetch) {
  LearnHashes();
  ScriptedNode liar(path_, {.flips = [](uint32_t) { return true; }});
  EXPECT_THAT(Fetch("127.0.0.1:1", {liar.address()}),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(liar.address()), HasSubstr("do not have their hash"))));
}

TEST_F(WeightsOfSeveral, WithoutTheSourcePeersWithAllBlocksSuffice) {
  LearnHashes();
  ScriptedNode even(path_, {.has = [](uint32_t block) { return block % 2 == 0; }});
  ScriptedNode odd(path_, {.has = [](uint32_t block) { return block % 2 == 1; }});
  const auto fetched = Fetch("127.0.0.1:1", {even.address(), odd.address()});
  ExpectAll(fetched);
  EXPECT_EQ(fetched->shares[0].bytes, 0u);
  EXPECT_GT(fetched->shares[1].bytes, 0u);
  EXPECT_GT(fetched->shares[2].bytes, 0u);
}

TEST_F(WeightsOfSeveral, WithoutTheSourceMissingBlocksAreReported) {
  LearnHashes();
  ScriptedNode even(path_, {.has = [](uint32_t block) { return block % 2 == 0; }});
  EXPECT_THAT(Fetch("127.0.0.1:1", {even.address()}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("no other node has all"))));
}

TEST_F(WeightsOfSeveral, WithoutAHashOfTheSourcePeersAreNotUsed) {
  {
    Source origin;  // has hashed nothing before
    ASSERT_THAT(origin.Share(path_), IsOk());
    ASSERT_THAT(receiver_.Fetch(id_, origin.address(), {2, 3}), IsOk());
  }
  ScriptedNode peer(path_, {});
  EXPECT_THAT(Fetch("127.0.0.1:1", {peer.address()}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("cannot be checked"))));
  EXPECT_THAT(peer.given(), IsEmpty());
}

TEST_F(WeightsOfSeveral, WithoutAnySourcePeersAreTrusted) {
  ScriptedNode even(path_, {.has = [](uint32_t block) { return block % 2 == 0; }});
  ScriptedNode odd(path_, {.has = [](uint32_t block) { return block % 2 == 1; }});
  const auto fetched = Fetch("", {even.address(), odd.address()});
  ExpectAll(fetched);
  EXPECT_GT(fetched->shares[1].bytes, 0u);
  EXPECT_GT(fetched->shares[2].bytes, 0u);
}

TEST_F(WeightsOfSeveral, WithoutAnySourceAWrongBlockComesFromAnother) {
  ScriptedNode liar(path_, {.flips = [](uint32_t) { return true; }});
  // It joins once the other node has a request.
  ScriptedNode honest(path_, {.has = [&](uint32_t) {
                        liar.AwaitRequest();
                        return true;
                      }});
  const auto fetched = Fetch("", {liar.address(), honest.address()});
  ExpectAll(fetched);
  EXPECT_EQ(fetched->shares[1].bytes, 0u);
  EXPECT_FALSE(liar.given().empty());
}

TEST_F(WeightsOfSeveral, WithoutAnySourceEarlierHashesCount) {
  LearnHashes();
  ScriptedNode liar(path_, {.flips = [](uint32_t) { return true; }, .hashes_flipped = true});
  EXPECT_THAT(Fetch("", {liar.address()}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("do not have their hash")));
}

TEST_F(WeightsOfSeveral, WithoutAnySourceMissingBlocksAreReported) {
  ScriptedNode even(path_, {.has = [](uint32_t block) { return block % 2 == 0; }});
  EXPECT_THAT(Fetch("", {even.address()}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no node that answers has the model's file"),
                             HasSubstr("no other node has all"))));
  EXPECT_THAT(Fetch("", {}), StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("no node that answers has the model's file")));
}

TEST_F(WeightsOfSeveral, APeerThatDiesHalfWayIsReplaced) {
  ScriptedNode dying(
      path_, {.gives = [] { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "it dies"); }});
  ScriptedNode source(path_, {.gives = [&] {
                        dying.AwaitRequest();
                        return grpc::Status::OK;
                      }});
  const auto fetched = Fetch(source.address(), {dying.address()});
  ExpectAll(fetched);
  EXPECT_THAT(fetched->shares[1].why,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it dies")));
}

TEST_F(WeightsOfSeveral, ASourceThatDiesHalfWayIsReplacedWhereItsHashesAreKnown) {
  LearnHashes();
  const uint64_t had = SourceBytes(path_, {2, 3});
  ScriptedNode peer(path_, {});
  ScriptedNode source(
      path_, {.gives = [] { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "it dies"); }});
  const auto fetched = Fetch(source.address(), {peer.address()});
  ExpectAll(fetched);
  EXPECT_EQ(fetched->shares[1].bytes, SourceBytes(path_, kAll) - had);
}

TEST_F(WeightsOfSeveral, ASilentPeerIsNotAwaitedForLong) {
  absl::Notification over;
  ScriptedNode mute(path_, {.gives = [&over] {
                      over.WaitForNotification();
                      return grpc::Status::CANCELLED;
                    }});
  ScriptedNode source(path_, {.gives = [&] {
                        mute.AwaitRequest();
                        return grpc::Status::OK;
                      }});
  const auto fetched = Fetch(source.address(), {mute.address()}, absl::Seconds(8));
  over.Notify();
  ExpectAll(fetched);
  EXPECT_THAT(fetched->shares[1].why,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("sent nothing")));
}

TEST_F(WeightsOfSeveral, PeersThatHaveNothingOrAreNotThereAreLeftOut) {
  Source source, stranger;
  ASSERT_THAT(source.Share(path_), IsOk());
  const TakenPort nobody({.listens = false});
  const auto fetched = Fetch(source.address(), {stranger.address(), nobody.address(), ""});
  ExpectAll(fetched);
  EXPECT_EQ(fetched->shares[0].bytes, SourceBytes(path_, kAll));
  ASSERT_EQ(fetched->shares.size(), 3u);
}

TEST_F(WeightsOfSeveral, APeerWhoseCacheLostABlockGivesTheOthers) {
  Source source;
  ASSERT_THAT(source.Share(path_), IsOk());
  LearnHashes();
  std::atomic<bool> first = true;
  ScriptedNode peer(path_, {.gives = [&first] {
                      return first.exchange(false)
                                 ? grpc::Status(grpc::StatusCode::DATA_LOSS, "damaged")
                                 : grpc::Status::OK;
                    }});
  ExpectAll(Fetch(source.address(), {peer.address()}));
}

TEST_F(WeightsOfSeveral, TwoStagesOfANodeFetchEachBlockOnce) {
  Source source;
  ASSERT_THAT(source.Share(path_), IsOk());
  std::vector<absl::StatusOr<Fetched>> fetched(2);
  std::thread other([&] { fetched[0] = receiver_.Fetch(id_, source.address(), {0, 5}); });
  fetched[1] = receiver_.Fetch(id_, source.address(), {3, kLayers});
  other.join();
  ASSERT_THAT(fetched[0], IsOk());
  ASSERT_THAT(fetched[1], IsOk());
  EXPECT_EQ(fetched[0]->bytes_fetched + fetched[1]->bytes_fetched, source.service().bytes_sent());
  EXPECT_EQ(source.service().bytes_sent(), SourceBytes(path_, kAll));
}

TEST_F(WeightsOfSeveral, AFetchFromAllIsCancelled) {
  absl::Notification over;
  const auto hangs = [&over] {
    over.WaitForNotification();
    return grpc::Status::CANCELLED;
  };
  ScriptedNode source(path_, {.gives = hangs});
  ScriptedNode peer(path_, {.gives = hangs});
  std::thread canceller([&] {
    source.AwaitRequest();
    receiver_.Cancel();
  });
  EXPECT_THAT(Fetch(source.address(), {peer.address()}), StatusIs(absl::StatusCode::kCancelled));
  over.Notify();
  canceller.join();
}

}  // namespace
}  // namespace strata
