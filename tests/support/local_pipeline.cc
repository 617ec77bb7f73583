#include "tests/support/local_pipeline.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "shard/device/engine.h"
#include "shard/kv_store/kv_store.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "shard/serving/stage_server.h"
#include "shard/worker/load_stream.h"
#include "tests/support/memory_link.h"
#include "transport/base/clock.h"

namespace strata::testing {
namespace {

constexpr char kModelId[] = "a model of a test";

// The next failure of one stage.
class Faults {
 public:
  void Set(uint32_t nth, LocalPipeline::Failure failure) {
    absl::MutexLock lock(mu_);
    nth_ = nth;
    failure_ = failure;
  }
  // The failure of this batch or edit; nullopt: it succeeds.
  std::optional<LocalPipeline::Failure> Next(bool is_edit) {
    absl::MutexLock lock(mu_);
    const bool wants_edit = failure_ == LocalPipeline::Failure::kEdits;
    if (!failure_ || wants_edit != is_edit || nth_-- > 0) return std::nullopt;
    return std::exchange(failure_, std::nullopt);
  }

 private:
  absl::Mutex mu_;
  uint32_t nth_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<LocalPipeline::Failure> failure_ ABSL_GUARDED_BY(mu_);
};

class FailingStage final : public Stage {
 public:
  FailingStage(std::unique_ptr<Stage> stage, Faults* faults)
      : stage_(std::move(stage)), faults_(faults) {}

  absl::Status Decode(const Batch& batch) override {
    const auto failure = faults_->Next(/*is_edit=*/false);
    if (!failure) return stage_->Decode(batch);
    if (*failure == LocalPipeline::Failure::kBefore) return absl::InternalError("failed by a test");
    for (int32_t slot : batch.slots) {
      wire::KvEdit drop;
      drop.set_kind(wire::KvEdit::DROP);
      drop.set_slot(slot);
      if (auto s = stage_->Apply(drop); !s.ok()) return s;
    }
    return absl::DataLossError("dropped by a test");
  }
  Payload TakeActivations() override { return stage_->TakeActivations(); }
  absl::Span<const float> Logits(size_t i) override { return stage_->Logits(i); }
  absl::Status Apply(const wire::KvEdit& edit) override {
    if (faults_->Next(/*is_edit=*/true)) return absl::InternalError("failed by a test");
    return stage_->Apply(edit);
  }
  void Clear() override { stage_->Clear(); }
  Held SlotStateOf(int32_t slot) const override { return stage_->SlotStateOf(slot); }
  bool SplitsCaches() const override { return stage_->SplitsCaches(); }
  absl::StatusOr<CachePart> ReadCache(int32_t slot, uint32_t begin, uint32_t n_max) override {
    return stage_->ReadCache(slot, begin, n_max);
  }
  absl::Status WriteCache(int32_t slot, const CachePart& part) override {
    return stage_->WriteCache(slot, part);
  }
  std::vector<KvName> TakeLostBlocks() override { return stage_->TakeLostBlocks(); }
  const llama_vocab* vocab() const override { return stage_->vocab(); }
  const Facts& facts() const override { return stage_->facts(); }

 private:
  const std::unique_ptr<Stage> stage_;
  Faults* const faults_;
};

class LocalPipelineImpl final : public LocalPipeline {
 public:
  LocalPipelineImpl(const LocalPipelineOptions& options, Listener* listener)
      : options_(options), listener_(listener), faults_(options.cuts.size() + 1) {}

  ~LocalPipelineImpl() override {
    closing_ = true;
    if (first_ != nullptr) first_->Close(absl::OkStatus());
    first_.reset();
    servers_.clear();
    std::unique_ptr<Link> returning;
    {
      absl::MutexLock lock(mu_);
      returning = std::move(return_);
    }
  }

  absl::Status Load();
  absl::Status Connect();

  absl::StatusOr<uint64_t> Submit(wire::Step step) override {
    step.set_model_id(kModelId);
    *step.mutable_epoch() = Epoch();
    absl::MutexLock lock(mu_);
    step.set_step_id(last_step_id_ + 1);
    if (auto s = first_->Send(MakeFrame(FrameType::kStep, step)); !s.ok()) return s;
    return ++last_step_id_;
  }
  absl::Status Diagnose(const absl::Status& broken) override { return broken; }
  const std::vector<wire::StageInfo>& stages() const override { return infos_; }
  void FailBatch(uint32_t stage, uint32_t nth, Failure failure) override {
    faults_[stage].Set(nth, failure);
  }

 private:
  class FirstReceiver final : public Link::Receiver {
   public:
    explicit FirstReceiver(LocalPipelineImpl* pipeline) : pipeline_(pipeline) {}
    void OnFrame(Frame) override {}
    void OnWritable() override { pipeline_->listener_->OnWritable(); }
    void OnClosed(absl::Status status) override { pipeline_->OnClosed(std::move(status)); }

   private:
    LocalPipelineImpl* const pipeline_;
  };
  class ReturnReceiver final : public Link::Receiver {
   public:
    explicit ReturnReceiver(LocalPipelineImpl* pipeline) : pipeline_(pipeline) {}
    void OnFrame(Frame frame) override { pipeline_->OnReturned(frame); }
    void OnClosed(absl::Status status) override { pipeline_->OnClosed(std::move(status)); }

   private:
    LocalPipelineImpl* const pipeline_;
  };

  static wire::Epoch Epoch() {
    wire::Epoch epoch;
    epoch.set_counter(1);
    epoch.set_coordinator_id("test");
    return epoch;
  }
  wire::Hello Hello(uint32_t from, uint32_t to) const {
    wire::Hello hello;
    hello.set_model_id(kModelId);
    *hello.mutable_epoch() = Epoch();
    hello.set_from_stage(from);
    hello.set_to_stage(to);
    return hello;
  }
  uint32_t n_stages() const { return static_cast<uint32_t>(options_.cuts.size()) + 1; }

  // Dials the link into `stage`.
  absl::StatusOr<std::unique_ptr<Link>> DialInto(uint32_t stage, wire::Hello hello,
                                                 Link::Receiver* receiver) {
    StageServer* server = servers_[stage].get();
    auto dialled = DialMemoryLink(
        {.hello = std::move(hello)},
        [server](const wire::Hello& peer) -> absl::StatusOr<AcceptedLink> {
          auto incoming = server->Accept(peer);
          if (!incoming.ok()) return incoming.status();
          return AcceptedLink{.hello = incoming->hello,
                              .receiver = incoming->receiver,
                              .on_open = [server](std::unique_ptr<Link> link) {
                                server->SetIncoming(std::move(link));
                              }};
        },
        receiver);
    if (!dialled.ok()) return dialled.status();
    return std::move(dialled->link);
  }

  void OnReturned(const Frame& frame) {
    if (frame.type == FrameType::kResult) {
      wire::Result result;
      if (ParseHeader(frame, &result).ok()) listener_->OnResult(std::move(result));
    } else {
      wire::StepError error;
      if (ParseHeader(frame, &error).ok()) listener_->OnStepError(std::move(error));
    }
    absl::MutexLock lock(mu_);
    if (return_ != nullptr) return_->Release(1);
  }
  void OnClosed(absl::Status status) {
    if (closing_ || broken_.exchange(true)) return;
    listener_->OnBroken(status.ok() ? absl::UnavailableError("closed") : std::move(status));
  }

  const LocalPipelineOptions options_;
  Listener* const listener_;
  FirstReceiver first_receiver_{this};
  ReturnReceiver return_receiver_{this};
  std::vector<Faults> faults_;  // [n_stages]
  std::atomic<bool> closing_{false};
  std::atomic<bool> broken_{false};
  std::vector<wire::StageInfo> infos_;
  std::unique_ptr<Link> first_;

  absl::Mutex mu_;
  uint64_t last_step_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Link> return_ ABSL_GUARDED_BY(mu_);

  std::vector<std::unique_ptr<StageServer>> servers_;
};

absl::Status LocalPipelineImpl::Load() {
  StartEngine();
  auto file = ModelFile::Open(options_.model_path);
  if (!file.ok()) return file.status();
  infos_.resize(n_stages());
  for (uint32_t i = 0; i < n_stages(); ++i) {
    const LayerRange layers = {i == 0 ? 0 : options_.cuts[i - 1],
                               i + 1 == n_stages() ? (*file)->n_layer() : options_.cuts[i]};
    auto slice = Slice::Make(*file, layers, {});
    if (!slice.ok()) return slice.status();
    StageOptions options;
    options.n_ctx = options_.n_ctx;
    options.n_seq_max = options_.n_slots;
    options.n_batch = options_.n_batch;
    options.cache = options_.cache;
    wire::StageSpec spec;
    spec.set_model_id(kModelId);
    *spec.mutable_epoch() = Epoch();
    spec.set_stage(i);
    spec.set_n_stages(n_stages());
    spec.mutable_layers()->set_begin(layers.begin);
    spec.mutable_layers()->set_end(layers.end);
    absl::Notification loaded;
    absl::Status outcome;
    servers_.push_back(StageServer::Start(
        spec, Clock::Real(),
        [&, i]() -> absl::StatusOr<std::unique_ptr<Stage>> {
          auto stage = Stage::Load(*slice, options, nullptr);
          if (!stage.ok()) return stage.status();
          if (!options_.kv_folder.empty()) {
            wire::KvIdentity identity;
            identity.set_setting(absl::StrCat(i));
            auto store = KvStore::Open({.folder = options_.kv_folder,
                                        .identity = identity,
                                        .bytes_max = 64 << 20,
                                        .others_bytes_max = 64 << 20});
            if (!store.ok()) return store.status();
            (*stage)->SetKvStore(*std::move(store));
            infos_[i].set_kv_blocks(JoinKvNames((*stage)->StoredBlocks()));
          }
          return std::make_unique<FailingStage>(*std::move(stage), &faults_[i]);
        },
        [&, i](absl::StatusOr<Stage::Facts> facts) {
          outcome = facts.status();
          if (facts.ok()) {
            std::string kv_blocks = infos_[i].kv_blocks();
            infos_[i] = DescribeStage(spec, *facts, "");
            infos_[i].set_kv_blocks(std::move(kv_blocks));
          }
          loaded.Notify();
        }));
    loaded.WaitForNotification();
    if (!outcome.ok()) return outcome;
  }
  return absl::OkStatus();
}

absl::Status LocalPipelineImpl::Connect() {
  StageServer* last = servers_.back().get();
  auto back = DialMemoryLink(
      {.hello = last->OutgoingHello()},
      [this](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
        wire::Hello hello = Hello(n_stages(), n_stages() - 1);
        hello.set_credits(kResultsMax);
        return AcceptedLink{.hello = std::move(hello),
                            .receiver = &return_receiver_,
                            .on_open = [this](std::unique_ptr<Link> link) {
                              absl::MutexLock lock(mu_);
                              return_ = std::move(link);
                            }};
      },
      last->outgoing_receiver());
  if (!back.ok()) return back.status();
  last->SetOutgoing(std::move(back->link), "");
  for (uint32_t i = n_stages() - 1; i-- > 0;) {
    if (auto s = servers_[i]->SetActivations(options_.activations); !s.ok()) return s;
    auto link = DialInto(i + 1, servers_[i]->OutgoingHello(), servers_[i]->outgoing_receiver());
    if (!link.ok()) return link.status();
    servers_[i]->SetOutgoing(*std::move(link), "");
  }
  auto link = DialInto(0, Hello(n_stages(), 0), &first_receiver_);
  if (!link.ok()) return link.status();
  first_ = *std::move(link);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalPipeline>> LocalPipeline::Open(
    const LocalPipelineOptions& options, Listener* listener) {
  auto pipeline = std::make_unique<LocalPipelineImpl>(options, listener);
  if (auto s = pipeline->Load(); !s.ok()) return s;
  if (auto s = pipeline->Connect(); !s.ok()) return s;
  return pipeline;
}

}  // namespace strata::testing
