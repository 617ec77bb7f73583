#include "tests/sim/sim_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/serving/same_stage.h"
#include "shard/serving/stage_server.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr size_t kLateUsMax = 8'000'000;
constexpr int64_t kKeptUsMax = 20'000;

}  // namespace

std::shared_ptr<SimLink> SimLink::Open(SimProcesses* processes, Options options) {
  const size_t from = options.from, to = options.to;
  std::function<void()> on_closed = options.on_closed;
  std::function<void()> on_receiver_closed = options.on_receiver_closed;
  // The constructor is private.
  std::shared_ptr<SimLink> link(new SimLink(std::move(options)));
  link->wire_ =
      SimWire::Open(processes, {from, std::move(on_closed)}, {to, std::move(on_receiver_closed)});
  return link;
}

absl::Status SimLink::Send(Frame frame) {
  if (wire_->closed()) return absl::FailedPreconditionError("the link is closed");
  if (credit_ == 0) {
    wants_writable_ = true;
    return absl::ResourceExhaustedError("no credit");
  }
  --credit_;
  wire_->Send(0, [self = shared_from_this(), frame = std::move(frame)] {
    ++self->held_;
    self->options_.on_frame(frame);
  });
  return absl::OkStatus();
}

void SimLink::Release(uint32_t frames) {
  held_ -= frames;
  wire_->Send(1, [self = shared_from_this(), frames] {
    self->credit_ += frames;
    if (std::exchange(self->wants_writable_, false) && self->options_.on_writable) {
      self->options_.on_writable();
    }
  });
}

// Links and stages hold each other.
SimHost::~SimHost() {
  for (auto& [key, held] : stages_) held->in = held->out = nullptr;
}

SimHost::HeldPtr SimHost::Find(const StageKey& key) const {
  const auto found = stages_.find(key);
  return found == stages_.end() ? nullptr : found->second;
}

SimHost::HeldPtr SimHost::FindKept(const wire::StageSpec& spec) const {
  if (!spec.has_kept()) return nullptr;
  const HeldPtr held = Find(StageKeyOf(spec.kept().epoch(), spec.kept().stage()));
  if (held == nullptr || held->state != wire::StageStatus::SERVING) return nullptr;
  return IsSameStage(held->stage.spec(), spec) ? held : nullptr;
}

void SimHost::Load(const wire::StageSpec& spec, uint64_t planned_bytes, Loaded loaded) {
  // As StageHost::Newest().
  const absl::Status newer = CheckEpoch(spec.epoch(), newest_);
  if (newer.ok()) {
    newest_ = spec.epoch();
  } else if (spec.epoch().coordinator_id() != newest_.coordinator_id()) {
    return loaded(newer);
  }
  const StageKey key = StageKeyOf(spec.epoch(), spec.stage());
  if (Find(key) != nullptr) return loaded(absl::AlreadyExistsError("it is here already"));
  // As StageHost::TakeKept() and the worker, which empties the caches.
  uint64_t kept_bytes = 0;
  if (const HeldPtr before = FindKept(spec); before != nullptr) {
    kept_bytes = std::exchange(before->bytes, 0);
    stages_.erase(StageKeyOf(spec.kept().epoch(), spec.kept().stage()));
    CloseLinks(before);
    ++kept_;
  }
  if (kept_bytes == 0) {
    if (absl::Status fetched = Fetch(spec.layers()); !fetched.ok()) return loaded(fetched);
  }
  const auto needed =
      kept_bytes != 0 ? kept_bytes
                      : static_cast<uint64_t>(static_cast<double>(planned_bytes) * options_.truth);
  if (kept_bytes == 0 && needed > free_bytes()) {
    return loaded(WithShortage(
        absl::ResourceExhaustedError(absl::StrCat("it needs ", needed, " of ", free_bytes())),
        {.needed_bytes = needed, .free_bytes = free_bytes()}));
  }
  auto held = std::make_shared<Held>(
      Held{.stage = SimStage(spec, options_.failures_per_mille > 0, options_.violation)});
  if (options_.takes_any_epoch) held->stage.TakeAnyEpoch();
  held->bytes = needed;
  if (kept_bytes == 0) used_bytes_ += needed;
  stages_[key] = held;
  // By what stages have, not by the sum that this host keeps and decides by.
  uint64_t held_bytes = 0;
  for (const auto& [each, stage] : stages_) held_bytes += stage->bytes;
  if (held_bytes > options_.memory_bytes) options_.violation("a node takes more than it has");
  const int64_t us_max = kept_bytes == 0 ? options_.load_us_max : kKeptUsMax;
  const auto us = (kept_bytes == 0 ? 20'000 : 0) +
                  static_cast<int64_t>(cluster().Random(static_cast<size_t>(us_max)));
  options_.processes->After(options_.node, us, [this, held, key, loaded = std::move(loaded)] {
    if (Find(key) != held || held->state != wire::StageStatus::LOADING) {
      return loaded(absl::UnavailableError("the worker died, or the stage was unloaded"));
    }
    held->state = wire::StageStatus::SERVING;
    loaded(held->stage.Info());
  });
}

absl::Status SimHost::Fetch(const wire::LayerRange& layers) {
  SimDisk* const disk = options_.disk;
  if (disk == nullptr) return absl::OkStatus();
  uint64_t needed = 0;
  for (uint32_t layer = layers.begin(); layer < layers.end(); ++layer) {
    if (!disk->layers.contains(layer)) needed += disk->layer_bytes;
  }
  if (needed > disk->free_bytes) {
    return WithDiskShortage(absl::ResourceExhaustedError("the disk is full"),
                            {.needed_bytes = needed, .free_bytes = disk->free_bytes});
  }
  disk->free_bytes -= needed;
  for (uint32_t layer = layers.begin(); layer < layers.end(); ++layer) disk->layers.insert(layer);
  return absl::OkStatus();
}

void SimHost::Free(const HeldPtr& held) {
  used_bytes_ -= std::exchange(held->bytes, 0);
  CloseLinks(held);
}

void SimHost::Unload(const StageKey& key) {
  const HeldPtr held = Find(key);
  if (held == nullptr) return;
  stages_.erase(key);
  Free(held);
}

void SimHost::KillWorker() {
  for (auto& [key, held] : stages_) {
    held->state = wire::StageStatus::FAILED;
    Free(held);
  }
}

std::vector<wire::StageStatus> SimHost::Stages() const {
  std::vector<wire::StageStatus> statuses;
  for (const auto& [key, held] : stages_) {
    wire::StageStatus& status = statuses.emplace_back();
    status.set_stage(key.stage);
    *status.mutable_epoch() = held->stage.spec().epoch();
    status.set_state(held->state);
    status.set_origin(held->stage.spec().origin());
    status.set_model_id(held->stage.spec().model_id());
    status.set_device("CPU");
    *status.mutable_layers() = held->stage.spec().layers();
  }
  return statuses;
}

std::shared_ptr<SimLink> SimHost::Accept(const StageKey& key, size_t from_node,
                                         std::function<void()> on_writable,
                                         std::function<void()> on_closed) {
  const HeldPtr held = Find(key);
  if (held == nullptr || held->state != wire::StageStatus::SERVING || held->linked) {
    return nullptr;
  }
  held->linked = true;
  held->in =
      SimLink::Open(options_.processes,
                    {.from = from_node,
                     .to = options_.node,
                     .credits = kInboxStepsMax,
                     .on_writable = std::move(on_writable),
                     .on_closed = std::move(on_closed),
                     .on_frame = [this, held](Frame frame) { OnFrame(held, std::move(frame)); },
                     .on_receiver_closed = [this, held] { CloseLinks(held); }});
  return held->in;
}

void SimHost::Connect(const StageKey& key, size_t next_node, Connected connected) {
  StageKey next = key;
  ++next.stage;
  const HeldPtr held = Find(key);
  if (held == nullptr) return connected(absl::NotFoundError("no such stage"));
  const auto link = std::make_shared<std::shared_ptr<SimLink>>();
  SimAsk(
      options_.processes, options_.node, next_node, /*timeout_us=*/2'000'000,
      // There; this node may be gone by then.
      [this, host_of = options_.host_of, node = options_.node, next_node, next, link,
       held](const SimAnswer& answer) {
        *link = host_of(next_node)->Accept(
            next, node, [this, held] { Pump(held); }, [this, held] { CloseLinks(held); });
        answer([] {});
      },
      [held, link, connected = std::move(connected)](bool answered) {
        if (!answered || *link == nullptr) {
          return connected(absl::UnavailableError("the next stage takes no link"));
        }
        held->out = *link;
        connected(absl::OkStatus());
      });
}

void SimHost::ConnectBack(const StageKey& key, std::shared_ptr<SimLink> link) {
  if (const HeldPtr held = Find(key)) held->out = std::move(link);
}

void SimHost::Resume(const StageKey& key) {
  if (const HeldPtr held = Find(key)) Pump(held);
}

void SimHost::CloseLinks(const HeldPtr& held) {
  held->inbox.push_back(std::exchange(held->last, {}));
  for (const Frame& frame : std::exchange(held->inbox, {})) {
    Stray(frame, held->stage.spec().epoch());
  }
  held->unsent.clear();
  for (std::shared_ptr<SimLink>* link : {&held->in, &held->out}) {
    if (const auto closed = std::exchange(*link, nullptr)) closed->Close();
  }
}

void SimHost::Stray(const Frame& frame, const wire::Epoch& epoch) {
  if (frame.type != FrameType::kStep || frame.header.empty()) return;
  const auto late_us = static_cast<int64_t>(cluster().Random(kLateUsMax));
  options_.processes->After(options_.node, late_us, [this, frame, epoch] {
    for (auto& [key, held] : stages_) {
      if (held->state != wire::StageStatus::SERVING) continue;
      if (CompareEpochs(held->stage.spec().epoch(), epoch) == 0) continue;
      const uint64_t before = held->stage.refused();
      (void)held->stage.Take(frame, 0, false);
      refused_ += held->stage.refused() - before;
    }
  });
}

void SimHost::OnFrame(const HeldPtr& held, Frame frame) {
  if (held->in == nullptr) return;
  if (held->in->held() > kInboxStepsMax) options_.violation("an inbox over its bound");
  if (held->state != wire::StageStatus::SERVING) return;
  held->inbox.push_back(std::move(frame));
  Pump(held);
}

void SimHost::SendWaiting(const HeldPtr& held) {
  while (!held->unsent.empty() && held->out != nullptr) {
    if (!held->out->Send(held->unsent.front()).ok()) return;
    held->unsent.pop_front();
  }
}

void SimHost::Pump(const HeldPtr& held) {
  SendWaiting(held);
  if (held->busy || held->inbox.empty() || !held->unsent.empty()) return;
  if (held->state != wire::StageStatus::SERVING || held->in == nullptr) return;
  held->busy = true;
  const auto us =
      100 + static_cast<int64_t>(cluster().Random(static_cast<size_t>(options_.step_us_max)));
  options_.processes->After(options_.node, us, [this, held] {
    held->busy = false;
    Finish(held);
  });
}

void SimHost::Finish(const HeldPtr& held) {
  if (held->inbox.empty() || held->in == nullptr) return;
  held->last = std::move(held->inbox.front());
  held->inbox.pop_front();
  const bool fails =
      options_.failures_per_mille > 0 && cluster().Random(1000) < options_.failures_per_mille;
  absl::StatusOr<Frame> out = held->stage.Take(held->last, 1'000, fails);
  if (!out.ok()) return CloseLinks(held);
  held->unsent.push_back(*std::move(out));
  if (++held->to_release >= kInboxReleaseSteps) {
    held->in->Release(std::exchange(held->to_release, 0));
  }
  Pump(held);
}

}  // namespace strata
