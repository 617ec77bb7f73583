#include "coordinator/generation/pipeline.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/generation/self_tests.h"
#include "grpcpp/server_builder.h"
#include "transport/base/epoch.h"
#include "transport/base/steady_time.h"
#include "transport/base/version.h"
#include "transport/link/grpc_link.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/listening_server.h"
#include "transport/rpc/process_security.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

// How long a node may take to notice that its worker has died or hangs (kPongTimeout in
// node/workers/worker_process), and to answer.
constexpr absl::Duration kDiagnoseTime = absl::Seconds(6);
constexpr int64_t kInfoTimeoutMs = 1000;
// Each stage adds its timing.
constexpr size_t kStepBytesMax = kFrameHeaderBytesMax - (64 << 10);
// Caches are copied so often while requests run, and no more once so little has changed.
constexpr int kCopiesMax = 5;
constexpr uint64_t kCopyBytesMin = 1 << 20;
constexpr absl::Duration kCopyPause = absl::Milliseconds(100);
// The limit on all these copies; beyond it, sequences are fed again. And the limit on the last
// copy, while requests wait.
constexpr absl::Duration kCopyTime = absl::Minutes(5);
constexpr absl::Duration kPauseMax = absl::Seconds(20);

// A worker that listens on all interfaces is reached where its node is.
std::string LinkAddress(const std::string& reported, const std::string& node_address) {
  const size_t colon = reported.rfind(':');
  const std::string host = reported.substr(0, colon);
  if (colon == std::string::npos || (host != "[::]" && host != "0.0.0.0")) return reported;
  return absl::StrCat(node_address.substr(0, node_address.rfind(':')), reported.substr(colon));
}

class PipelineImpl final : public Pipeline {
 public:
  PipelineImpl(PipelineOptions options, Listener* listener)
      : options_(std::move(options)),
        listener_(listener),
        returns_({.allow_mixed_versions = options_.allow_mixed_versions},
                 [this](const wire::Hello& peer) { return AcceptReturn(peer); }) {}

  ~PipelineImpl() override {
    closing_ = true;
    const absl::Status done = absl::OkStatus();
    if (first_ != nullptr) first_->Close(done);
    if (!stages_disowned_) Unload();
    first_.reset();
    {
      absl::MutexLock lock(mu_);
      if (return_ != nullptr) return_->Close(done);
    }
    std::unique_ptr<Link> returning;
    {
      absl::MutexLock lock(mu_);
      returning = std::move(return_);
    }
    returning.reset();
    if (server_ != nullptr) {
      server_->Shutdown(DeadlineIn(absl::Seconds(1)));
    }
  }

  void DisownStages() override { stages_disowned_ = true; }
  void OwnStages() { stages_disowned_ = false; }

  absl::Status Load(Progress progress);
  absl::Status ConnectLinks();

  absl::StatusOr<uint64_t> Submit(wire::Step step) override;
  absl::Status Diagnose(const absl::Status& broken) override;
  const std::vector<wire::StageInfo>& stages() const override { return stages_; }
  uint64_t bytes_returned() const override { return bytes_returned_; }
  Carried carried() const override { return carried_; }

 private:
  // The link into stage 0: only credits and its end come back on it.
  class FirstReceiver final : public Link::Receiver {
   public:
    explicit FirstReceiver(PipelineImpl* pipeline) : pipeline_(pipeline) {}
    void OnFrame(Frame) override {}
    void OnWritable() override { pipeline_->listener_->OnWritable(); }
    void OnClosed(absl::Status status) override { pipeline_->OnBroken(std::move(status)); }

   private:
    PipelineImpl* const pipeline_;
  };

  // The link from the last stage.
  class ReturnReceiver final : public Link::Receiver {
   public:
    explicit ReturnReceiver(PipelineImpl* pipeline) : pipeline_(pipeline) {}
    void OnFrame(Frame frame) override { pipeline_->OnReturned(frame); }
    void OnClosed(absl::Status status) override { pipeline_->OnBroken(std::move(status)); }

   private:
    PipelineImpl* const pipeline_;
  };

  size_t n_stages() const { return options_.stages.size(); }
  absl::Status Listen();
  absl::StatusOr<GrpcLinkAcceptor::Accepted> AcceptReturn(const wire::Hello& peer);
  void OnReturned(const Frame& frame);
  void OnBroken(absl::Status status);
  wire::StageSpec SpecOf(size_t stage) const;
  // "/CUDA0"; empty: the CPU.
  std::string DeviceText(size_t stage) const {
    const std::string& device = options_.stages[stage].device;
    return device.empty() ? "" : absl::StrCat("/", device);
  }
  bool IsKept(size_t stage) const { return options_.stages[stage].kept.has_value(); }
  // Whether stages that are not kept take over caches.
  bool MovesCaches() const {
    return std::ranges::any_of(options_.stages,
                               [](const StagePlacement& stage) { return !stage.caches.empty(); });
  }
  absl::Status LoadStages(const std::vector<size_t>& which, Progress* progress);
  // Copies the caches that stages take over while the plan before runs on. False: they cannot be
  // copied. kCancelled: the load was cancelled.
  absl::StatusOr<bool> CopyCaches(Progress* progress);
  // The outcome of one copy of their changes.
  struct CopyResult {
    uint64_t bytes = 0;
    bool lags = false;  // a slot or more is incomplete
  };
  wire::MoveCachesRequest MoveOf(size_t stage) const;
  absl::StatusOr<CopyResult> CopyChanges(Progress* progress, SteadyTime until);
  void Unload();
  void UnloadStage(size_t stage);

  const PipelineOptions options_;
  Listener* const listener_;
  FirstReceiver first_receiver_{this};
  ReturnReceiver return_receiver_{this};
  std::atomic<bool> closing_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> stages_disowned_{false};
  std::atomic<uint64_t> bytes_returned_{0};

  // Constant after Build().
  std::vector<wire::StageInfo> stages_;  // empty link_address: not loaded
  // [stages] For those that take over caches: what they have so far.
  std::vector<wire::MoveCachesResponse> copied_;
  bool carries_ = false;  // the caches can still be carried over
  Carried carried_;
  std::string return_address_;
  std::unique_ptr<Link> first_;

  absl::Mutex mu_;
  uint64_t last_step_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool return_promised_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t freed_ ABSL_GUARDED_BY(mu_) = 0;  // credits not yet returned to the last stage
  std::unique_ptr<Link> return_ ABSL_GUARDED_BY(mu_);

  GrpcLinkAcceptor returns_;
  std::unique_ptr<ListeningServer> server_;
};

wire::StageSpec PipelineImpl::SpecOf(size_t stage) const {
  wire::StageSpec spec;
  spec.set_model_id(options_.model_id);
  *spec.mutable_epoch() = options_.epoch;
  spec.set_stage(static_cast<uint32_t>(stage));
  spec.set_n_stages(static_cast<uint32_t>(n_stages()));
  spec.set_model_path(options_.model_path);
  spec.set_model_name(options_.model_name.str());
  spec.mutable_layers()->set_begin(options_.stages[stage].layers.begin);
  spec.mutable_layers()->set_end(options_.stages[stage].layers.end);
  spec.set_n_ctx(options_.n_ctx);
  spec.set_n_seq_max(options_.n_seq_max);
  spec.set_n_batch(options_.n_batch);
  spec.set_n_threads(options_.n_threads);
  spec.set_device(options_.stages[stage].device);
  spec.set_n_cpu_moe(options_.stages[stage].n_cpu_moe);
  if (IsKept(stage)) {
    *spec.mutable_kept() = *options_.stages[stage].kept;
    spec.mutable_kept()->set_with_caches(carries_);
  }
  spec.set_unverified(options_.unverified);
  *spec.mutable_cache() = options_.cache;
  spec.set_use_mmap(options_.use_mmap);
  spec.set_origin(options_.origin);
  AddWeightSources({.source = options_.source,
                    .from_caches = options_.from_caches,
                    .remote = options_.remote,
                    .peers = options_.stages[stage].weight_peers},
                   options_.stages[stage].node->id(), &spec);
  return spec;
}

absl::Status PipelineImpl::Load(Progress progress) {
  if (options_.source != nullptr) {
    const auto id = options_.source->ShareModel(options_.model_path);
    if (!id.ok()) return id.status();
    if (*id != options_.model_id) {
      return absl::FailedPreconditionError(
          absl::StrCat(options_.source->name(), ": ", options_.model_path,
                       " is not the model of the plan: same name, other content"));
    }
  }
  stages_.resize(n_stages());
  std::vector<size_t> all, anew, kept;
  for (size_t i = 0; i < n_stages(); ++i) {
    all.push_back(i);
    (IsKept(i) ? kept : anew).push_back(i);
  }
  if (options_.take_over == nullptr) return LoadStages(all, &progress);
  if (auto s = LoadStages(anew, &progress); !s.ok()) return s;
  if (MovesCaches()) {
    const absl::StatusOr<bool> copied = CopyCaches(&progress);
    if (!copied.ok()) return copied.status();
    carries_ = *copied;
  }
  const absl::StatusOr<bool> quiesced = options_.take_over();
  if (!quiesced.ok()) return quiesced.status();
  carries_ = carries_ && *quiesced;
  if (carries_) {
    const SteadyTime until = SteadyTime::Now() + kPauseMax;
    absl::StatusOr<CopyResult> copied = CopyChanges(&progress, until);
    if (copied.ok()) carried_.bytes_after = copied->bytes;
    // With no step in flight, one more copy completes the slots that lag.
    if (copied.ok() && copied->lags) {
      copied = CopyChanges(&progress, until);
      if (copied.ok()) carried_.bytes_after += copied->bytes;
    }
    carries_ = copied.ok() && !copied->lags;
  }
  if (auto s = LoadStages(kept, &progress); !s.ok()) return s;
  const bool carried = carries_ && std::all_of(kept.begin(), kept.end(), [this](size_t i) {
                         return stages_[i].caches_kept();
                       });
  if (MovesCaches()) {
    carried_.contents = carried ? SlotContents::kAsBefore : SlotContents::kAnything;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> PipelineImpl::CopyCaches(Progress* progress) {
  copied_.resize(n_stages());
  const SteadyTime until = SteadyTime::Now() + kCopyTime;
  uint64_t before = std::numeric_limits<uint64_t>::max();
  for (int i = 0; i < kCopiesMax; ++i) {
    const absl::StatusOr<CopyResult> copied = CopyChanges(progress, until);
    if (absl::IsCancelled(copied.status())) return copied.status();
    if (!copied.ok()) {
      // Retry: a slot is just being shifted, or a stage is overloaded.
      const bool passes =
          absl::IsUnavailable(copied.status()) || absl::IsResourceExhausted(copied.status());
      if (!passes) return false;
      absl::SleepFor(kCopyPause);
      continue;
    }
    carried_.bytes_before += copied->bytes;
    // The rest is the growth of the sequences meanwhile, or caches that are copied whole each time.
    if (copied->bytes <= kCopyBytesMin || copied->bytes > before / 2) return true;
    before = copied->bytes;
  }
  return before != std::numeric_limits<uint64_t>::max();
}

wire::MoveCachesRequest PipelineImpl::MoveOf(size_t stage) const {
  wire::MoveCachesRequest request;
  *request.mutable_epoch() = options_.epoch;
  request.set_stage(static_cast<uint32_t>(stage));
  for (const CacheSource& source : options_.stages[stage].caches) {
    wire::CacheSource* const from = request.add_from();
    *from->mutable_stage() = source.stage;
    from->set_address(source.address);
    from->set_node(source.node_id);
    from->mutable_layers()->set_begin(source.layers.begin);
    from->mutable_layers()->set_end(source.layers.end);
    const int i = request.from_size() - 1;
    if (i < copied_[stage].from_size()) *from->mutable_has() = copied_[stage].from(i).slots();
  }
  return request;
}

absl::StatusOr<PipelineImpl::CopyResult> PipelineImpl::CopyChanges(Progress* progress,
                                                                   SteadyTime until) {
  absl::Mutex mu;
  bool wanted = true;
  CopyResult copied;
  absl::Status failure;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < n_stages(); ++i) {
    if (IsKept(i)) continue;
    threads.emplace_back([&, i] {
      auto moved = options_.stages[i].node->MoveCaches(MoveOf(i), [&] {
        absl::MutexLock lock(mu);
        wanted = wanted && (*progress)(i, wire::LoadProgress());
        return wanted && SteadyTime::Now() < until;
      });
      absl::MutexLock lock(mu);
      if (moved.ok()) {
        copied.bytes += moved->bytes();
        copied.lags = copied.lags || moved->lags();
        copied_[i] = *std::move(moved);
      } else if (failure.ok()) {
        failure = WithStage(moved.status(), static_cast<uint32_t>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!wanted) return absl::CancelledError("the load of the stages was cancelled");
  if (failure.ok()) return copied;
  if (SteadyTime::Now() >= until) failure = absl::DeadlineExceededError("copying takes too long");
  LOG(WARNING) << "the KV caches cannot be moved with their stages: " << failure.message();
  return failure;
}

absl::Status PipelineImpl::LoadStages(const std::vector<size_t>& which, Progress* progress) {
  std::vector<absl::Status> outcomes(n_stages());
  absl::Mutex progress_mu;
  std::atomic<bool> cancelled{false};
  std::vector<std::thread> threads;
  for (const size_t i : which) {
    threads.emplace_back([&, i] {
      auto info =
          options_.stages[i].node->LoadStage(SpecOf(i), [&](const wire::LoadProgress& done) {
            absl::MutexLock lock(progress_mu);
            if (!(*progress)(i, done)) cancelled = true;
            return !cancelled;
          });
      if (info.ok()) {
        stages_[i] = *std::move(info);
        stages_[i].set_link_address(
            LinkAddress(stages_[i].link_address(), options_.stages[i].node->address()));
      } else {
        outcomes[i] = WithStage(info.status(), static_cast<uint32_t>(i));
        cancelled = true;  // the others need not go on
      }
    });
  }
  std::vector<wire::SelfTest> earlier;
  if (options_.self_tests != nullptr) earlier = options_.self_tests();
  for (std::thread& thread : threads) thread.join();
  for (const size_t i : which) {
    if (!outcomes[i].ok()) continue;
    const absl::Status right = CheckSelfTest(stages_[i].self_test(), earlier);
    if (right.ok()) continue;
    // Also with leave_on_error: no plan is to keep this stage.
    UnloadStage(i);
    const LayerRange& layers = options_.stages[i].layers;
    outcomes[i] =
        WithStage(Prefixed(absl::StrCat("stage ", i, " (layers ", layers.begin, "-", layers.end - 1,
                                        ") on ", options_.stages[i].node->name(), DeviceText(i)),
                           right),
                  static_cast<uint32_t>(i));
  }
  // A stage that was cancelled because of another one's failure is not the reason.
  for (const absl::Status& outcome : outcomes) {
    if (!outcome.ok() && !absl::IsCancelled(outcome)) return outcome;
  }
  for (const absl::Status& outcome : outcomes) {
    if (!outcome.ok()) return outcome;
  }
  return absl::OkStatus();
}

absl::Status PipelineImpl::Listen() {
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  builder.RegisterCallbackGenericService(returns_.service());
  auto server = ListeningServer::Start({.address = absl::StrCat(options_.listen_host, ":0"),
                                        .credentials = ProcessServerCredentials()},
                                       &builder);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return_address_ = absl::StrCat(options_.listen_host, ":", server_->port());
  return absl::OkStatus();
}

absl::Status PipelineImpl::ConnectLinks() {
  if (auto s = Listen(); !s.ok()) return s;
  // From the last stage on, so that every stage finds the next one ready.
  for (size_t i = n_stages(); i-- > 0;) {
    wire::ConnectStageRequest request;
    *request.mutable_epoch() = options_.epoch;
    request.set_stage(static_cast<uint32_t>(i));
    const bool last = i + 1 == n_stages();
    request.set_next_address(last ? return_address_ : stages_[i + 1].link_address());
    request.set_next_node(last ? options_.coordinator_node : options_.stages[i + 1].node->id());
    if (!last) *request.mutable_activations() = options_.stages[i].sends;
    if (auto s = options_.stages[i].node->ConnectStage(request); !s.ok()) return s;
  }
  DialOptions dial;
  dial.address = stages_[0].link_address();
  *dial.hello.mutable_versions() = LocalVersions();
  dial.hello.set_model_id(options_.model_id);
  *dial.hello.mutable_epoch() = options_.epoch;
  dial.hello.set_from_stage(static_cast<uint32_t>(n_stages()));
  dial.hello.set_to_stage(0);
  dial.allow_mixed_versions = options_.allow_mixed_versions;
  auto link = DialGrpcLink(std::move(dial), &first_receiver_);
  if (!link.ok()) return link.status();
  first_ = *std::move(link);
  return absl::OkStatus();
}

absl::StatusOr<GrpcLinkAcceptor::Accepted> PipelineImpl::AcceptReturn(const wire::Hello& peer) {
  absl::MutexLock lock(mu_);
  if (CompareEpochs(peer.epoch(), options_.epoch) != 0) {
    return absl::AbortedError(absl::StrCat("the pipeline is of epoch ", EpochString(options_.epoch),
                                           ", the peer of epoch ", EpochString(peer.epoch())));
  }
  if (peer.model_id() != options_.model_id || peer.from_stage() + 1 != n_stages() ||
      peer.to_stage() != n_stages()) {
    return absl::FailedPreconditionError("only the last stage of the plan may link here");
  }
  if (return_promised_) return absl::FailedPreconditionError("the last stage has a link already");
  return_promised_ = true;
  GrpcLinkAcceptor::Accepted accepted;
  *accepted.hello.mutable_versions() = LocalVersions();
  accepted.hello.set_model_id(options_.model_id);
  *accepted.hello.mutable_epoch() = options_.epoch;
  accepted.hello.set_from_stage(static_cast<uint32_t>(n_stages()));
  accepted.hello.set_to_stage(peer.from_stage());
  accepted.hello.set_credits(kResultsMax);
  accepted.receiver = &return_receiver_;
  accepted.on_open = [this](std::unique_ptr<Link> link) {
    absl::MutexLock open_lock(mu_);
    return_ = std::move(link);
  };
  return accepted;
}

void PipelineImpl::OnReturned(const Frame& frame) {
  bytes_returned_ += FrameBytes(frame);
  if (frame.type == FrameType::kResult) {
    wire::Result result;
    if (auto s = ParseHeader(frame, &result); !s.ok()) return OnBroken(s);
    if (CompareEpochs(result.epoch(), options_.epoch) == 0) listener_->OnResult(std::move(result));
  } else if (frame.type == FrameType::kError) {
    wire::StepError error;
    if (auto s = ParseHeader(frame, &error); !s.ok()) return OnBroken(s);
    if (CompareEpochs(error.epoch(), options_.epoch) == 0) listener_->OnStepError(std::move(error));
  } else {
    return OnBroken(absl::InvalidArgumentError("the last stage sent an unexpected frame"));
  }
  absl::MutexLock lock(mu_);
  if (++freed_ < kResultsRelease || return_ == nullptr) return;
  return_->Release(std::exchange(freed_, 0));
}

void PipelineImpl::OnBroken(absl::Status status) {
  if (closing_ || broken_.exchange(true)) return;
  if (status.ok()) status = absl::UnavailableError("a stage closed its link");
  listener_->OnBroken(std::move(status));
}

absl::StatusOr<uint64_t> PipelineImpl::Submit(wire::Step step) {
  step.set_model_id(options_.model_id);
  *step.mutable_epoch() = options_.epoch;
  // Under the lock, so that steps are sent in the order of their ids. Send() never blocks.
  absl::MutexLock lock(mu_);
  step.set_step_id(last_step_id_ + 1);
  Frame frame = MakeFrame(FrameType::kStep, step);
  if (frame.header.size() > kStepBytesMax) {
    ++last_step_id_;
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", frame.header.size(), " bytes; at most ", kStepBytesMax));
  }
  if (auto s = first_->Send(std::move(frame)); !s.ok()) {
    // The status that a link was closed with says nothing about the step.
    return absl::IsInvalidArgument(s) ? absl::UnavailableError(s.message()) : s;
  }
  return ++last_step_id_;
}

absl::Status PipelineImpl::Diagnose(const absl::Status& broken) {
  const SteadyTime until = SteadyTime::Now() + kDiagnoseTime;
  while (true) {
    absl::Status unreachable;
    for (size_t i = 0; i < n_stages(); ++i) {
      auto info = options_.stages[i].node->GetInfo(kInfoTimeoutMs);
      if (!info.ok()) {
        unreachable = info.status();
        continue;
      }
      if (auto failure = FailureOf(*info, options_.epoch, i); !failure.ok()) return failure;
    }
    if (!unreachable.ok()) return unreachable;
    if (SteadyTime::Now() >= until) return broken;
    absl::SleepFor(absl::Milliseconds(100));
  }
}

void PipelineImpl::Unload() {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i].link_address().empty()) continue;
    threads.emplace_back([this, i] { UnloadStage(i); });
  }
  for (std::thread& thread : threads) thread.join();
}

void PipelineImpl::UnloadStage(size_t stage) {
  wire::UnloadStageRequest request;
  *request.mutable_epoch() = options_.epoch;
  request.set_stage(static_cast<uint32_t>(stage));
  // A node that is gone has unloaded already, or the next leader makes it unload.
  NodeClient* const node = options_.stages[stage].node;
  node->UnloadStage(request, [&] { return options_.gone == nullptr || !options_.gone(node->id()); })
      .IgnoreError();
  stages_[stage].clear_link_address();  // nothing is loaded any more
}

}  // namespace

void AddWeightSources(const WeightSources& sources, const std::string& self,
                      wire::StageSpec* spec) {
  const NodeClient* const source = sources.source;
  if (source != nullptr) {
    if (source->id() == self) return;
    spec->set_source_address(source->address());
    spec->set_source_node(source->id());
  }
  spec->set_no_source(sources.from_caches);
  const bool is_remote = sources.remote.parts_size() > 0;
  if (is_remote) *spec->mutable_remote() = sources.remote;
  for (const NodeClient* const node : sources.peers) {
    if (spec->weight_peers_size() == kWeightPeersMax) break;
    if (source != nullptr && node->id() == source->id()) continue;
    if ((!sources.from_caches || is_remote) && node->id() == self) continue;
    wire::WeightPeer* const peer = spec->add_weight_peers();
    peer->set_address(node->address());
    peer->set_node_id(node->id());
  }
}

absl::Status FailureOf(const wire::GetInfoResponse& info, const wire::Epoch& epoch, size_t stage) {
  for (const wire::StageStatus& one : info.stages()) {
    if (one.stage() == stage && CompareEpochs(one.epoch(), epoch) == 0 &&
        one.status().code() != 0) {
      return FromWire(one.status());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Build(PipelineOptions options,
                                                          Listener* listener, Progress progress) {
  CHECK(!options.stages.empty());
  const auto has_caches = [](const StagePlacement& stage) {
    return stage.kept.has_value() || !stage.caches.empty();
  };
  CHECK(std::ranges::all_of(options.stages, has_caches) ||
        std::ranges::all_of(options.stages,
                            [](const StagePlacement& stage) { return stage.caches.empty(); }));
  const bool leave = options.leave_on_error;
  auto pipeline = std::make_unique<PipelineImpl>(std::move(options), listener);
  if (leave) pipeline->DisownStages();
  if (auto s = pipeline->Load(std::move(progress)); !s.ok()) return s;
  if (auto s = pipeline->ConnectLinks(); !s.ok()) return s;
  pipeline->OwnStages();
  return pipeline;
}

}  // namespace strata
