// Copies of a stage's KV blocks on another node: both ends, with real stores and calls.
#include "shard/kv_transfer/kv_replicator.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "gtest/gtest.h"
#include "proto/node.grpc.pb.h"
#include "shard/kv_store/kv_folder.h"
#include "shard/kv_transfer/kv_replicas.h"
#include "shard/model/weight_blocks.h"
#include "tests/support/temp_folder.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

constexpr char kModel[] = "a model's id";

KvName Name(int i) {
  KvName name = {};
  name[0] = static_cast<char>(i);
  return name;
}

wire::LayerRange Range(uint32_t begin, uint32_t end) {
  wire::LayerRange range;
  range.set_begin(begin);
  range.set_end(end);
  return range;
}

wire::KvIdentity IdentityOf(const std::string& device) {
  wire::KvIdentity identity;
  identity.mutable_about()->set_model_id(kModel);
  *identity.mutable_about()->mutable_layers() = Range(3, 6);
  identity.set_device(device);
  identity.set_setting("f16");
  return identity;
}

// As node/rpc/node_service.cc serves it.
class Keeper final : public wire::Node::CallbackService {
 public:
  explicit Keeper(KvReplicas* replicas) : replicas_(replicas) {}
  grpc::ServerBidiReactor<wire::KeepReplicasRequest, wire::KeepReplicasResponse>* KeepReplicas(
      grpc::CallbackServerContext*) override {
    return replicas_->Keep();
  }

 private:
  KvReplicas* const replicas_;
};

class KvReplicatorTest : public ::testing::Test {
 protected:
  KvReplicatorTest() { store_ = OpenStore(folder_ + "/here", "CPU"); }
  ~KvReplicatorTest() override {
    store_.reset();
    server_.reset();
  }

  static std::unique_ptr<KvStore> OpenStore(const std::string& folder, const std::string& device) {
    auto store = KvStore::Open({.folder = folder,
                                .identity = IdentityOf(device),
                                .bytes_max = 1 << 24,
                                .others_bytes_max = 1 << 24});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  // The node that keeps copies, which has room for half of `bytes_max`.
  void StartKeeper(uint64_t bytes_max = 1 << 24) {
    server_.reset();
    keeper_.reset();
    replicas_ = KvReplicas::Start({.folder = There(), .bytes_max = bytes_max});
    keeper_ = std::make_unique<Keeper>(replicas_.get());
    server_ = std::make_unique<ServiceServer>(ServiceServer::Served{.service = keeper_.get()});
  }
  std::string There() const { return folder_ + "/there"; }
  void Follow() {
    wire::ReplicaTarget target;
    target.set_address(server_->address());
    target.set_node_name("there");
    target.set_device("CUDA0");
    *target.mutable_layers() = Range(3, 6);
    store_->ReplaceFollowers(target.SerializeAsString(), [&] {
      KvStore::Followers followers;
      followers.push_back(StartReplicator(store_.get(), target, absl::Milliseconds(50)));
      return followers;
    });
  }
  wire::ReplicaStatus Status() const { return store_->FollowerStatus().at(0); }
  // What the stage would find that is loaded there; the replicas are closed.
  std::set<KvName> NamesThere() {
    server_.reset();
    keeper_.reset();
    replicas_.reset();
    const std::unique_ptr<KvStore> there = OpenStore(There(), "CUDA0");
    const std::vector<KvName> names = there->Names();
    return {names.begin(), names.end()};
  }
  static bool Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 1000 && !holds(); ++i) usleep(10'000);
    return holds();
  }
  // Of the blocks on the other node's disk.
  std::set<std::string> FilesThere() const {
    std::set<std::string> files;
    std::error_code error;
    for (const auto& file : std::filesystem::recursive_directory_iterator(There(), error)) {
      const std::string name = file.path().filename().string();
      if (name.size() == 2 * kKvNameBytes && !file.is_directory()) files.insert(name);
    }
    return files;
  }
  // Until so many blocks are on the other node's disk, and nothing is behind.
  bool HasAll(size_t n_blocks) const {
    return Eventually([&] {
      const wire::ReplicaStatus status = Status();
      return FilesThere().size() == n_blocks && status.note().empty() && status.bytes_behind() == 0;
    });
  }

  const std::string folder_ = testing::MakeTestFolder();
  std::unique_ptr<KvReplicas> replicas_;
  std::unique_ptr<Keeper> keeper_;
  std::unique_ptr<ServiceServer> server_;
  std::unique_ptr<KvStore> store_;
};

TEST_F(KvReplicatorTest, AStageThatIsLoadedThereFindsWhatWasKeptHere) {
  StartKeeper();
  store_->Put({Name(1), "a token"}, std::string(3'000'000, '1'));  // in several parts
  Follow();
  ASSERT_TRUE(Eventually([&] { return !replicas_->Held().empty(); })) << Status().DebugString();
  store_->Put({Name(2), ""}, "two");
  store_->Put({Name(3), ""}, "three");
  ASSERT_TRUE(HasAll(3)) << Status().DebugString();
  EXPECT_EQ(Status().node_name(), "there");
  const wire::HeldReplica held = replicas_->Held().at(0);
  EXPECT_EQ(held.model_id(), kModel);
  EXPECT_EQ(held.layers().end(), 6u);
  EXPECT_EQ(held.device(), "CUDA0");
  store_->Forget(Name(2));
  ASSERT_TRUE(HasAll(2)) << Status().DebugString();
  server_.reset();
  replicas_.reset();
  const std::unique_ptr<KvStore> there = OpenStore(There(), "CUDA0");
  EXPECT_EQ(*there->Get({Name(1), "a token"}), std::string(3'000'000, '1'));
  EXPECT_EQ(*there->Get({Name(3), ""}), "three");
  EXPECT_TRUE(absl::IsNotFound(there->Get({Name(2), ""}).status()));
  // Nobody reads it there without the token, either.
  EXPECT_TRUE(absl::IsDataLoss(there->Get({Name(1), ""}).status()));
}

TEST_F(KvReplicatorTest, BlocksOfAnEarlierTimeAreCopiedOnceTheirScopeIsKnown) {
  store_->Put({Name(1), ""}, "one");
  store_->Put({Name(2), ""}, "two");
  store_.reset();
  store_ = OpenStore(folder_ + "/here", "CPU");
  StartKeeper();
  Follow();
  EXPECT_EQ(*store_->Get({Name(2), ""}), "two");
  ASSERT_TRUE(HasAll(1)) << Status().DebugString();
  EXPECT_EQ(NamesThere(), std::set<KvName>{Name(2)});
}

TEST_F(KvReplicatorTest, WhereThereIsLittleRoomTheMostRecentlyUsedAreThere) {
  StartKeeper(/*bytes_max=*/30'000);
  for (int i = 1; i <= 4; ++i) store_->Put({Name(i), ""}, std::string(6'000, 'x'));
  Follow();
  constexpr uint64_t kFileBytes = 6'000 + kKvSealBytes;
  ASSERT_TRUE(Eventually([&] {
    return FilesThere().size() == 2 && Status().bytes_behind() == 2 * kFileBytes;
  })) << Status().DebugString();
  const std::set<std::string> before = FilesThere();
  EXPECT_TRUE(store_->Get({Name(1), ""}).ok());  // is used again
  store_->Put({Name(5), ""}, std::string(6'000, 'x'));
  ASSERT_TRUE(Eventually([&] {
    const std::set<std::string> now = FilesThere();
    return now.size() == 2 &&
           std::ranges::none_of(now, [&](const auto& file) { return before.contains(file); });
  })) << Status().DebugString();
  EXPECT_EQ(Status().bytes_behind(), 3 * kFileBytes);
  EXPECT_EQ(NamesThere(), (std::set<KvName>{Name(1), Name(5)}));
}

TEST_F(KvReplicatorTest, ANodeThatWasAwayGetsWhatItMissed) {
  StartKeeper();
  store_->Put({Name(1), ""}, "one");
  Follow();
  ASSERT_TRUE(HasAll(1)) << Status().DebugString();
  // A stage of these layers is loaded there: it has the store.
  replicas_->BeginLoad(kModel, Range(3, 6));
  std::unique_ptr<KvStore> stage;
  ASSERT_TRUE(Eventually([&] {
    if (stage == nullptr) stage = OpenStore(There(), "CUDA0");
    return stage != nullptr;
  }));
  EXPECT_EQ(*stage->Get({Name(1), ""}), "one");
  stage.reset();
  store_->Put({Name(2), ""}, "two");
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Status().note(), "being loaded"); }))
      << Status().DebugString();
  replicas_->EndLoad(kModel, Range(3, 6));  // the load has failed
  ASSERT_TRUE(HasAll(2)) << Status().DebugString();
  EXPECT_EQ(NamesThere(), (std::set<KvName>{Name(1), Name(2)}));
}

TEST_F(KvReplicatorTest, OtherLayersOfTheModelAreNotReleased) {
  StartKeeper();
  Follow();
  ASSERT_TRUE(HasAll(0)) << Status().DebugString();
  replicas_->BeginLoad(kModel, Range(0, 3));
  replicas_->BeginLoad("another", Range(3, 6));
  store_->Put({Name(1), ""}, "one");
  ASSERT_TRUE(Eventually([&] { return !replicas_->Held().empty(); })) << Status().DebugString();
  replicas_->Close(kModel);
  EXPECT_TRUE(replicas_->Held().empty()) << "they are removed next";
  EXPECT_EQ(ClearKvFolders(There(), kModel), 3 + kKvSealBytes);
}

TEST_F(KvReplicatorTest, AnOlderNodeHasNone) {
  wire::Node::Service older;  // has none of the calls
  server_ = std::make_unique<ServiceServer>(ServiceServer::Served{.service = &older});
  Follow();
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Status().note(), "older version"); }))
      << Status().DebugString();
  server_.reset();
}

TEST_F(KvReplicatorTest, ABlockThatNeverFitsCostsTheOthersNothing) {
  StartKeeper(/*bytes_max=*/30'000);
  store_->Put({Name(1), ""}, std::string(6'000, 'x'));
  store_->Put({Name(2), ""}, std::string(100'000, 'x'));
  Follow();
  ASSERT_TRUE(Eventually([&] { return !replicas_->Held().empty(); })) << Status().DebugString();
  EXPECT_GT(Status().bytes_behind(), 99'000u);
  EXPECT_EQ(NamesThere(), std::set<KvName>{Name(1)});
}

TEST_F(KvReplicatorTest, SaysWhyThereAreNone) {
  StartKeeper(/*bytes_max=*/0);
  Follow();
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Status().note(), "--kv-cache-disk"); }))
      << Status().DebugString();
  server_.reset();
  EXPECT_TRUE(Eventually([&] { return !absl::StrContains(Status().note(), "--kv-cache-disk"); }));
  EXPECT_FALSE(Status().note().empty());

  wire::ReplicaTarget none;
  none.set_why_none("no other node has room for its layers");
  store_->ReplaceFollowers("none", [&] {
    KvStore::Followers followers;
    followers.push_back(NoReplicator(none));
    return followers;
  });
  EXPECT_EQ(Status().note(), "no other node has room for its layers");
}

// A member that does not keep to the rules of Node.KeepReplicas.
TEST_F(KvReplicatorTest, RefusesWhatIsNoBlock) {
  StartKeeper();
  const auto stub = wire::Node::NewStub(MakeChannel(server_->address()));
  const auto ended = [&](const std::vector<wire::KeepReplicasRequest>& requests) {
    grpc::ClientContext context;
    const auto stream = stub->KeepReplicas(&context);
    for (const wire::KeepReplicasRequest& request : requests) {
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    wire::KeepReplicasResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish().error_code();
  };
  wire::KeepReplicasRequest open, block;
  *open.mutable_store() = IdentityOf("CUDA0");
  block.mutable_block()->set_name(JoinKvNames({Name(1)}));
  block.mutable_block()->set_data("one");
  EXPECT_EQ(ended({block}), grpc::StatusCode::UNAVAILABLE) << "no store is open";
  EXPECT_EQ(ended({open, block}), grpc::StatusCode::DATA_LOSS) << "it has no hash";
  block.mutable_block()->set_hash(HashOfBytes("one"));
  EXPECT_EQ(ended({open, open}), grpc::StatusCode::INVALID_ARGUMENT);
  wire::KeepReplicasRequest wrong = block;
  wrong.mutable_block()->set_name("short");
  EXPECT_EQ(ended({open, wrong}), grpc::StatusCode::INVALID_ARGUMENT);
  wrong = block;
  wrong.mutable_block()->set_scope(std::string(kKvScopeBytesMax + 1, 'x'));
  EXPECT_EQ(ended({open, wrong}), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ended({open, block}), grpc::StatusCode::OK);
  // A later call has the store: the other one's connection broke, which this node does not know
  // yet.
  grpc::ClientContext context;
  const auto first = stub->KeepReplicas(&context);
  wire::KeepReplicasResponse response;
  ASSERT_TRUE(first->Write(open));
  ASSERT_TRUE(first->Read(&response));
  EXPECT_EQ(response.names(), JoinKvNames({Name(1)}));
  EXPECT_EQ(ended({open, block}), grpc::StatusCode::OK);
  first->Write(block);
  EXPECT_FALSE(first->Read(&response));
  EXPECT_EQ(first->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace strata
