#include "tests/sim/sim_pipeline.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/base/epoch.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr int64_t kLoadTimeoutUs = 20'000'000;
constexpr int64_t kCallTimeoutUs = 5'000'000;
constexpr int64_t kUnloadTimeoutUs = 1'000'000;
constexpr int64_t kAgainUs = 200'000;

StageKey KeyOf(const SimStages& stages, size_t i) {
  return StageKeyOf(stages.spec.epoch(), static_cast<uint32_t>(i));
}

void UnloadOne(const SimCluster& cluster, size_t from, size_t node, const StageKey& key,
               const std::function<bool(size_t)>& gone, const std::function<void()>& done) {
  SimCall(
      cluster.processes, from, node, kUnloadTimeoutUs,
      [cluster, node, key](const SimReply& reply) {
        cluster.host_of(node)->Unload(key);
        reply([] {});
      },
      [cluster, from, node, key, gone, done](bool answered) {
        if (answered || gone(node)) return done();
        cluster.processes->After(from, kAgainUs,
                                 [=] { UnloadOne(cluster, from, node, key, gone, done); });
      },
      /*repeatable=*/true);
}

// Calls `done` after `n` calls.
std::function<void()> AfterAll(size_t n, std::function<void()> done) {
  const auto left = std::make_shared<size_t>(n);  // shared by the calls
  return [left, done = std::move(done)] {
    if (--*left == 0) done();
  };
}

class SimPipeline final : public Pipeline {
 public:
  SimPipeline(const SimCluster& cluster, size_t node, SimLoadPtr load, Listener* listener,
              std::function<void()> unload)
      : cluster_(cluster),
        node_(node),
        start_(cluster.processes->start(node)),
        load_(std::move(load)),
        listener_(listener),
        unload_(std::move(unload)) {
    load_->on_frame = [this](const Frame& frame) { OnReturned(frame); };
    load_->on_writable = [this] { listener_->OnWritable(); };
    load_->on_broken = [this] { OnBroken(absl::UnavailableError("a link broke")); };
    // It may have broken before it began.
    if (load_->broken) {
      cluster_.processes->In(node_, cluster_.processes->cluster().now_us(), [load = load_] {
        if (load->on_broken) load->on_broken();
      });
    }
  }

  ~SimPipeline() override {
    load_->on_frame = nullptr;
    load_->on_writable = nullptr;
    load_->on_broken = nullptr;
    if (!cluster_.processes->IsAlive(node_, start_)) return;
    load_->first->Close();
    if (!stages_disowned_) unload_();
  }

  void DisownStages() override { stages_disowned_ = true; }

  absl::StatusOr<uint64_t> Submit(wire::Step step) override {
    step.set_model_id(load_->stages.spec.model_id());
    *step.mutable_epoch() = load_->stages.spec.epoch();
    step.set_step_id(last_step_id_ + 1);
    if (auto s = load_->first->Send(MakeFrame(FrameType::kStep, step)); !s.ok()) return s;
    return ++last_step_id_;
  }

  absl::Status Diagnose(const absl::Status& broken) override { return broken; }
  const std::vector<wire::StageInfo>& stages() const override { return load_->infos; }

 private:
  void OnReturned(const Frame& frame) {
    const wire::Epoch& epoch = load_->stages.spec.epoch();
    if (frame.type == FrameType::kResult) {
      wire::Result result;
      if (auto s = ParseHeader(frame, &result); !s.ok()) return OnBroken(s);
      if (CompareEpochs(result.epoch(), epoch) == 0) listener_->OnResult(std::move(result));
    } else {
      wire::StepError error;
      if (auto s = ParseHeader(frame, &error); !s.ok()) return OnBroken(s);
      if (CompareEpochs(error.epoch(), epoch) == 0) listener_->OnStepError(std::move(error));
    }
  }
  void OnBroken(absl::Status status) {
    if (!std::exchange(broken_, true)) listener_->OnBroken(std::move(status));
  }

  const SimCluster cluster_;
  const size_t node_;
  const uint64_t start_;
  const SimLoadPtr load_;
  Listener* const listener_;
  const std::function<void()> unload_;
  bool stages_disowned_ = false;
  bool broken_ = false;
  uint64_t last_step_id_ = 0;
};

// A load in progress. Shared by its calls.
struct Loading : std::enable_shared_from_this<Loading> {
  SimCluster cluster;
  size_t coordinator = 0;
  SimLoadPtr load;
  std::function<bool(size_t)> gone;
  std::function<void(absl::StatusOr<SimLoadPtr>)> done;
  std::function<absl::Status()> take_over;
  std::vector<absl::Status> outcomes;

  void Start();
  void Load(const std::vector<size_t>& which, std::function<void()> loaded);
  void Link(size_t stage);  // to the next one, and then those before
  void LinkBack();
  void LinkFirst();
  void Fail(const absl::Status& status);
};

void Loading::Start() {
  const SimStages& stages = load->stages;
  outcomes.resize(stages.places.size(), absl::UnavailableError("the node does not answer"));
  load->infos.resize(stages.places.size());
  std::vector<size_t> first, kept;
  for (size_t i = 0; i < stages.places.size(); ++i) {
    const bool is_kept = !stages.kept.empty() && stages.kept[i];
    (take_over != nullptr && is_kept ? kept : first).push_back(i);
  }
  Load(first, [self = shared_from_this(), kept] {
    const auto take_over = std::exchange(self->take_over, nullptr);
    const absl::Status taken = take_over == nullptr ? absl::OkStatus() : take_over();
    if (!taken.ok()) return self->Fail(taken);
    self->Load(kept, [self] { self->LinkBack(); });
  });
}

void Loading::Load(const std::vector<size_t>& which, std::function<void()> loaded) {
  const SimStages& stages = load->stages;
  const auto on_loaded = [self = shared_from_this(), which, loaded = std::move(loaded)] {
    for (const size_t i : which) {
      if (self->outcomes[i].ok()) continue;
      return self->Fail(WithStage(self->outcomes[i], static_cast<uint32_t>(i)));
    }
    loaded();
  };
  if (which.empty()) return on_loaded();
  const auto arrived = AfterAll(which.size(), on_loaded);
  for (const size_t i : which) {
    wire::StageSpec spec = stages.spec;
    spec.set_stage(static_cast<uint32_t>(i));
    spec.mutable_layers()->set_begin(stages.layers[i].begin);
    spec.mutable_layers()->set_end(stages.layers[i].end);
    if (!stages.kept.empty() && stages.kept[i]) *spec.mutable_kept() = *stages.kept[i];
    SimCall(
        cluster.processes, coordinator, stages.places[i].node, kLoadTimeoutUs,
        [self = shared_from_this(), i, spec](const SimReply& reply) {
          const SimPlace& place = self->load->stages.places[i];
          self->cluster.host_of(place.node)
              ->Load(spec, place.planned_bytes,
                     [self, i, reply](const absl::StatusOr<wire::StageInfo>& info) {
                       reply([self, i, info] {
                         self->outcomes[i] = info.status();
                         if (info.ok()) self->load->infos[i] = *info;
                       });
                     });
        },
        [arrived](bool) { arrived(); });
  }
}

// The last stage dials the coordinator.
void Loading::LinkBack() {
  const size_t last = load->stages.places.size() - 1;
  const size_t node = load->stages.places[last].node;
  SimCall(
      cluster.processes, coordinator, node, kCallTimeoutUs,
      [self = shared_from_this(), node, last](const SimReply& reply) {
        const std::weak_ptr<SimLoad> weak = self->load;
        const auto link = std::make_shared<std::shared_ptr<SimLink>>();
        const auto on_broken = [weak] {
          const SimLoadPtr load = weak.lock();
          if (load == nullptr) return;
          load->broken = true;
          if (load->on_broken) load->on_broken();
        };
        *link = SimLink::Open(
            self->cluster.processes,
            {.from = node,
             .to = self->coordinator,
             .credits = kResultsMax,
             .on_writable = [host = self->cluster.host_of(node),
                             key = KeyOf(self->load->stages, last)] { host->Resume(key); },
             .on_closed = nullptr,
             .on_frame =
                 [weak, back = std::weak_ptr(link), cluster = self->cluster](const Frame& frame) {
                   const auto at = back.lock();
                   if (at != nullptr && (*at)->unreleased() > kResultsMax) {
                     cluster.violation("results over their bound");
                   }
                   if (const SimLoadPtr load = weak.lock(); load && load->on_frame) {
                     load->on_frame(frame);
                   }
                   if (at != nullptr) (*at)->Release(1);
                 },
             .on_receiver_closed = on_broken});
        self->load->back = link;
        self->cluster.host_of(node)->ConnectBack(KeyOf(self->load->stages, last), *link);
        reply([] {});
      },
      [self = shared_from_this(), last](bool answered) {
        if (!answered) return self->Fail(absl::UnavailableError("the last stage does not answer"));
        self->Link(last);
      });
}

void Loading::Link(size_t stage) {
  if (stage == 0) return LinkFirst();
  const size_t from = stage - 1;
  const auto outcome = std::make_shared<absl::Status>(absl::UnavailableError("no answer"));
  SimCall(
      cluster.processes, coordinator, load->stages.places[from].node, kCallTimeoutUs,
      [self = shared_from_this(), from, outcome](const SimReply& reply) {
        const SimStages& stages = self->load->stages;
        self->cluster.host_of(stages.places[from].node)
            ->Connect(KeyOf(stages, from), stages.places[from + 1].node,
                      [reply, outcome](const absl::Status& status) {
                        reply([outcome, status] { *outcome = status; });
                      });
      },
      [self = shared_from_this(), from, outcome](bool) {
        if (!outcome->ok()) return self->Fail(*outcome);
        self->Link(from);
      });
}

void Loading::LinkFirst() {
  const size_t node = load->stages.places[0].node;
  SimCall(
      cluster.processes, coordinator, node, kCallTimeoutUs,
      [self = shared_from_this(), node](const SimReply& reply) {
        const std::weak_ptr<SimLoad> weak = self->load;
        self->load->first = self->cluster.host_of(node)->Accept(
            KeyOf(self->load->stages, 0), self->coordinator,
            [weak] {
              if (const SimLoadPtr load = weak.lock(); load && load->on_writable) {
                load->on_writable();
              }
            },
            [weak] {
              const SimLoadPtr load = weak.lock();
              if (load == nullptr) return;
              load->broken = true;
              if (load->on_broken) load->on_broken();
            });
        reply([] {});
      },
      [self = shared_from_this()](bool answered) {
        if (!answered || self->load->first == nullptr) {
          return self->Fail(absl::UnavailableError("the first stage takes no link"));
        }
        self->done(self->load);
      });
}

void Loading::Fail(const absl::Status& status) {
  if (load->stages.leave_on_error) return done(status);
  UnloadSimStages(cluster, coordinator, load->stages, gone,
                  [done = done, status] { done(status); });
}

}  // namespace

void UnloadSimStages(const SimCluster& cluster, size_t coordinator, const SimStages& stages,
                     const std::function<bool(size_t)>& gone, std::function<void()> done) {
  const auto unloaded = AfterAll(stages.places.size(), std::move(done));
  for (size_t i = 0; i < stages.places.size(); ++i) {
    UnloadOne(cluster, coordinator, stages.places[i].node, KeyOf(stages, i), gone, unloaded);
  }
}

void UnloadSimStaleStages(const SimCluster& cluster, size_t coordinator,
                          const std::vector<SimStaleStage>& stale_stages,
                          const std::function<bool(size_t)>& gone, std::function<void()> done) {
  if (stale_stages.empty()) return done();
  const auto unloaded = AfterAll(stale_stages.size(), std::move(done));
  for (const SimStaleStage& one : stale_stages) {
    UnloadOne(cluster, coordinator, one.node, one.key, gone, unloaded);
  }
}

void LoadSimStages(const SimCluster& cluster, size_t coordinator, SimStages stages,
                   std::function<bool(size_t)> gone,
                   std::function<void(absl::StatusOr<SimLoadPtr>)> done,
                   std::function<absl::Status()> take_over) {
  const auto loading = std::make_shared<Loading>();  // shared by its calls
  loading->cluster = cluster;
  loading->coordinator = coordinator;
  loading->load = std::make_shared<SimLoad>();
  loading->load->stages = std::move(stages);
  loading->gone = std::move(gone);
  loading->done = std::move(done);
  loading->take_over = std::move(take_over);
  loading->Start();
}

std::unique_ptr<Pipeline> MakeSimPipeline(const SimCluster& cluster, size_t coordinator,
                                          SimLoadPtr load, Pipeline::Listener* listener,
                                          std::function<void()> unload) {
  return std::make_unique<SimPipeline>(cluster, coordinator, std::move(load), listener,
                                       std::move(unload));
}

}  // namespace strata
