#include "shard/engine/stage.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "llama.h"
#include "shard/device/device_probe.h"
#include "shard/device/engine.h"
#include "shard/device/memory.h"
#include "shard/engine/llama_stage.h"
#include "shard/engine/lost_pages.h"
#include "shard/engine/warm_up.h"
#include "shard/model/derived.h"
#include "shard/model/experts.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

// libllama reserves a row of logits, on the device and on the host, for every row that may be an
// output.
constexpr uint64_t kLogitsBytesMax = 64 << 20;
// Copying this many bytes of uncomputed logits takes less time than making a graph of a few layers.
constexpr uint64_t kUnusedLogitsBytesMax = 1 << 20;

// Bytes that libllama keeps for each cell of a cache besides its keys and values.
constexpr uint64_t kCellBytes = 48;
// Bytes of a checkpoint besides keys, values and states, including the rounding error of libllama's
// figures, which are in hundredths of a MiB.
constexpr uint64_t kCheckpointHeadBytes = 24 << 10;

uint64_t Mib(uint64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

absl::Status CheckOptions(const StageOptions& options) {
  if (options.n_ctx == 0 || options.n_batch == 0 || options.n_threads == 0) {
    return absl::InvalidArgumentError("n_ctx, n_batch and n_threads must be 1 or more");
  }
  if (options.n_threads > GGML_MAX_N_THREADS) {
    return absl::InvalidArgumentError(absl::StrCat("n_threads is ", options.n_threads,
                                                   "; it must be at most ", GGML_MAX_N_THREADS));
  }
  const size_t n_seq_limit = llama_max_parallel_sequences();
  if (options.n_seq_max == 0 || options.n_seq_max > n_seq_limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_seq_max is ", options.n_seq_max, "; it must be from 1 to ", n_seq_limit));
  }
  constexpr uint64_t kCellsMax = std::numeric_limits<int32_t>::max() - 4096;
  if (uint64_t{options.n_ctx} * options.n_seq_max > kCellsMax || options.n_batch > kCellsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_ctx ", options.n_ctx, " x n_seq_max ", options.n_seq_max, " is too large"));
  }
  return absl::OkStatus();
}

bool IsRecurrent(const llama_model* model) {
  return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

uint32_t VocabularySize(const llama_model* model) {
  return static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
}

// libllama reserves room for a batch with equally many rows of each sequence, and aborts where the
// rows do not divide evenly.
uint32_t EvenBatch(uint32_t n_batch, uint32_t n_seq_max, uint32_t n_ctx) {
  const uint32_t even = (n_batch + n_seq_max - 1) / n_seq_max * n_seq_max;
  return even <= std::max(n_ctx, n_seq_max) ? even : even - n_seq_max;
}

// REQUIRES: CheckCacheOptions() has accepted `options.cache`.
llama_context_params ContextParams(const Slice& slice, const StageOptions& options,
                                   const llama_model* model) {
  llama_context_params params = llama_context_default_params();
  params.kv_unified = SharesCache(options.cache, options.n_ctx, options.n_seq_max);
  // A stream is padded by libllama, too, which warns of it.
  params.n_ctx =
      params.kv_unified
          ? static_cast<uint32_t>(CellsOf(options.cache, options.n_ctx, options.n_seq_max))
          : GGML_PAD(options.n_ctx, kCachePadPositions) * options.n_seq_max;
  params.n_seq_max = options.n_seq_max;
  params.n_batch = EvenBatch(options.n_batch, params.n_seq_max, params.n_ctx);
  params.n_ubatch = params.n_batch;  // one graph for a step: its rows come out in their order
  params.n_threads = static_cast<int32_t>(options.n_threads);
  params.n_threads_batch = static_cast<int32_t>(options.n_threads);
  params.type_k = static_cast<ggml_type>(*CacheType("type_k", options.cache.type_k));
  params.type_v = static_cast<ggml_type>(*CacheType("type_v", options.cache.type_v));
  params.flash_attn_type =
      static_cast<llama_flash_attn_type>(*FlashAttentionType(options.cache.flash_attention));
  params.swa_full = false;  // a window's cache has the window's size, as these models intend
  params.no_perf = true;
  if (slice.is_last()) {
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    const uint64_t row_bytes = uint64_t{VocabularySize(model)} * sizeof(float);
    params.n_outputs_max = static_cast<uint32_t>(std::min<uint64_t>(
        params.n_batch, std::max<uint64_t>(options.n_seq_max, kLogitsBytesMax / row_bytes)));
  } else {
    // Pooled embeddings make libllama output every row and keep no logits. Without a vocabulary it
    // has no logits; recurrent models would then run one sequence at a time.
    params.embeddings = slice.has_vocabulary() && !IsRecurrent(model);
    params.pooling_type = params.embeddings ? LLAMA_POOLING_TYPE_MEAN : LLAMA_POOLING_TYPE_NONE;
  }
  return params;
}

// LlamaStage::Config::n_unpooled_max of a stage that pools embeddings.
uint32_t UnpooledMax(uint32_t n_host_layers, const llama_model* model) {
  // Layers on the CPU split the graph, and OnTensor() ends only its own part: the head would be
  // computed after it.
  if (n_host_layers > 0) return 0;
  return static_cast<uint32_t>(kUnusedLogitsBytesMax / sizeof(float) / VocabularySize(model));
}

struct LoadProgress {
  Stage::Progress* progress = nullptr;
  uint64_t total_bytes = 0;
  bool is_cancelled = false;

  static bool Report(float fraction, void* user_data) {
    auto* load = static_cast<LoadProgress*>(user_data);
    if (load->progress == nullptr || *load->progress == nullptr) return true;
    const auto done = static_cast<uint64_t>(static_cast<double>(fraction) * load->total_bytes);
    load->is_cancelled = !(*load->progress)(std::min(done, load->total_bytes), load->total_bytes);
    return !load->is_cancelled;
  }
};

// How many of the stage's layers leave their experts in the host's memory.
uint32_t HostLayers(const Slice& slice, const StageOptions& options, ggml_backend_dev_t device) {
  return device == nullptr ? 0 : std::min(options.n_cpu_moe, slice.layers().size());
}

// Whether libllama maps the model's own file. Weights that the CPU computes beside a device are
// copied to its preferred layout.
bool IsMapped(const Slice& slice, const StageOptions& options, ggml_backend_dev_t device) {
  return options.use_mmap && slice.is_whole() && HostLayers(slice, options, device) == 0 &&
         llama_supports_mmap();
}

absl::StatusOr<LlamaModelPtr> LoadModel(const Slice& slice, const StageOptions& options,
                                        ggml_backend_dev_t device, bool with_data,
                                        LoadProgress* progress) {
  ggml_backend_dev_t devices[] = {device, nullptr};  // none: the CPU
  llama_model_params params = llama_model_default_params();
  const uint32_t n_host = HostLayers(slice, options, device);
  const std::string experts = ExpertPattern(n_host);
  const llama_model_tensor_buft_override overrides[] = {
      {experts.c_str(), ggml_backend_cpu_buffer_type()}, {nullptr, nullptr}};
  if (n_host > 0) params.tensor_buft_overrides = overrides;
  params.devices = devices;
  params.n_gpu_layers = device == nullptr ? 0 : -1;
  params.split_mode = LLAMA_SPLIT_MODE_NONE;
  params.use_extra_bufts = true;  // repacked weights: the fast CPU kernels
  params.no_alloc = !with_data;
  params.progress_callback = LoadProgress::Report;
  params.progress_callback_user_data = progress;
  if (with_data && IsMapped(slice, options, device)) {
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    std::vector<const char*> paths;
    for (const std::string& path : slice.model().paths()) paths.push_back(path.c_str());
    return LlamaModelPtr(paths.size() == 1
                             ? llama_model_load_from_file(paths[0], params)
                             : llama_model_load_from_splits(paths.data(), paths.size(), params));
  }
  params.load_mode = LLAMA_LOAD_MODE_NONE;
  absl::Status read;
  absl::StatusOr<FILE*> file = slice.Open(&read);
  if (!file.ok()) return file.status();
  LlamaModelPtr model(llama_model_load_from_file_ptr(*file, params));
  fclose(*file);
  if (!read.ok()) return read;  // libllama reports only that it could not read
  return model;
}

// Rows that libllama copies out of a graph, in a buffer that it makes as large as a batch needs.
uint64_t OutputBytes(const llama_context_params& params, const llama_model* model) {
  const uint64_t rows = params.n_outputs_max == 0 ? params.n_batch : params.n_outputs_max;
  if (!params.embeddings) {
    // A row's logits, and where it is embedded its state.
    const uint64_t row =
        VocabularySize(model) + static_cast<uint32_t>(llama_model_n_embd_out(model));
    return rows * row * sizeof(float);
  }
  const uint64_t pooled = rows * static_cast<uint32_t>(llama_model_n_embd(model)) * sizeof(float);
  return std::max(pooled, kUnusedLogitsBytesMax);
}

// Bytes of the token embedding or its placeholder, whose rows libllama looks up in the machine's
// memory, for a slice on a device with its own memory. 0 without a separate head: the embedding is
// the head as well, and the device has a copy.
uint64_t EmbeddingBytes(const Slice& slice) {
  const GgufTensor* embedding = slice.header().FindTensor("token_embd.weight");
  const bool has_head = slice.header().FindTensor("output.weight") != nullptr;
  return embedding != nullptr && has_head ? embedding->bytes : 0;
}

// The kind that the model's file names, by llama.cpp's numbers; a model that ranks has its last
// row's state.
wire::Pooling PoolingOf(const GgufHeader& header, absl::string_view architecture) {
  switch (header.GetInteger(absl::StrCat(architecture, ".pooling_type")).value_or(0)) {
    case LLAMA_POOLING_TYPE_MEAN:
      return wire::POOLING_MEAN;
    case LLAMA_POOLING_TYPE_CLS:
      return wire::POOLING_CLS;
    default:
      return wire::POOLING_LAST;
  }
}

// The memory that a stage allocates from, and its limit.
class Room {
 public:
  // `weight_bytes`: of the weights that are stored there.
  Room(uint64_t weight_bytes, const StageOptions& options, ggml_backend_dev_t device)
      : weight_bytes_(weight_bytes),
        device_(device),
        name_(options.device.empty() ? "CPU" : options.device),
        limit_bytes_(options.memory_bytes_max) {}

  uint64_t FreeBytes() const {
    const uint64_t free_bytes = device_ != nullptr ? DeviceFreeBytes(device_) : AvailableBytes();
    return limit_bytes_ == 0 ? free_bytes : std::min(free_bytes, limit_bytes_);
  }

  // kResourceExhausted.
  absl::Status Check(uint64_t needed_bytes) const {
    const uint64_t free_bytes = FreeBytes();
    if (needed_bytes <= free_bytes) return absl::OkStatus();
    const bool is_limit = limit_bytes_ != 0 && free_bytes == limit_bytes_;
    return Short(needed_bytes, free_bytes,
                 absl::StrCat("the stage needs ", Mib(needed_bytes), " MiB, of which ",
                              Mib(weight_bytes_), " MiB for weights; ", Mib(free_bytes),
                              is_limit ? " MiB of the memory limit are left" : " MiB are free"));
  }

  // The reason why libllama failed to load a stage of this size, which is only in its log.
  absl::Status LoadError(const LogCapture& log, uint64_t needed_bytes) const {
    const std::string errors = log.errors();
    // Both ggml and libllama say "allocate" when there was no memory.
    if (!absl::StrContains(errors, "allocate")) {
      return absl::InvalidArgumentError(absl::StrCat("libllama cannot load it: ", errors));
    }
    // The device had reported enough memory, so its figure may be wrong.
    return Short(needed_bytes, std::min(FreeBytes(), Assumed(needed_bytes)),
                 absl::StrCat("the stage needs ", Mib(needed_bytes),
                              " MiB, which could not be allocated: ", errors));
  }

  // The reason why the warm-up failed.
  absl::Status WarmUpError(const absl::Status& why, uint64_t needed_bytes) const {
    if (!absl::IsResourceExhausted(why)) return why;
    // The memory that is free now is what the stage has left over.
    return Short(needed_bytes, Assumed(needed_bytes), why.message());
  }

 private:
  // Assumed free bytes, where the device does not report them.
  static uint64_t Assumed(uint64_t needed_bytes) { return needed_bytes / 4 * 3; }
  absl::Status Short(uint64_t needed_bytes, uint64_t free_bytes, absl::string_view words) const {
    return WithShortage(
        absl::ResourceExhaustedError(absl::StrCat("not enough memory on ", name_, ": ", words)),
        {.needed_bytes = needed_bytes, .free_bytes = free_bytes});
  }

  const uint64_t weight_bytes_;
  ggml_backend_device* const device_;
  const std::string name_;
  const uint64_t limit_bytes_;  // 0: none
};

// Checks the host's memory for experts that stay there, and for a device's token embedding.
// kResourceExhausted.
absl::Status CheckHostRoom(uint64_t needed_bytes, const StageOptions& options) {
  uint64_t free_bytes = AvailableBytes();
  if (options.host_bytes_max != 0) free_bytes = std::min(free_bytes, options.host_bytes_max);
  if (needed_bytes <= free_bytes) return absl::OkStatus();
  return WithShortage(absl::ResourceExhaustedError(absl::StrCat(
                          "not enough memory on CPU for the experts of ", options.n_cpu_moe,
                          " layers and what the device keeps beside them: ", Mib(needed_bytes),
                          " MiB are needed, ", Mib(free_bytes), " MiB are free")),
                      {.needed_bytes = needed_bytes, .free_bytes = free_bytes, .on_host = true});
}

// As CheckDerived(), with the whole model's header loaded beside the slice's.
absl::Status CheckAgainstWhole(const Slice& slice, const StageOptions& options,
                               ggml_backend_dev_t device, const Room& room,
                               const llama_model* model) {
  if (slice.is_whole()) return absl::OkStatus();
  absl::StatusOr<Slice> whole =
      Slice::Make(slice.shared_model(), {0, slice.model().n_layer()}, {.unverified = true});
  if (!whole.ok()) return whole.status();
  LogCapture log;
  LoadProgress no_progress;
  absl::StatusOr<LlamaModelPtr> whole_model =
      LoadModel(*whole, options, device, /*with_data=*/false, &no_progress);
  if (!whole_model.ok()) return whole_model.status();
  if (*whole_model == nullptr) return room.LoadError(log, slice.tensor_bytes());
  return CheckDerived(model, whole_model->get(), slice.model().header());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> Stage::Load(const Slice& slice, const StageOptions& options,
                                                   Progress progress) {
  const SteadyTime start = SteadyTime::Now();
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  absl::StatusOr<ggml_backend_dev_t> device = FindDevice(options.device);
  if (!device.ok()) return device.status();
  if (absl::Status status = CheckCacheOptions(options.cache, options.n_ctx, options.n_seq_max,
                                              slice.model().header());
      !status.ok()) {
    return status;
  }
  const uint64_t kv_cells = CellsOf(options.cache, options.n_ctx, options.n_seq_max);
  const uint64_t cells_bytes = kv_cells * kCellBytes;
  const uint64_t host_bytes = ExpertBytes(slice.header(), {0, HostLayers(slice, options, *device)});
  const bool own_memory = *device != nullptr && HasOwnMemory(*device);
  const uint64_t weight_bytes =
      slice.tensor_bytes() - host_bytes - (own_memory ? EmbeddingBytes(slice) : 0);
  const Room room(weight_bytes, options, *device);
  if (host_bytes > 0) {
    const uint64_t kept_bytes = host_bytes + (own_memory ? EmbeddingBytes(slice) : 0);
    if (absl::Status status = CheckHostRoom(kept_bytes, options); !status.ok()) return status;
  }
  // libllama allocates the cells at once, even without data.
  if (cells_bytes > room.FreeBytes()) {
    if (absl::Status status = room.Check(weight_bytes + cells_bytes); !status.ok()) return status;
  }

  // First load without data: it gives all sizes before anything is allocated, so that a shortage
  // reports the total, which planners rely on.
  uint64_t kv_bytes = 0;
  uint64_t compute_bytes = 0;
  uint64_t checkpoint_bytes = 0;
  CacheAbility ability = CacheAbilityFor(slice.model().header());
  ability.shift = ability.shift && KeysCanShift(options.cache, slice.model().header());
  const uint32_t n_checkpoints = ability.checkpoint ? options.cache.checkpoints : 0;
  {
    LogCapture log;
    LoadProgress no_progress;
    absl::StatusOr<LlamaModelPtr> model =
        LoadModel(slice, options, *device, /*with_data=*/false, &no_progress);
    if (!model.ok()) return model.status();
    if (*model == nullptr) return room.LoadError(log, weight_bytes);
    if (absl::Status status = CheckAgainstWhole(slice, options, *device, room, model->get());
        !status.ok()) {
      return status;
    }
    if (llama_model_n_embd_inp(model->get()) != llama_model_n_embd(model->get())) {
      return absl::UnimplementedError("the layers take more than one stream of activations");
    }
    llama_context_params params = ContextParams(slice, options, model->get());
    LlamaContextPtr context(llama_init_from_model(model->get(), params));
    if (context == nullptr) return room.LoadError(log, weight_bytes);
    kv_bytes = log.CacheBytes() + cells_bytes;
    if (n_checkpoints > 0) {
      const auto window = static_cast<uint32_t>(std::max(0, llama_model_n_swa(model->get())));
      checkpoint_bytes =
          n_checkpoints *
          (kCheckpointHeadBytes +
           log.ForgettingBytes({.window = window,
                                .n_seq_max = options.n_seq_max,
                                .n_caches = params.kv_unified ? 1 : options.n_seq_max}));
    }
    compute_bytes = log.ComputeBytes() + (own_memory ? 0 : OutputBytes(params, model->get()));
  }
  const uint64_t needed_bytes =
      weight_bytes + kv_bytes + compute_bytes + (*device == nullptr ? checkpoint_bytes : 0);
  if (absl::Status status = room.Check(needed_bytes); !status.ok()) return status;
  if (*device != nullptr && checkpoint_bytes > AvailableBytes()) {
    // The host's memory; a stage of fewer layers needs less.
    return WithShortage(
        absl::ResourceExhaustedError(absl::StrCat(
            "not enough memory for ", n_checkpoints, " checkpoints of ", Mib(checkpoint_bytes),
            " MiB together; ", Mib(AvailableBytes()), " MiB are free")),
        {});
  }

  if (IsMapped(slice, options, *device)) ReportLostPages(slice.model().paths().front());
  LogCapture log;
  LoadProgress load = {.progress = &progress, .total_bytes = slice.tensor_bytes()};
  absl::StatusOr<LlamaModelPtr> model =
      LoadModel(slice, options, *device, /*with_data=*/true, &load);
  if (!model.ok()) return model.status();
  if (*model == nullptr) {
    return load.is_cancelled ? absl::CancelledError("the load was stopped")
                             : room.LoadError(log, needed_bytes);
  }

  llama_context_params params = ContextParams(slice, options, model->get());

  LlamaStage::Config config;
  config.ability = ability;
  if (!slice.is_first()) {
    config.input_tensor = InputTensor(slice.model().header(), slice.layers());
  }
  config.output_tensor = OutputTensor(slice.model().header(), slice.layers());
  for (uint32_t end = slice.layers().begin + 1; end < slice.layers().end; ++end) {
    config.layer_tensors.push_back(
        OutputTensor(slice.model().header(), {slice.layers().begin, end}));
  }
  config.params = params;
  config.n_outputs_max = params.n_outputs_max;
  config.has_streams =
      !params.kv_unified && options.n_seq_max > 1 && !llama_model_is_recurrent(model->get());
  config.has_equal_graphs = IsRecurrent(model->get()) || config.has_streams;
  config.pools_embeddings = params.embeddings;
  config.n_unpooled_max = UnpooledMax(HostLayers(slice, options, *device), model->get());
  config.has_vocabulary = slice.has_vocabulary();
  config.is_async = *device != nullptr;
  if (IsMapped(slice, options, *device)) config.mapped = slice.shared_model();
  Facts& facts = config.facts;
  facts.layers = slice.layers();
  facts.is_first = slice.is_first();
  facts.is_last = slice.is_last();
  facts.n_embd = static_cast<uint32_t>(llama_model_n_embd(model->get()));
  facts.n_embd_out =
      slice.is_last() ? static_cast<uint32_t>(llama_model_n_embd_out(model->get())) : 0;
  facts.pooling = PoolingOf(slice.model().header(), slice.model().architecture());
  facts.n_vocab = slice.has_vocabulary() ? VocabularySize(model->get()) : 0;
  facts.n_ctx = options.n_ctx;
  facts.n_ctx_train = static_cast<uint32_t>(llama_model_n_ctx_train(model->get()));
  facts.n_seq_max = options.n_seq_max;
  facts.n_batch = options.n_batch;
  facts.cache = config.ability;
  facts.cache.window_tokens = static_cast<uint32_t>(std::max(0, llama_model_n_swa(model->get())));
  facts.cache.rewind = facts.cache.trim && facts.cache.window_tokens == 0;
  facts.slice_bytes = slice.tensor_bytes();
  facts.host_bytes = *device == nullptr ? 0 : log.HostWeightBytes();
  facts.device_bytes =
      own_memory ? weight_bytes : facts.slice_bytes - std::min(facts.slice_bytes, facts.host_bytes);
  facts.kv_bytes = kv_bytes;
  facts.kv_cells = kv_cells;
  facts.n_checkpoints = n_checkpoints;
  facts.checkpoint_bytes = checkpoint_bytes;
  facts.compute_bytes = compute_bytes;

  auto stage = std::make_unique<LlamaStage>(std::move(config), *std::move(model));
  if (stage->watches_tensors()) {
    params.cb_eval = LlamaStage::OnTensor;
    params.cb_eval_user_data = stage.get();
  }
  LlamaContextPtr context(llama_init_from_model(stage->model(), params));
  if (context == nullptr) {
    stage.reset();  // frees its weights before the device's free memory is read
    return room.LoadError(log, needed_bytes);
  }
  stage->mutable_facts()->n_batch = std::min(options.n_batch, llama_n_batch(context.get()));
  stage->SetContext(std::move(context));
  if (*device != nullptr) {
    const uint32_t n_rows_max = std::min(stage->facts().n_batch, options.n_ctx);
    const std::vector<uint32_t> rows = WarmUpRows(DeviceKind(*device), own_memory, n_rows_max);
    if (absl::Status status = WarmUp(rows, stage.get()); !status.ok()) {
      return room.WarmUpError(status, needed_bytes);
    }
  }
  if (log.UnmappedWeightBytes() > 0) DropMappedPages(slice.model().paths());
  ReleaseFreedMemory();
  stage->mutable_facts()->load_ms =
      static_cast<uint32_t>(absl::ToInt64Milliseconds(SteadyTime::Now() - start));
  return stage;
}

}  // namespace strata
