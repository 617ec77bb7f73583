#include "shard/kv_transfer/cache_mover.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "shard/engine/sequence_state.h"
#include "shard/kv_transfer/cache_reader.h"
#include "shard/kv_transfer/cache_stream.h"
#include "transport/base/mutex.h"

namespace strata {
namespace {

// Bounds of libllama's bytes besides the cells' own: for each position, and in total.
constexpr uint64_t kMetaBytes = 64, kHeadBytes = 1 << 20;
// A call may transfer the whole cache this many times, since sequences continue meanwhile.
constexpr uint64_t kTimesMax = 4;
constexpr uint64_t kPiecePositionsMax = 4096;
constexpr std::chrono::milliseconds kPoll(100);

// Cancels calls that are no longer needed, or that receive nothing for too long.
class Watchdog {
 public:
  // `should_continue` and `cancel` outlive it.
  Watchdog(const std::function<bool()>& should_continue, const std::function<void()>& cancel,
           std::chrono::milliseconds limit)
      : thread_([this, &should_continue, &cancel, limit] { Run(should_continue, cancel, limit); }) {
  }
  ~Watchdog() { Stop().IgnoreError(); }

  void OnPiece() {
    MutexLock lock(&mu_);
    last_ = Clock::now();
  }
  // Returns why the calls were cancelled; OK: they were not.
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

  void Run(const std::function<bool()>& should_continue, const std::function<void()>& cancel,
           std::chrono::milliseconds limit) {
    while (true) {
      {
        MutexLock lock(&mu_);
        if (!stopping_) changed_.WaitUntil(&mu_, Clock::now() + std::min(kPoll, limit));
        if (stopping_) return;
        if (Clock::now() > last_ + limit) {
          why_ = absl::DeadlineExceededError("another worker sends nothing of its caches");
        }
      }
      if (why_.ok() && !should_continue()) {
        why_ = absl::CancelledError("the move of the caches was cancelled");
      }
      if (why_.ok()) continue;
      cancel();
      return;
    }
  }

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Clock::time_point last_ ABSL_GUARDED_BY(mu_) = Clock::now();
  absl::Status why_;    // the thread's, until it is joined
  std::thread thread_;  // last: it uses all of the above
};

// A stage that is read.
struct Source {
  LayerRange had;
  wire::ReadCachesRequest read;
  std::unique_ptr<CacheReader> reader;
  std::map<int32_t, wire::SlotCache> has;  // by slot
  std::optional<CacheReader::Part> next;
  bool is_done = false;
};

// The stages with the requests to each. Errors of TakeCaches().
absl::StatusOr<std::vector<Source>> SourcesOf(const wire::MoveCachesRequest& request,
                                              const Stage& stage) {
  const Stage::Facts& facts = stage.facts();
  const LayerRange own = facts.layers;
  std::vector<Source> sources;
  uint32_t layer = own.begin, n_layers_max = own.size();
  for (const wire::CacheSource& from : request.from()) {
    Source source = {.had = {from.layers().begin(), from.layers().end()}};
    const uint32_t end = std::min(own.end, source.had.end);
    if (source.had.begin > layer || end <= layer) break;
    n_layers_max = std::max(n_layers_max, source.had.size());
    *source.read.mutable_epoch() = from.stage().epoch();
    source.read.set_stage(from.stage().stage());
    source.read.mutable_layers()->set_begin(layer);
    source.read.mutable_layers()->set_end(end);
    for (const wire::SlotCache& slot : from.has()) source.has[slot.slot()] = slot;
    sources.push_back(std::move(source));
    layer = end;
  }
  if (layer != own.end || static_cast<int>(sources.size()) != request.from_size()) {
    return absl::InvalidArgumentError("the stages to copy caches from have other layers");
  }
  if (sources.size() == 1 && sources[0].had == own) {
    sources[0].read.clear_layers();
    return sources;
  }
  if (!stage.SplitsCaches()) {
    return absl::UnimplementedError("the caches of this model cannot be split by layers");
  }
  // The same for all, so that their parts fit together.
  const uint64_t layer_bytes = std::max<uint64_t>(1, facts.kv_bytes / facts.kv_cells / own.size());
  const uint64_t positions =
      std::clamp<uint64_t>(kCachePieceBytes / (layer_bytes * n_layers_max), 1, kPiecePositionsMax);
  for (Source& source : sources) source.read.set_positions(static_cast<uint32_t>(positions));
  return sources;
}

absl::Status Drop(int32_t slot, Stage* stage) {
  wire::KvEdit drop;
  drop.set_kind(wire::KvEdit::DROP);
  drop.set_slot(slot);
  return stage->Apply(drop);
}

// A slot's positions that have arrived, part after part.
struct Arrived {
  int32_t slot = -1;
  uint32_t begin = 0, end = 0;
  std::vector<std::string> parts;
};

// Drops slots that a failed earlier call has left, so that they are copied again.
absl::Status DropUnknownSlots(Stage* stage, std::vector<Source>* sources) {
  for (int32_t slot = 0; slot < static_cast<int32_t>(stage->facts().n_seq_max); ++slot) {
    const uint32_t positions = stage->SlotStateOf(slot).positions;
    const auto knows = [&](const Source& source) {
      const auto held = source.has.find(slot);
      return (held == source.has.end() ? 0 : held->second.positions()) == positions;
    };
    if (std::ranges::all_of(*sources, knows)) continue;
    if (absl::Status status = Drop(slot, stage); !status.ok()) return status;
    for (Source& source : *sources) source.has.erase(slot);
  }
  return absl::OkStatus();
}

class Mover {
 public:
  Mover(Stage* stage, std::vector<Source>* sources, std::function<void()> on_piece)
      : stage_(stage), sources_(*sources), on_piece_(std::move(on_piece)) {}

  absl::Status Run() {
    const auto done = [](const Source& source) { return source.is_done; };
    const auto waits = [](const Source& source) { return source.next.has_value(); };
    while (true) {
      for (Source& source : sources_) {
        if (absl::Status status = Advance(&source); !status.ok()) return status;
      }
      if (std::ranges::any_of(sources_, done)) break;
      if (!AllFit()) {
        SkipFirst();
      } else if (absl::Status status = TakeNext(); !status.ok()) {
        return status;
      }
      on_piece_();
    }
    if (absl::Status status = WriteArrived(); !status.ok()) return status;
    lags_ = lags_ || std::ranges::any_of(sources_, waits);
    return absl::OkStatus();
  }

  bool lags() const { return lags_; }

 private:
  // Reads up to the next part that is to be written. Dropped slots come before all parts.
  absl::Status Advance(Source* source) {
    while (!source->is_done && !source->next) {
      auto part = source->reader->Next(on_piece_);
      if (!part.ok()) return part.status();
      source->is_done = !part->has_value();
      if (source->is_done) break;
      const int32_t slot = (*part)->of.slot();
      if ((*part)->part.end == 0) {
        if (absl::Status status = Drop(slot, stage_); !status.ok()) return status;
        for (Source& other : sources_) other.has.erase(slot);
      } else if (!late_.contains(slot)) {
        source->next = *std::move(part);
      }
    }
    return absl::OkStatus();
  }

  bool AllFit() const {
    const CacheReader::Part& first = *sources_[0].next;
    return std::ranges::all_of(sources_, [&first](const Source& source) {
      const CacheReader::Part& next = *source.next;
      return next.of.slot() == first.of.slot() && next.part.begin == first.part.begin &&
             next.part.end == first.part.end;
    });
  }

  // Adds the next part to those of its slot, which are written at once: libllama replaces a
  // sequence's state, and appends nothing.
  absl::Status TakeNext() {
    Stage::CachePart joined = std::move(sources_[0].next->part);
    if (sources_.size() > 1) {
      std::vector<absl::string_view> states = {joined.bytes};
      for (size_t i = 1; i < sources_.size(); ++i) {
        states.emplace_back(sources_[i].next->part.bytes);
      }
      auto bytes = JoinLayers(states);
      if (!bytes.ok()) return bytes.status();
      joined.bytes = *std::move(bytes);
    }
    const int32_t slot = sources_[0].next->of.slot();
    if (slot != arrived_.slot || joined.begin == 0) {
      if (absl::Status status = WriteArrived(); !status.ok()) return status;
      arrived_ = {.slot = slot, .begin = joined.begin, .end = joined.begin};
    }
    if (joined.begin != arrived_.end) {
      return absl::InvalidArgumentError("a worker with the caches leaves out positions");
    }
    arrived_.end = joined.end;
    arrived_.parts.push_back(std::move(joined.bytes));
    for (Source& source : sources_) {
      source.has[slot] = source.next->of;
      source.next.reset();
    }
    return absl::OkStatus();
  }

  absl::Status WriteArrived() {
    Arrived arrived = std::exchange(arrived_, {});
    if (arrived.parts.empty()) return absl::OkStatus();
    Stage::CachePart part = {.begin = arrived.begin, .end = arrived.end};
    if (arrived.parts.size() == 1) {
      part.bytes = std::move(arrived.parts[0]);
    } else {
      const std::vector<absl::string_view> parts(arrived.parts.begin(), arrived.parts.end());
      auto joined = JoinPositions(parts);
      if (!joined.ok()) return joined.status();
      part.bytes = *std::move(joined);
    }
    return stage_->WriteCache(arrived.slot, part);
  }

  // Slots come in order, so the lowest of the next slots is missing at some source: it is skipped.
  void SkipFirst() {
    const auto slot_of = [](const Source& source) { return source.next->of.slot(); };
    const int32_t slot = slot_of(*std::ranges::min_element(sources_, {}, slot_of));
    late_.insert(slot);
    lags_ = true;
    for (Source& source : sources_) {
      if (slot_of(source) == slot) source.next.reset();
    }
  }

  Stage* const stage_;
  std::vector<Source>& sources_;
  const std::function<void()> on_piece_;
  Arrived arrived_;         // not written yet
  std::set<int32_t> late_;  // slots whose parts are for the next call
  bool lags_ = false;
};

}  // namespace

absl::StatusOr<wire::MoveCachesResponse> TakeCaches(const wire::MoveCachesRequest& request,
                                                    const std::function<bool()>& should_continue,
                                                    Stage* stage,
                                                    std::chrono::milliseconds piece_limit) {
  auto sources = SourcesOf(request, *stage);
  if (!sources.ok()) return sources.status();
  const Stage::Facts& facts = stage->facts();
  const uint64_t all_bytes = facts.kv_bytes + facts.kv_cells * kMetaBytes + kHeadBytes;
  const uint64_t part_bytes =
      stage->SplitsCaches() ? std::min(all_bytes, 4 * kCachePieceBytes + all_bytes / facts.kv_cells)
                            : all_bytes;
  if (absl::Status status = DropUnknownSlots(stage, &*sources); !status.ok()) return status;
  for (size_t i = 0; i < sources->size(); ++i) {
    Source& source = (*sources)[i];
    for (const auto& [slot, held] : source.has) *source.read.add_has() = held;
    source.reader =
        std::make_unique<CacheReader>(request.from(static_cast<int>(i)).address(), source.read,
                                      CacheReader::Limits{.n_slots = facts.n_seq_max,
                                                          .part_bytes = part_bytes,
                                                          .all_bytes = kTimesMax * all_bytes});
  }
  const std::function<void()> cancel = [&sources] {
    for (Source& source : *sources) source.reader->Cancel();
  };
  Watchdog watchdog(should_continue, cancel, piece_limit);
  Mover mover(stage, &*sources, [&watchdog] { watchdog.OnPiece(); });
  absl::Status moved = mover.Run();
  if (absl::Status why = watchdog.Stop(); !why.ok()) return why;
  if (!moved.ok()) return moved;
  wire::MoveCachesResponse response;
  response.set_lags(mover.lags());
  for (Source& source : *sources) {
    response.set_bytes(response.bytes() + source.reader->bytes());
    wire::TakenCaches* const taken = response.add_from();
    for (auto& [slot, held] : source.has) *taken->add_slots() = std::move(held);
  }
  return response;
}

}  // namespace strata
