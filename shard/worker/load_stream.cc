#include "shard/worker/load_stream.h"

#include <unistd.h>

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shard/device/memory.h"
#include "shard/kv_store/kv_store.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "shard/model/stage_spec.h"
#include "shard/model/weight_blocks.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

bool LoadStream::Progress(uint64_t bytes_done, uint64_t bytes_total) {
  absl::MutexLock lock(mu_);
  if (gone_) return false;
  progress_.emplace();
  progress_->set_bytes_done(bytes_done);
  progress_->set_bytes_total(bytes_total);
  WriteNext();
  return true;
}

void LoadStream::End(absl::StatusOr<wire::StageInfo> outcome) {
  {
    absl::MutexLock lock(mu_);
    outcome_ = std::move(outcome);
    WriteNext();
  }
  Unref();
}

void LoadStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(mu_);
  writing_ = false;
  if (!ok) gone_ = true;
  WriteNext();
}

void LoadStream::OnCancel() {
  absl::MutexLock lock(mu_);
  gone_ = true;
  WriteNext();
}

void LoadStream::OnDone() { Unref(); }

void LoadStream::WriteNext() {
  if (writing_ || finished_) return;
  if (outcome_) {
    finished_ = true;
    if (!outcome_->ok() || gone_) {
      Finish(ToGrpc(outcome_->status()));
      return;
    }
    *event_.mutable_loaded() = **std::move(outcome_);
    StartWriteAndFinish(&event_, grpc::WriteOptions(), grpc::Status::OK);
    return;
  }
  // A call whose caller is gone ends only with the loader's outcome.
  if (!progress_ || gone_) return;
  *event_.mutable_progress() = *std::exchange(progress_, std::nullopt);
  writing_ = true;
  StartWrite(&event_);
}

void LoadStream::Unref() {
  bool last;
  {
    absl::MutexLock lock(mu_);
    last = --refs_ == 0;
  }
  if (last) delete this;
}

namespace {

// Errors: as LoadSpec().
absl::StatusOr<std::shared_ptr<const ModelFile>> OpenModel(const wire::LoadStageRequest& request) {
  const std::string& path = request.spec().model_path();
  const bool is_cached = !request.block_hashes().empty();
  auto model = ModelFile::Open(path);
  if (!model.ok()) {
    return is_cached ? absl::DataLossError(model.status().message()) : model.status();
  }
  if ((*model)->id() != request.spec().model_id()) {
    if (is_cached) return absl::DataLossError(absl::StrCat(path, " is damaged"));
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not the model of the plan: same name, other content"));
  }
  if (!is_cached) {
    if (absl::Status status = CheckNoHoles(**model); !status.ok()) return status;
  }
  if (!request.file_key().empty() && (*model)->file_key() != request.file_key()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " has changed since other nodes got weights of it; load the model again"));
  }
  return model;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> LoadSpec(const wire::LoadStageRequest& request,
                                                LoadStream* stream) {
  const wire::StageSpec& spec = request.spec();
  const bool is_cached = !request.block_hashes().empty();
  const auto model = OpenModel(request);
  if (!model.ok()) return model.status();
  const LayerRange layers{spec.layers().begin(), spec.layers().end()};
  auto slice = Slice::Make(
      *model, layers, {.unverified = spec.unverified(), .block_hashes = request.block_hashes()});
  if (!slice.ok()) return slice.status();
  if (slice->is_first() != IsFirstStage(spec) || slice->is_last() != IsLastStage(spec)) {
    return absl::InvalidArgumentError(absl::StrCat("layers ", layers.begin, "-", layers.end,
                                                   " cannot be stage ", spec.stage(), " of ",
                                                   spec.n_stages()));
  }
  StageOptions options;
  options.n_ctx = spec.n_ctx();
  options.n_seq_max = spec.n_seq_max();
  options.n_batch = spec.n_batch();
  options.n_threads = spec.n_threads();
  options.device = spec.device();
  options.memory_bytes_max = spec.memory_bytes_max();
  options.n_cpu_moe = spec.n_cpu_moe();
  options.host_bytes_max = spec.host_bytes_max();
  options.cache = CacheOptionsOf(spec.cache());
  // Cached files are not mapped: mapped bytes would not be compared with hashes.
  options.use_mmap = spec.use_mmap() && !is_cached;
  auto stage = Stage::Load(*slice, options, [stream](uint64_t done, uint64_t total) {
    return stream->Progress(done, total);
  });
  // The cache's files may change during the load, but their blocks have been compared with hashes.
  if (!stage.ok() || is_cached) return stage;
  if (absl::Status status = (*model)->CheckUnchanged(); !status.ok()) return status;
  return stage;
}

void OpenKvStore(const wire::LoadStageRequest& request, Stage* stage) {
  const wire::StageSpec& spec = request.spec();
  // With --exact a slot's contents depend on how its rows were cut into steps.
  if (!request.has_kv_store() || spec.cache().exact()) return;
  const Stage::Facts& facts = stage->facts();
  const wire::Versions& versions = LocalVersions();
  wire::KvIdentity identity;
  wire::KvCacheAbout* const about = identity.mutable_about();
  about->set_model_id(spec.model_id());
  about->set_model_name(spec.model_name().empty() ? ModelFileStem(spec.model_path())
                                                  : spec.model_name());
  *about->mutable_layers() = spec.layers();
  identity.set_device(spec.device());
  // The context's length, as it decides how some models turn their keys.
  identity.set_setting(
      absl::StrJoin({spec.cache().type_k(), spec.cache().type_v(), spec.cache().flash_attention(),
                     absl::StrCat(spec.cache().kv_cells()), absl::StrCat(facts.n_ctx),
                     absl::StrCat(facts.n_seq_max), versions.llama(), versions.ggml()},
                    "\n"));
  auto store = KvStore::Open({.folder = request.kv_store().folder(),
                              .identity = std::move(identity),
                              .bytes_max = request.kv_store().bytes_max(),
                              .others_bytes_max = request.kv_store().others_bytes_max()});
  if (store.ok()) {
    stage->SetKvStore(*std::move(store));
  } else {
    LOG(WARNING) << "processed prompts are not kept: " << store.status().message();
  }
}

wire::StageInfo DescribeStage(const wire::StageSpec& spec, const Stage::Facts& facts,
                              const std::string& link_address) {
  wire::StageInfo info;
  info.set_stage(spec.stage());
  *info.mutable_layers() = spec.layers();
  info.set_link_address(link_address);
  info.set_n_embd(facts.n_embd);
  info.set_slice_bytes(facts.slice_bytes);
  info.set_host_bytes(facts.host_bytes);
  info.set_device_bytes(facts.device_bytes);
  info.set_kv_bytes(facts.kv_bytes);
  info.set_compute_bytes(facts.compute_bytes);
  info.set_resident_bytes(ResidentBytes());
  info.set_load_ms(facts.load_ms);
  info.set_worker_pid(getpid());
  wire::CacheAbility* cache = info.mutable_cache();
  cache->set_trim(facts.cache.trim);
  cache->set_copy(facts.cache.copy);
  cache->set_shift(facts.cache.shift);
  cache->set_window_tokens(facts.cache.window_tokens);
  cache->set_checkpoint(facts.cache.checkpoint);
  cache->set_rewind(facts.cache.rewind);
  info.set_n_ctx(facts.n_ctx);
  info.set_n_ctx_train(facts.n_ctx_train);
  info.set_n_seq_max(facts.n_seq_max);
  info.set_n_batch(facts.n_batch);
  info.set_n_vocab(facts.n_vocab);
  info.set_kv_cells(static_cast<uint32_t>(facts.kv_cells));
  info.set_checkpoints(facts.n_checkpoints);
  info.set_checkpoint_bytes(facts.checkpoint_bytes);
  info.set_kv_blocks_max(facts.kv_blocks_max);
  return info;
}

}  // namespace strata
