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
  link->connection_ = SimConnection::Open(processes, {from, std::move(on_closed)},
                                          {to, std::move(on_receiver_closed)});
  return link;
}

absl::Status SimLink::Send(Frame frame) {
  if (connection_->closed()) return absl::FailedPreconditionError("the link is closed");
  if (credit_ == 0) {
    wants_writable_ = true;
    return absl::ResourceExhaustedError("no credit");
  }
  --credit_;
  connection_->Send(0, [self = shared_from_this(), frame = std::move(frame)] {
    ++self->unreleased_;
    self->options_.on_frame(frame);
  });
  return absl::OkStatus();
}

void SimLink::Release(uint32_t frames) {
  unreleased_ -= frames;
  connection_->Send(1, [self = shared_from_this(), frames] {
    self->credit_ += frames;
    if (std::exchange(self->wants_writable_, false) && self->options_.on_writable) {
      self->options_.on_writable();
    }
  });
}

// Links and stages hold each other.
SimHost::~SimHost() {
  for (auto& [key, hosted] : stages_) hosted->in = hosted->out = nullptr;
}

SimHost::HostedPtr SimHost::Find(const StageKey& key) const {
  const auto found = stages_.find(key);
  return found == stages_.end() ? nullptr : found->second;
}

SimHost::HostedPtr SimHost::FindKept(const wire::StageSpec& spec) const {
  if (!spec.has_kept()) return nullptr;
  const HostedPtr hosted = Find(StageKeyOf(spec.kept().epoch(), spec.kept().stage()));
  if (hosted == nullptr || hosted->state != wire::StageStatus::SERVING) return nullptr;
  return IsSameStage(hosted->stage.spec(), spec) ? hosted : nullptr;
}

void SimHost::Load(const wire::StageSpec& spec, uint64_t planned_bytes, LoadDone loaded) {
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
  if (const HostedPtr before = FindKept(spec); before != nullptr) {
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
  auto hosted = std::make_shared<HostedStage>(
      HostedStage{.stage = SimStage(spec, options_.failures_per_mille > 0, options_.violation)});
  if (options_.takes_any_epoch) hosted->stage.TakeAnyEpoch();
  hosted->bytes = needed;
  if (kept_bytes == 0) used_bytes_ += needed;
  stages_[key] = hosted;
  // By the stages' own bytes, not by the sum that this host keeps and decides by.
  uint64_t stage_bytes = 0;
  for (const auto& [each, stage] : stages_) stage_bytes += stage->bytes;
  if (stage_bytes > options_.memory_bytes) options_.violation("a node takes more than it has");
  const int64_t us_max = kept_bytes == 0 ? options_.load_us_max : kKeptUsMax;
  const auto us = (kept_bytes == 0 ? 20'000 : 0) +
                  static_cast<int64_t>(cluster().Random(static_cast<size_t>(us_max)));
  options_.processes->After(options_.node, us, [this, hosted, key, loaded = std::move(loaded)] {
    if (Find(key) != hosted || hosted->state != wire::StageStatus::LOADING) {
      return loaded(absl::UnavailableError("the worker died, or the stage was unloaded"));
    }
    hosted->state = wire::StageStatus::SERVING;
    loaded(hosted->stage.Info());
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

void SimHost::Free(const HostedPtr& hosted) {
  used_bytes_ -= std::exchange(hosted->bytes, 0);
  CloseLinks(hosted);
}

void SimHost::Unload(const StageKey& key) {
  const HostedPtr hosted = Find(key);
  if (hosted == nullptr) return;
  stages_.erase(key);
  Free(hosted);
}

void SimHost::KillWorker() {
  for (auto& [key, hosted] : stages_) {
    hosted->state = wire::StageStatus::FAILED;
    Free(hosted);
  }
}

std::vector<wire::StageStatus> SimHost::Stages() const {
  std::vector<wire::StageStatus> statuses;
  for (const auto& [key, hosted] : stages_) {
    wire::StageStatus& status = statuses.emplace_back();
    status.set_stage(key.stage);
    *status.mutable_epoch() = hosted->stage.spec().epoch();
    status.set_state(hosted->state);
    status.set_origin(hosted->stage.spec().origin());
    status.set_model_id(hosted->stage.spec().model_id());
    status.set_device("CPU");
    *status.mutable_layers() = hosted->stage.spec().layers();
  }
  return statuses;
}

std::shared_ptr<SimLink> SimHost::Accept(const StageKey& key, size_t from_node,
                                         std::function<void()> on_writable,
                                         std::function<void()> on_closed) {
  const HostedPtr hosted = Find(key);
  if (hosted == nullptr || hosted->state != wire::StageStatus::SERVING || hosted->linked) {
    return nullptr;
  }
  hosted->linked = true;
  hosted->in =
      SimLink::Open(options_.processes,
                    {.from = from_node,
                     .to = options_.node,
                     .credits = kInboxStepsMax,
                     .on_writable = std::move(on_writable),
                     .on_closed = std::move(on_closed),
                     .on_frame = [this, hosted](Frame frame) { OnFrame(hosted, std::move(frame)); },
                     .on_receiver_closed = [this, hosted] { CloseLinks(hosted); }});
  return hosted->in;
}

void SimHost::Connect(const StageKey& key, size_t next_node, ConnectDone connected) {
  StageKey next = key;
  ++next.stage;
  const HostedPtr hosted = Find(key);
  if (hosted == nullptr) return connected(absl::NotFoundError("no such stage"));
  const auto link = std::make_shared<std::shared_ptr<SimLink>>();
  SimCall(
      options_.processes, options_.node, next_node, /*timeout_us=*/2'000'000,
      // On the other node; this node may be gone by then.
      [this, host_of = options_.host_of, node = options_.node, next_node, next, link,
       hosted](const SimReply& reply) {
        *link = host_of(next_node)->Accept(
            next, node, [this, hosted] { Pump(hosted); }, [this, hosted] { CloseLinks(hosted); });
        reply([] {});
      },
      [hosted, link, connected = std::move(connected)](bool answered) {
        if (!answered || *link == nullptr) {
          return connected(absl::UnavailableError("the next stage takes no link"));
        }
        hosted->out = *link;
        connected(absl::OkStatus());
      });
}

void SimHost::ConnectBack(const StageKey& key, std::shared_ptr<SimLink> link) {
  if (const HostedPtr hosted = Find(key)) hosted->out = std::move(link);
}

void SimHost::Resume(const StageKey& key) {
  if (const HostedPtr hosted = Find(key)) Pump(hosted);
}

void SimHost::CloseLinks(const HostedPtr& hosted) {
  hosted->inbox.push_back(std::exchange(hosted->last, {}));
  for (const Frame& frame : std::exchange(hosted->inbox, {})) {
    Stray(frame, hosted->stage.spec().epoch());
  }
  hosted->unsent.clear();
  for (std::shared_ptr<SimLink>* link : {&hosted->in, &hosted->out}) {
    if (const auto closed = std::exchange(*link, nullptr)) closed->Close();
  }
}

void SimHost::Stray(const Frame& frame, const wire::Epoch& epoch) {
  if (frame.type != FrameType::kStep || frame.header.empty()) return;
  const auto late_us = static_cast<int64_t>(cluster().Random(kLateUsMax));
  options_.processes->After(options_.node, late_us, [this, frame, epoch] {
    for (auto& [key, hosted] : stages_) {
      if (hosted->state != wire::StageStatus::SERVING) continue;
      if (CompareEpochs(hosted->stage.spec().epoch(), epoch) == 0) continue;
      const uint64_t before = hosted->stage.refused();
      (void)hosted->stage.Take(frame, 0, false);
      refused_ += hosted->stage.refused() - before;
    }
  });
}

void SimHost::OnFrame(const HostedPtr& hosted, Frame frame) {
  if (hosted->in == nullptr) return;
  if (hosted->in->unreleased() > kInboxStepsMax) options_.violation("an inbox over its bound");
  if (hosted->state != wire::StageStatus::SERVING) return;
  hosted->inbox.push_back(std::move(frame));
  Pump(hosted);
}

void SimHost::SendWaiting(const HostedPtr& hosted) {
  while (!hosted->unsent.empty() && hosted->out != nullptr) {
    if (!hosted->out->Send(hosted->unsent.front()).ok()) return;
    hosted->unsent.pop_front();
  }
}

void SimHost::Pump(const HostedPtr& hosted) {
  SendWaiting(hosted);
  if (hosted->busy || hosted->inbox.empty() || !hosted->unsent.empty()) return;
  if (hosted->state != wire::StageStatus::SERVING || hosted->in == nullptr) return;
  hosted->busy = true;
  const auto us =
      100 + static_cast<int64_t>(cluster().Random(static_cast<size_t>(options_.step_us_max)));
  options_.processes->After(options_.node, us, [this, hosted] {
    hosted->busy = false;
    Finish(hosted);
  });
}

void SimHost::Finish(const HostedPtr& hosted) {
  if (hosted->inbox.empty() || hosted->in == nullptr) return;
  hosted->last = std::move(hosted->inbox.front());
  hosted->inbox.pop_front();
  const bool fails =
      options_.failures_per_mille > 0 && cluster().Random(1000) < options_.failures_per_mille;
  absl::StatusOr<Frame> out = hosted->stage.Take(hosted->last, 1'000, fails);
  if (!out.ok()) return CloseLinks(hosted);
  hosted->unsent.push_back(*std::move(out));
  if (++hosted->to_release >= kInboxReleaseSteps) {
    hosted->in->Release(std::exchange(hosted->to_release, 0));
  }
  Pump(hosted);
}

}  // namespace strata
