#include "shard/kv_transfer/cache_stream.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/engine/sequence_state.h"
#include "shard/model/weight_blocks.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// The most that is read between two steps, and the longest time. At least one part is read.
constexpr size_t kTurnBytes = 8 * kCachePieceBytes;
constexpr std::chrono::milliseconds kTurnTime(20);
// A request may set the positions of a part to at most this many times the default.
constexpr uint32_t kPositionsFactorMax = 4;

// Never used by two threads at once: one hands it to the other by Post() and StartWrite().
class CacheStream final : public grpc::ServerWriteReactor<wire::CachePiece> {
 public:
  CacheStream(const std::shared_ptr<StageServer>& stage, const wire::ReadCachesRequest& request,
              std::shared_ptr<void> keeps)
      : stage_(stage),
        keeps_(std::move(keeps)),
        layers_{.begin = request.layers().begin(), .end = request.layers().end()},
        positions_max_(request.positions()) {
    for (const wire::SlotCache& slot : request.has()) {
      sent_[slot.slot()] = {.version = slot.version(), .positions = slot.positions()};
    }
    ReadNext();
  }

 private:
  ~CacheStream() override = default;

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader has gone"));
    if (written_ == parts_.front().part.bytes.size()) {
      parts_.pop_front();
      written_ = 0;
    }
    Continue();
  }
  void OnDone() override { delete this; }

  void Continue() {
    if (!parts_.empty()) {
      WritePiece();
    } else if (is_done_) {
      Finish(grpc::Status::OK);
    } else {
      ReadNext();
    }
  }

  void ReadNext() {
    const std::shared_ptr<StageServer> server = stage_.lock();
    if (server == nullptr) return Finish(ToGrpc(Unloaded()));
    const absl::Status posted = server->Post([this](Stage* stage) {
      const absl::Status status = stage == nullptr ? Unloaded() : ReadTurn(stage);
      if (!status.ok()) return Finish(ToGrpc(status));
      Continue();
    });
    if (!posted.ok()) Finish(ToGrpc(posted));
  }

  // With no bytes and no positions: the reader must drop the slot.
  struct ReadPart {
    int32_t slot = 0;
    Stage::Held held;
    Stage::CachePart part;
    std::string hash;
  };

  static absl::Status Unloaded() { return absl::UnavailableError("the stage was unloaded"); }

  // Reads the next parts; sets is_done_ when there are no more. Compute thread.
  absl::Status ReadTurn(Stage* stage) {
    const auto until = std::chrono::steady_clock::now() + kTurnTime;
    size_t bytes = 0;
    while (!is_done_) {
      if (absl::Status status = Read(stage); !status.ok()) return status;
      if (!is_done_) bytes += parts_.back().part.bytes.size();
      if (bytes >= kTurnBytes || std::chrono::steady_clock::now() >= until) break;
    }
    return absl::OkStatus();
  }

  // Reads the next part.
  absl::Status Read(Stage* stage) {
    const Stage::Facts& facts = stage->facts();
    const auto n_slots = static_cast<int32_t>(facts.n_seq_max);
    const LayerRange& all = facts.layers;
    if (HasLayers() &&
        (layers_.begin < all.begin || layers_.end > all.end || layers_.begin >= layers_.end)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the stage has layers ", all.begin, " to ", all.end - 1));
    }
    if (!sent_.empty() && (sent_.begin()->first < 0 || sent_.rbegin()->first >= n_slots)) {
      return absl::InvalidArgumentError(absl::StrCat("the stage has ", n_slots, " slots"));
    }
    // Slots to drop come first: the reader needs the room.
    for (; dropped_ < n_slots; ++dropped_) {
      const Stage::Held held = stage->SlotStateOf(dropped_);
      Stage::Held& sent = sent_[dropped_];
      const bool is_current = sent.version == held.version &&
                              (sent.positions == held.positions || stage->SplitsCaches());
      if (sent.positions == 0 || is_current) continue;
      sent = {};
      parts_.push_back({.slot = dropped_});
      return absl::OkStatus();
    }
    const uint64_t position_bytes = std::max<uint64_t>(1, facts.kv_bytes / facts.kv_cells);
    const auto n_default =
        static_cast<uint32_t>(std::clamp<uint64_t>(kCachePieceBytes / position_bytes, 1, 4096));
    // Clamping would give parts that do not fit another stage's, so refuse.
    if (positions_max_ > kPositionsFactorMax * n_default) {
      return absl::InvalidArgumentError(absl::StrCat(positions_max_, " positions are too many"));
    }
    const uint32_t n_max = positions_max_ == 0 ? n_default : positions_max_;
    for (; read_ < n_slots; ++read_) {
      const Stage::Held held = stage->SlotStateOf(read_);
      Stage::Held& sent = sent_[read_];
      // A slot that was reset meanwhile is left for the next call.
      const bool same = sent.positions == 0 || sent.version == held.version;
      if (!same || held.positions <= sent.positions) continue;
      auto part = stage->ReadCache(read_, sent.positions, n_max);
      if (!part.ok()) return part.status();
      if (HasLayers()) {
        auto some =
            LayersOf(part->bytes, all.size(), {layers_.begin - all.begin, layers_.end - all.begin});
        if (!some.ok()) return some.status();
        part->bytes = *std::move(some);
      }
      sent = {.version = held.version, .positions = part->end};
      std::string hash = HashOfBytes(part->bytes);
      parts_.push_back(
          {.slot = read_, .held = sent, .part = *std::move(part), .hash = std::move(hash)});
      return absl::OkStatus();
    }
    is_done_ = true;
    return absl::OkStatus();
  }

  bool HasLayers() const { return layers_.begin != 0 || layers_.end != 0; }

  void WritePiece() {
    const ReadPart& ready = parts_.front();
    const Stage::CachePart& part = ready.part;
    const size_t bytes = std::min(kCachePieceBytes, part.bytes.size() - written_);
    piece_.mutable_of()->set_slot(ready.slot);
    piece_.mutable_of()->set_version(ready.held.version);
    piece_.mutable_of()->set_positions(ready.held.positions);
    piece_.set_begin(part.begin);
    piece_.set_end(part.end);
    piece_.set_data(part.bytes.data() + written_, bytes);
    written_ += bytes;
    piece_.set_more(written_ < part.bytes.size());
    piece_.set_hash(piece_.more() ? "" : ready.hash);
    StartWrite(&piece_);
  }

  const std::weak_ptr<StageServer> stage_;  // weak: unloading does not wait for readers
  const std::shared_ptr<void> keeps_;
  const LayerRange layers_;              // requested; empty: all, as libllama writes them
  const uint32_t positions_max_;         // of a part; 0: the default
  std::map<int32_t, Stage::Held> sent_;  // by slot
  int32_t dropped_ = 0, read_ = 0;       // slots that have been examined
  bool is_done_ = false;
  std::deque<ReadPart> parts_;  // read but not written
  size_t written_ = 0;          // bytes of the first
  wire::CachePiece piece_;
};

}  // namespace

grpc::ServerWriteReactor<wire::CachePiece>* StreamCaches(const std::shared_ptr<StageServer>& stage,
                                                         const wire::ReadCachesRequest& request,
                                                         std::shared_ptr<void> keeps) {
  return new CacheStream(stage, request, std::move(keeps));
}

}  // namespace strata
