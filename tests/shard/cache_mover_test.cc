// What a stage's slots hold, from worker to worker.
#include "shard/cache_mover.h"

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
#include "shard/cache_stream.h"
#include "shard/stage_server.h"
#include "tests/shard/stage_chain.h"
#include "tests/transport/grpc_server.h"
#include "transport/clock.h"

namespace strata {
namespace {

using Code = absl::StatusCode;

// As shard/worker_service.cc serves it.
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

// Writes what it is told to, then goes on with the last piece for as long as somebody reads.
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
  return piece;
}

class CacheMover : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto model = OpenModel(Llama());
    wire::StageSpec spec;
    spec.set_n_stages(1);
    absl::Notification loaded;
    stage_ = StageServer::Start(
        spec, Clock::Real(), [&] { return LoadStage(model, {0, 6}, Options()); },
        [&](const absl::StatusOr<Stage::Facts>& facts) {
          EXPECT_TRUE(facts.ok()) << facts.status();
          loaded.Notify();
        });
    loaded.WaitForNotification();
    there_ = LoadStage(model, {0, 6}, Options());
    Serve(std::make_unique<Reader>(stage_));
  }
  void Serve(std::unique_ptr<grpc::Service> service) {
    server_.reset();
    service_ = std::move(service);
    server_.emplace(ServiceServer::Served{.service = service_.get()});
    request_.set_from_address(server_->address());
  }

  // On the thread of the stage that is read.
  void Here(const std::function<void(Stage*)>& task) {
    absl::Notification done;
    ASSERT_TRUE(stage_
                    ->Post([&](Stage* stage) {
                      task(stage);
                      done.Notify();
                    })
                    .ok());
    done.WaitForNotification();
  }
  void Feed(const Rows& rows) {
    Here([&](Stage* stage) {
      std::vector<int32_t> tokens, positions, slots;
      for (const Row& row : rows) {
        tokens.push_back(row.token);
        positions.push_back(row.position);
        slots.push_back(row.slot);
      }
      const absl::Status status =
          stage->Decode({.tokens = tokens, .positions = positions, .slots = slots});
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  void Drop(int32_t slot) {
    Here([&](Stage* stage) {
      wire::KvEdit edit;
      edit.set_kind(wire::KvEdit::DROP);
      edit.set_slot(slot);
      EXPECT_TRUE(stage->Apply(edit).ok());
    });
  }

  // And remembers what it has then. Bytes that came.
  uint64_t Take() {
    auto moved = TakeCaches(request_, [] { return true; }, there_.get());
    EXPECT_TRUE(moved.ok()) << moved.status();
    if (!moved.ok()) return 0;
    *request_.mutable_has() = moved->slots();
    return moved->bytes();
  }
  absl::Status TakeFrom(std::unique_ptr<grpc::Service> service) {
    Serve(std::move(service));
    return TakeCaches(request_, [] { return true; }, there_.get()).status();
  }
  std::vector<uint32_t> Lengths() const {
    std::vector<uint32_t> lengths;
    for (int32_t slot = 0; slot < 4; ++slot) lengths.push_back(there_->HeldIn(slot).positions);
    return lengths;
  }

  std::shared_ptr<StageServer> stage_;  // shared with the service
  std::unique_ptr<Stage> there_;
  std::unique_ptr<grpc::Service> service_;
  std::optional<ServiceServer> server_;
  wire::MoveCachesRequest request_;
};

TEST_F(CacheMover, TakesWhatIsThereAndThenWhatHasChanged) {
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
  // One that is no more, and another one in its place.
  Drop(2);
  Feed(Prompt(3, 0, 5));
  Drop(0);
  Feed(Prompt(0, 0, 7));
  Take();
  EXPECT_EQ(Lengths(), (std::vector<uint32_t>{7, 0, 0, 5}));
  ASSERT_EQ(request_.has_size(), 2);
  EXPECT_EQ(request_.has(0).positions(), 7u);
  EXPECT_EQ(request_.has(1).slot(), 3);
}

TEST_F(CacheMover, SaysThatTheOtherStageHasNoSuchSlotOrIsUnloaded) {
  request_.add_has()->set_slot(99);
  EXPECT_EQ(TakeCaches(
                request_, [] { return true; }, there_.get())
                .status()
                .code(),
            Code::kInvalidArgument);
  request_.clear_has();
  stage_->TakeStage();
  EXPECT_FALSE(TakeCaches(request_, [] { return true; }, there_.get()).ok());
}

TEST_F(CacheMover, RefusesWhatIsNoCacheAndWaitsForNoMore) {
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

// It may wait for this very stage.
TEST_F(CacheMover, GivesUpOnAWorkerThatSendsNothing) {
  class Silent final : public wire::Worker::Service {
   public:
    grpc::Status ReadCaches(grpc::ServerContext* context, const wire::ReadCachesRequest*,
                            grpc::ServerWriter<wire::CachePiece>*) override {
      while (!context->IsCancelled()) std::this_thread::yield();
      return grpc::Status::CANCELLED;
    }
  };
  Serve(std::make_unique<Silent>());
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

}  // namespace
}  // namespace strata
