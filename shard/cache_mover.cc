#include "shard/cache_mover.h"

#include <algorithm>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/node.grpc.pb.h"
#include "shard/cache_stream.h"
#include "transport/grpc_link.h"
#include "transport/grpc_status.h"
#include "transport/mutex.h"
#include "transport/status_details.h"

namespace strata {
namespace {

// What libllama writes beside the cells' own bytes: less than this for each position, and in all.
constexpr uint64_t kMetaBytes = 64, kHeadBytes = 1 << 20;
// So many times the whole cache may come in a call, since texts go on meanwhile.
constexpr uint64_t kTimesMax = 4;
constexpr std::chrono::milliseconds kPoll(100);

// Cancels a call that nobody wants any more, or that gets nothing for too long.
class Watch {
 public:
  Watch(grpc::ClientContext* context, const std::function<bool()>& go_on,
        std::chrono::milliseconds limit)
      : thread_([this, context, &go_on, limit] { Run(context, go_on, limit); }) {}
  ~Watch() { Stop().IgnoreError(); }

  void Came() {
    MutexLock lock(&mu_);
    last_ = Clock::now();
  }
  // Why the call was cancelled; OK: it was not.
  absl::Status Stop() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
    return why_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Run(grpc::ClientContext* context, const std::function<bool()>& go_on,
           std::chrono::milliseconds limit) {
    while (true) {
      {
        MutexLock lock(&mu_);
        if (!stopping_) changed_.WaitUntil(&mu_, Clock::now() + std::min(kPoll, limit));
        if (stopping_) return;
        if (Clock::now() > last_ + limit) {
          why_ = absl::DeadlineExceededError("the other worker sends nothing of its caches");
        }
      }
      if (why_.ok() && !go_on()) why_ = absl::CancelledError("nobody wants the caches any more");
      if (why_.ok()) continue;
      context->TryCancel();
      return;
    }
  }

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Clock::time_point last_ ABSL_GUARDED_BY(mu_) = Clock::now();
  absl::Status why_;    // of the thread, until it is joined
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

absl::StatusOr<wire::MoveCachesResponse> TakeCaches(const wire::MoveCachesRequest& request,
                                                    const std::function<bool()>& go_on,
                                                    Stage* stage,
                                                    std::chrono::milliseconds piece_limit) {
  const Stage::Facts& facts = stage->facts();
  const uint64_t all_bytes = facts.kv_bytes + facts.kv_cells * kMetaBytes + kHeadBytes;
  const uint64_t part_bytes =
      stage->SplitsCaches() ? std::min(all_bytes, 4 * kCachePieceBytes + all_bytes / facts.kv_cells)
                            : all_bytes;
  std::map<int32_t, wire::SlotCache> has;
  for (const wire::SlotCache& slot : request.has()) has[slot.slot()] = slot;

  wire::ReadCachesRequest read;
  *read.mutable_epoch() = request.from().epoch();
  read.set_stage(request.from().stage());
  *read.mutable_has() = request.has();
  const auto worker = wire::Worker::NewStub(MakeChannel(request.from_address()));
  grpc::ClientContext context;
  const auto reader = worker->ReadCaches(&context, read);
  Watch watch(&context, go_on, piece_limit);
  const auto said_of = [&](const absl::Status& why) {
    return Prefixed(absl::StrCat("the worker at ", request.from_address(), " with the caches"),
                    why);
  };
  // Nothing waits for a peer that stops, whatever it was about to send.
  const auto fail = [&](const absl::Status& why) {
    context.TryCancel();
    reader->Finish();
    return said_of(why);
  };

  wire::MoveCachesResponse response;
  Stage::CachePart part;
  wire::CachePiece piece;
  wire::SlotCache of;
  bool in_part = false;
  while (reader->Read(&piece)) {
    watch.Came();
    const int32_t slot = piece.of().slot();
    const bool goes_on = !in_part || (slot == of.slot() && piece.of().version() == of.version() &&
                                      piece.begin() == part.begin && piece.end() == part.end);
    response.set_bytes(response.bytes() + piece.data().size());
    if (slot < 0 || slot >= static_cast<int32_t>(facts.n_seq_max) || !goes_on ||
        piece.of().positions() != piece.end() || (piece.more() && piece.data().empty()) ||
        part.bytes.size() + piece.data().size() > part_bytes ||
        response.bytes() > kTimesMax * all_bytes) {
      return fail(absl::InvalidArgumentError("it sends what is no cache's"));
    }
    of = piece.of();
    part.begin = piece.begin();
    part.end = piece.end();
    try {
      part.bytes += piece.data();
    } catch (const std::bad_alloc&) {
      return fail(absl::ResourceExhaustedError("there is no memory here for what it sends"));
    }
    in_part = piece.more();
    if (in_part) continue;
    if (part.end == 0) {
      wire::KvEdit drop;
      drop.set_kind(wire::KvEdit::DROP);
      drop.set_slot(slot);
      if (auto s = stage->Apply(drop); !s.ok()) return fail(s);
      has.erase(slot);
    } else {
      if (auto s = stage->WriteCache(slot, part); !s.ok()) return fail(s);
      has[slot] = piece.of();
    }
    part = {};
    watch.Came();
  }
  const grpc::Status ended = reader->Finish();
  if (auto why = watch.Stop(); !why.ok()) return why;
  if (!ended.ok()) return said_of(FromGrpc(ended));
  if (in_part) return said_of(absl::InvalidArgumentError("its last part has no end"));
  for (auto& [slot, held] : has) *response.add_slots() = std::move(held);
  return response;
}

}  // namespace strata
