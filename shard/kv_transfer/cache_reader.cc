#include "shard/kv_transfer/cache_reader.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "shard/model/weight_blocks.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

// Bytes that a piece counts for, besides its data.
constexpr uint64_t kPieceBytes = 64;

}  // namespace

CacheReader::CacheReader(const std::string& address, const wire::ReadCachesRequest& request,
                         Limits limits)
    : address_(address),
      request_(request),
      limits_(limits),
      worker_(wire::Worker::NewStub(MakeChannel(address))) {}

CacheReader::~CacheReader() {
  if (reader_ == nullptr || is_finished_) return;
  context_.TryCancel();
  reader_->Finish();
}

absl::Status CacheReader::WorkerError(const absl::Status& why) const {
  return Prefixed(absl::StrCat("the worker at ", address_, " with the caches"), why);
}

bool CacheReader::Fits(const wire::CachePiece& piece, bool in_part, const Part& part) const {
  const int32_t slot = piece.of().slot();
  const bool is_next =
      !in_part || (slot == part.of.slot() && piece.of().version() == part.of.version() &&
                   piece.begin() == part.part.begin && piece.end() == part.part.end);
  return slot >= 0 && slot < static_cast<int64_t>(limits_.n_slots) && is_next &&
         piece.of().positions() == piece.end() && !(piece.more() && piece.data().empty()) &&
         part.part.bytes.size() + piece.data().size() <= limits_.part_bytes &&
         counted_ <= limits_.all_bytes;
}

absl::StatusOr<std::optional<CacheReader::Part>> CacheReader::Next(
    const std::function<void()>& on_piece) {
  Part part;
  wire::CachePiece piece;
  bool in_part = false;
  if (reader_ == nullptr) reader_ = worker_->ReadCaches(&context_, request_);
  while (reader_->Read(&piece)) {
    on_piece();
    bytes_ += piece.data().size();
    counted_ += piece.data().size() + kPieceBytes;
    if (!Fits(piece, in_part, part)) {
      return WorkerError(absl::InvalidArgumentError("it sends data that does not fit a cache"));
    }
    part.of = piece.of();
    part.part.begin = piece.begin();
    part.part.end = piece.end();
    try {
      part.part.bytes += piece.data();
    } catch (const std::bad_alloc&) {
      return WorkerError(absl::ResourceExhaustedError("there is no memory here for its data"));
    }
    in_part = piece.more();
    if (in_part) continue;
    // An empty slot has no bytes to compare.
    if (part.part.end != 0 && HashOfBytes(part.part.bytes) != piece.hash()) {
      return WorkerError(absl::DataLossError(
          absl::StrCat("positions ", part.part.begin, " to ", part.part.end, " of slot ",
                       part.of.slot(), " were damaged in transfer")));
    }
    return part;
  }
  is_finished_ = true;
  const grpc::Status ended = reader_->Finish();
  if (!ended.ok()) return WorkerError(FromGrpc(ended));
  if (in_part) return WorkerError(absl::InvalidArgumentError("its last part has no end"));
  return std::nullopt;
}

}  // namespace strata
