// Moves the contents of a stage's slots from worker to worker.
#include "shard/kv_transfer/cache_mover.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "proto/node.grpc.pb.h"
#include "shard/kv_transfer/cache_stream.h"
#include "shard/model/weight_blocks.h"
#include "shard/serving/stage_server.h"
#include "tests/shard/engine/stage_chain.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/base/clock.h"
#include "transport/link/payload.h"

namespace strata {
namespace {

using Code = absl::StatusCode;

// As shard/worker/worker_service.cc serves it.
class Reader final : public wire::Worker::CallbackService {
 public:
  explicit Reader(std::shared_ptr<StageServer> stage) : stage_(std::move(stage)) {}
  grpc::ServerWriteReactor<wire::CachePiece>* ReadCaches(
      grpc::CallbackServerContext*, const wire::ReadCachesRequest* request) override {
    return StreamCaches(stage_, *request);
  }

 private:
  const std::shared_ptr<StageServer> stage_;  // shared with the test
};

// Writes the given pieces, then repeats the last one for as long as somebody reads.
class Liar final : public wire::Worker::Service {
 public:
  explicit Liar(std::vector<wire::CachePiece> pieces, bool endless = false)
      : pieces_(std::move(pieces)), endless_(endless) {}
  grpc::Status ReadCaches(grpc::ServerContext*, const wire::ReadCachesRequest*,
                          grpc::ServerWriter<wire::CachePiece>* writer) override {
    for (const wire::CachePiece& piece : pieces_) writer->Write(piece);
    while (endless_ && writer->Write(pieces_.back())) {
    }
    return grpc::Status::OK;
  }

 private:
  const std::vector<wire::CachePiece> pieces_;
  const bool endless_;
};

wire::CachePiece Piece(int32_t slot, uint32_t begin, uint32_t end, bool more = false) {
  wire::CachePiece piece;
  piece.mutable_of()->set_slot(slot);
  piece.mutable_of()->set_version(1);
  piece.mutable_of()->set_positions(end);
  piece.set_begin(begin);
  piece.set_end(end);
  piece.set_data(std::string(1 << 16, 'x'));
  piece.set_more(more);
  if (!more) piece.set_hash(HashOfBytes(piece.data()));
  return piece;
}

// A stage that can be read.
class ReadStage {
 public:
  ReadStage(const std::shared_ptr<const ModelFile>& model, LayerRange layers) {
    wire::StageSpec spec;
    spec.set_n_stages(1);
    absl::Notification loaded;
    stage_ = StageServer::Start(
        spec, Clock::Real(), [&] { return LoadStage(model, layers, Options()); },
        [&](const absl::StatusOr<Stage::Facts>& facts) {
          EXPECT_TRUE(facts.ok()) << facts.status();
          loaded.Notify();
        });
    loaded.WaitForNotification();
    Serve();
  }

  void Serve() { Serve(std::make_unique<Reader>(stage_)); }
  void Serve(std::unique_ptr<grpc::Service> service) {
    server_.reset();
    service_ = std::move(service);
    server_.emplace(ServiceServer::Served{.service = service_.get()});
  }
  void Unload() { stage_->TakeStage(); }
  std::string address() const { return server_->address(); }

  // Returns the activations for the next stage.
  Payload Feed(const Rows& rows, const Payload& activations = {}) {
    Payload out;
    Do([&](Stage* stage) {
      std::vector<int32_t> tokens, positions, slots;
      for (const Row& row : rows) {
        tokens.push_back(row.token);
        positions.push_back(row.position);
        slots.push_back(row.slot);
      }
      Stage::Batch batch = {.positions = positions, .slots = slots};
      if (stage->facts().is_first) batch.tokens = tokens;
      if (!stage->facts().is_first) batch.activations = activations.floats();
      const absl::Status status = stage->Decode(batch);
      EXPECT_TRUE(status.ok()) << status;
      if (!stage->facts().is_last) out = stage->TakeActivations();
    });
    return out;
  }
  void Drop(int32_t slot) {
    Do([&](Stage* stage) {
      wire::KvEdit edit;
      edit.set_kind(wire::KvEdit::DROP);
      edit.set_slot(slot);
      EXPECT_TRUE(stage->Apply(edit).ok());
    });
  }

 private:
  void Do(const std::function<void(Stage*)>& task) {
    absl::Notification done;
    ASSERT_TRUE(stage_
                    ->Post([&](Stage* stage) {
                      task(stage);
                      done.Notify();
                    })
                    .ok());
    done.WaitForNotification();
  }

  std::shared_ptr<StageServer> stage_;  // shared with the service
  std::unique_ptr<grpc::Service> service_;
  std::optional<ServiceServer> server_;
};

class CacheMover : public ::testing::Test {
 protected:
  void SetUp() override { Read(&here_, {0, 6}); }

  // In the order of their layers.
  void Read(const ReadStage* stage, LayerRange layers) {
    wire::CacheSource* const from = request_.add_from();
    from->set_address(stage->address());
    from->mutable_layers()->set_begin(layers.begin);
    from->mutable_layers()->set_end(layers.end);
  }
  void Feed(const Rows& rows) { here_.Feed(rows); }
  void Drop(int32_t slot) { here_.Drop(slot); }

  absl::StatusOr<wire::MoveCachesResponse> TryTake() {
    return TakeCaches(request_, [] { return true; }, there_.get());
  }
  // Copies, and remembers the slots for the next call.
  wire::MoveCachesResponse TakeAll() {
    auto moved = TryTake();
    EXPECT_TRUE(moved.ok()) << moved.status();
    if (!moved.ok()) return {};
    for (int i = 0; i < request_.from_size(); ++i) {
      *request_.mutable_from(i)->mutable_has() = moved->from(i).slots();
    }
    return *std::move(moved);
  }
  // Bytes received.
  uint64_t Take() { return TakeAll().bytes(); }
  absl::Status TakeFrom(std::unique_ptr<grpc::Service> service) {
    here_.Serve(std::move(service));
    request_.mutable_from(0)->set_address(here_.address());
    return TryTake().status();
  }
  std::vector<uint32_t> Lengths() const {
    std::vector<uint32_t> lengths;
    for (int32_t slot = 0; slot < 4; ++slot) lengths.push_back(there_->SlotStateOf(slot).positions);
    return lengths;
  }

  const std::shared_ptr<const ModelFile> model_ = OpenModel(Llama());
  ReadStage here_{model_, {0, 6}};
  std::unique_ptr<Stage> there_ = LoadStage(model_, {0, 6}, Options());
  wire::MoveCachesRequest request_;
};

TEST_F(CacheMover, CopiesEverythingAndThenTheChanges) {
  EXPECT_EQ(Take(), 0u);
  Feed(Prompt(0, 0, 60));
  Feed(Prompt(2, 0, 40));
  const uint64_t all = Take();
  EXPECT_GT(all, 0u);
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{60, 0, 40, 0}));
  EXPECT_EQ(Take(), 0u);
  Feed(Prompt(0, 60, 2));
  const uint64_t two = Take();
  EXPECT_GT(two, 0u);
  EXPECT_LT(two, all / 10);
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{62, 0, 40, 0}));
  // A dropped slot, and another sequence in its place.
  Drop(2);
  Feed(Prompt(3, 0, 5));
  Drop(0);
  Feed(Prompt(0, 0, 7));
  Take();
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{7, 0, 0, 5}));
  ASSERT_EQ(request_.from(0).has_size(), 2);
  EXPECT_EQ(request_.from(0).has(0).positions(), 7u);
  EXPECT_EQ(request_.from(0).has(1).slot(), 3);
}

TEST_F(CacheMover, ReportsAMissingSlotOrAnUnloadedStage) {
  request_.mutable_from(0)->add_has()->set_slot(99);
  EXPECT_EQ(TryTake().status().code(), Code::kInvalidArgument);
  request_.mutable_from(0)->clear_has();
  here_.Unload();
  EXPECT_FALSE(TryTake().ok());
}

TEST_F(CacheMover, RefusesInvalidCachesAtOnce) {
  const auto refuses = [this](std::vector<wire::CachePiece> pieces, bool endless = false) {
    const absl::Status status = TakeFrom(std::make_unique<Liar>(std::move(pieces), endless));
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
    EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 0, 0, 0}));
  };
  refuses({Piece(4, 0, 9)});
  refuses({Piece(-1, 0, 9)});
  refuses({Piece(0, 0, 9, /*more=*/true), Piece(0, 3, 9)});
  refuses({Piece(0, 0, 9, /*more=*/true)});
  wire::CachePiece other = Piece(1, 0, 9);
  refuses({Piece(0, 0, 9, /*more=*/true), other});
  other.mutable_of()->set_positions(7);
  refuses({other});
  refuses({Piece(0, 5, 9)});
  refuses({Piece(0, 0, 129)});
  refuses({Piece(0, 0, 9, /*more=*/true)}, /*endless=*/true);
}

// The next call starts from `has`, regardless of the slots that the failed call has written.
TEST_F(CacheMover, SlotsOfAFailedCallAreCopiedAgain) {
  Feed(Prompt(1, 0, 20));
  Take();
  const std::unique_ptr<Stage> other = LoadStage(model_, {0, 6}, Options());
  const Rows rows = Prompt(1, 0, 30) + Prompt(2, 0, 30);
  std::vector<int32_t> tokens, positions, slots;
  for (const Row& row : rows) {
    tokens.push_back(row.token);
    positions.push_back(row.position);
    slots.push_back(row.slot);
  }
  ASSERT_TRUE(other->Decode({.tokens = tokens, .positions = positions, .slots = slots}).ok());
  const auto piece = [&](int32_t slot, uint32_t begin) {
    wire::CachePiece piece = Piece(slot, begin, 30);
    auto part = other->ReadCache(slot, begin, 30);
    EXPECT_TRUE(part.ok()) << part.status();
    if (part.ok()) piece.set_data(std::move(part->bytes));
    piece.set_hash(HashOfBytes(piece.data()));
    return piece;
  };
  std::vector<wire::CachePiece> pieces = {piece(1, 20), piece(2, 0), Piece(4, 0, 9)};
  EXPECT_EQ(TakeFrom(std::make_unique<Liar>(std::move(pieces))).code(), Code::kInvalidArgument);
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 30, 0, 0}));
  here_.Serve();
  request_.mutable_from(0)->set_address(here_.address());
  Take();
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 20, 0, 0}));
}

// The other worker may be waiting for this very stage.
TEST_F(CacheMover, GivesUpOnAWorkerThatSendsNothing) {
  class Silent final : public wire::Worker::Service {
   public:
    grpc::Status ReadCaches(grpc::ServerContext* context, const wire::ReadCachesRequest*,
                            grpc::ServerWriter<wire::CachePiece>*) override {
      while (!context->IsCancelled()) std::this_thread::yield();
      return grpc::Status::CANCELLED;
    }
  };
  here_.Serve(std::make_unique<Silent>());
  request_.mutable_from(0)->set_address(here_.address());
  EXPECT_EQ(TakeCaches(
                request_, [] { return true; }, there_.get(), std::chrono::milliseconds(50))
                .status()
                .code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(
      TakeCaches(request_, [] { return false; }, there_.get()).status().code(), Code::kCancelled);
}

TEST_F(CacheMover, BytesThatLibllamaDoesNotKnowLeaveTheSlotEmpty) {
  EXPECT_EQ(TakeFrom(std::make_unique<Liar>(std::vector{Piece(1, 0, 9)})).code(), Code::kDataLoss);
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 0, 0, 0}));
}

TEST_F(CacheMover, BytesThatAreNotWhatWasReadAreNotTaken) {
  Feed(Prompt(1, 0, 20));
  Take();
  const std::vector<uint32_t> before = Lengths();
  const auto refuses = [&](const wire::CachePiece& last) {
    std::vector<wire::CachePiece> pieces = {Piece(2, 0, 9, /*more=*/true), last};
    const absl::Status status = TakeFrom(std::make_unique<Liar>(std::move(pieces)));
    EXPECT_EQ(status.code(), Code::kDataLoss) << status;
    EXPECT_NE(status.message().find("slot 2"), absl::string_view::npos) << status;
    EXPECT_EQ(Lengths(), before);
  };
  // The hash of the last piece only, and no hash.
  wire::CachePiece last = Piece(2, 0, 9);
  refuses(last);
  last.clear_hash();
  refuses(last);
  // One bit of the whole.
  last.set_hash(HashOfBytes(Piece(2, 0, 9).data() + last.data()));
  (*last.mutable_data())[77] ^= 1;
  refuses(last);
}

// Caches copied from two stages that have this stage's layers and others.
class CachesOfTwo : public CacheMover {
 protected:
  void SetUp() override {
    Read(&lower_, {0, 2});
    Read(&upper_, {2, 6});
    there_ = LoadStage(model_, {1, 5}, Options());
  }
  void FeedBoth(const Rows& rows) {
    here_.Feed(rows);
    upper_.Feed(rows, lower_.Feed(rows));
  }
  // Whether the slot equals that of a stage with these layers.
  void ExpectAsComputed(int32_t slot, const Rows& rows) {
    Chain chain(model_, {0, 1, 5, 6}, Options());
    ASSERT_TRUE(chain.Decode(rows).ok());
    const auto expected = chain.stage(1).ReadCache(slot, 0, 128);
    const auto got = there_->ReadCache(slot, 0, 128);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    EXPECT_EQ(expected->bytes, got->bytes);
  }

  ReadStage lower_{model_, {0, 2}}, upper_{model_, {2, 6}};
};

TEST_F(CachesOfTwo, AreCopiedByLayers) {
  FeedBoth(Prompt(1, 0, 33));
  EXPECT_FALSE(TakeAll().lags());
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 33, 0, 0}));
  ExpectAsComputed(1, Prompt(1, 0, 33));
  EXPECT_EQ(Take(), 0u);
  FeedBoth(Prompt(1, 33, 4));
  FeedBoth(Prompt(3, 0, 6));
  EXPECT_FALSE(TakeAll().lags());
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 37, 0, 6}));
  ExpectAsComputed(3, Prompt(3, 0, 6));
}

TEST_F(CachesOfTwo, WaitForTheSlowerStage) {
  const Rows first = Prompt(0, 0, 20), second = Prompt(0, 20, 5), other = Prompt(2, 0, 9);
  FeedBoth(first);
  FeedBoth(other);
  Take();
  const Payload activations = lower_.Feed(second);
  FeedBoth(Prompt(2, 9, 1));
  EXPECT_TRUE(TakeAll().lags());
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{20, 0, 10, 0}));
  upper_.Feed(second, activations);
  EXPECT_FALSE(TakeAll().lags());
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{25, 0, 10, 0}));
  // The last of all slots, too.
  lower_.Feed(Prompt(3, 0, 9));
  EXPECT_TRUE(TakeAll().lags());
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{25, 0, 10, 0}));
}

TEST_F(CachesOfTwo, ASlotThatOneStageHasDroppedIsEmpty) {
  FeedBoth(Prompt(0, 0, 20));
  FeedBoth(Prompt(1, 0, 20));
  Take();
  const Rows anew = Prompt(0, 0, 7), more = Prompt(0, 20, 3);
  const Payload old = lower_.Feed(more);
  lower_.Drop(0);
  upper_.Feed(more, old);
  const Payload activations = lower_.Feed(anew);
  EXPECT_TRUE(TakeAll().lags());
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 20, 0, 0}));
  upper_.Drop(0);
  upper_.Feed(anew, activations);
  EXPECT_FALSE(TakeAll().lags());
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{7, 20, 0, 0}));
  ExpectAsComputed(0, anew);
}

TEST_F(CachesOfTwo, WithMissingLayersAreRefused) {
  const auto refuses = [this](const std::vector<LayerRange>& had) {
    request_.clear_from();
    for (const LayerRange layers : had) Read(&here_, layers);
    EXPECT_EQ(TryTake().status().code(), Code::kInvalidArgument);
  };
  refuses({});
  refuses({{0, 2}});
  refuses({{2, 6}});
  refuses({{0, 2}, {3, 6}});
  refuses({{2, 6}, {0, 2}});
  refuses({{0, 6}, {5, 6}});
  // A stage that claims to have them.
  request_.clear_from();
  Read(&lower_, {0, 2});
  Read(&lower_, {2, 6});
  FeedBoth(Prompt(0, 0, 5));
  EXPECT_EQ(TryTake().status().code(), Code::kInvalidArgument);
}

TEST_F(CachesOfTwo, InvalidLayerBytesAreRefused) {
  FeedBoth(Prompt(0, 0, 9));
  upper_.Serve(std::make_unique<Liar>(std::vector{Piece(0, 0, 9)}));
  request_.mutable_from(1)->set_address(upper_.address());
  EXPECT_EQ(TryTake().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{0, 0, 0, 0}));
}

TEST(CachesThatCannotBeSplit, AreNotCopiedByLayers) {
  const auto model = OpenModel(Windowed());
  const std::unique_ptr<Stage> stage = LoadStage(model, {0, 6}, Options());
  wire::MoveCachesRequest request;
  request.add_from()->mutable_layers()->set_end(12);
  EXPECT_EQ(
      TakeCaches(request, [] { return true; }, stage.get()).status().code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace strata
