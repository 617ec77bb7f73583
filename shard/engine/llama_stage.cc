#include "shard/engine/llama_stage.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "shard/device/engine.h"
#include "shard/device/out_of_memory.h"
#include "shard/engine/row_groups.h"

namespace strata {
namespace {

// Positions per row of activations: multi-axis rotary embeddings need four (time, y, x, and a
// zero); for tokens libllama makes them itself.
int PositionsPerRow(const llama_model* model) {
  const llama_rope_type type = llama_model_rope_type(model);
  return type == LLAMA_ROPE_TYPE_MROPE || type == LLAMA_ROPE_TYPE_IMROPE ? 4 : 1;
}

// Each slot of the batch once, in rising order.
std::vector<int32_t> SlotsOf(const Stage::Batch& batch) {
  std::vector<int32_t> slots(batch.slots.begin(), batch.slots.end());
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

absl::Status CheckLength(absl::string_view field, size_t length, size_t expected) {
  if (length == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", length, " entries; it must have ", expected));
}

}  // namespace

LlamaStage::LlamaStage(Config config, LlamaModelPtr model)
    : config_(std::move(config)),
      boundary_(config_.output_tensor),
      n_pos_per_row_(PositionsPerRow(model.get())),
      model_(std::move(model)),
      next_(config_.facts.n_seq_max, 0),
      versions_(config_.facts.n_seq_max, 0),
      streams_(config_.facts.n_seq_max),
      checkpoints_(config_.facts.n_checkpoints),
      slot_blocks_(config_.facts.n_seq_max) {}

const llama_vocab* LlamaStage::vocab() const {
  return config_.has_vocabulary ? llama_model_get_vocab(model_.get()) : nullptr;
}

bool LlamaStage::OnTensor(ggml_tensor* tensor, bool ask, void* user_data) {
  auto* stage = static_cast<LlamaStage*>(user_data);
  const bool is_boundary = !stage->config_.facts.is_last && stage->boundary_ == tensor->name;
  const bool is_input =
      !stage->config_.input_tensor.empty() && stage->config_.input_tensor == tensor->name;
  const bool is_watched = stage->watch_ != nullptr && stage->IsWatched(tensor);
  if (ask) return is_boundary || is_input || is_watched;
  if (is_input) return stage->WriteInput(tensor);
  if (is_watched) stage->CallWatch(tensor);
  if (!is_boundary) return true;
  stage->TakeBoundary(tensor);
  return false;  // ends the graph here: norm and head are never computed
}

size_t LlamaStage::RowsOf(const ggml_tensor* tensor, size_t rows_left) {
  const size_t n_embd = config_.facts.n_embd;
  const size_t n = static_cast<size_t>(ggml_nelements(tensor));
  if (tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor) && n % n_embd == 0 &&
      n / n_embd <= rows_left) {
    return n / n_embd;
  }
  boundary_error_ =
      absl::StrCat("tensor ", tensor->name, " is ", ggml_type_name(tensor->type), " [",
                   tensor->ne[0], ", ", tensor->ne[1], ", ", tensor->ne[2], "] where at most ",
                   rows_left, " rows of ", n_embd, " f32 were expected");
  return 0;
}

bool LlamaStage::WriteInput(ggml_tensor* tensor) {
  const size_t n = RowsOf(tensor, rows_.size() - rows_in_);
  if (n == 0) return false;
  const size_t n_embd = config_.facts.n_embd;
  ggml_backend_tensor_set(tensor, in_.data() + rows_in_ * n_embd, 0, n * n_embd * sizeof(float));
  rows_in_ += n;
  return true;
}

void LlamaStage::TakeBoundary(const ggml_tensor* tensor) {
  const size_t n = RowsOf(tensor, rows_.size() - rows_out_);
  const absl::Span<const uint32_t> rows = rows_.subspan(rows_out_, n);
  rows_out_ += n;
  const size_t n_embd = config_.facts.n_embd;
  // Runs of consecutive rows are copied at once; nearly always that is the whole batch.
  for (size_t i = 0; i < n;) {
    size_t end = i + 1;
    while (end < n && rows[end] == rows[end - 1] + 1) ++end;
    ggml_backend_tensor_get(tensor, out_.get() + rows[i] * n_embd, i * n_embd * sizeof(float),
                            (end - i) * n_embd * sizeof(float));
    i = end;
  }
}

bool LlamaStage::IsWatched(const ggml_tensor* tensor) const {
  return boundary_ != tensor->name && tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor) &&
         absl::c_linear_search(config_.layer_tensors, tensor->name);
}

void LlamaStage::CallWatch(ggml_tensor* tensor) {
  const size_t n = RowsOf(tensor, rows_.size());
  if (n != rows_.size()) return;
  std::vector<float> rows(n * config_.facts.n_embd);
  ggml_backend_tensor_get(tensor, rows.data(), 0, rows.size() * sizeof(float));
  const auto layer = absl::c_find(config_.layer_tensors, tensor->name);
  const auto i = static_cast<uint32_t>(layer - config_.layer_tensors.begin());
  (*watch_)(config_.facts.layers.begin + i + 1, absl::MakeSpan(rows));
  ggml_backend_tensor_set(tensor, rows.data(), 0, rows.size() * sizeof(float));
}

absl::StatusOr<std::vector<float>> LlamaStage::DecodeApart(const Batch& batch,
                                                           const LayerWatch& watch) {
  llama_context_params params = config_.params;
  params.n_seq_max = 1;
  params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max =
      static_cast<uint32_t>(std::max<size_t>(1, batch.positions.size()));
  params.cb_eval = OnTensor;
  params.cb_eval_user_data = this;
  UndoLookahead();
  LogCapture log;
  LlamaContextPtr context(llama_init_from_model(model_.get(), params));
  if (context == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a second context: ", log.errors()));
  }
  std::vector<int32_t> next(next_.size(), 0);
  SlotStreams streams(config_.facts.n_seq_max);
  context.swap(context_);
  next.swap(next_);
  std::swap(streams, streams_);
  const PendingEdits had_edits = std::exchange(pending_, {});
  const bool was_embedded = std::exchange(is_embedded_, false);
  watch_ = &watch;
  std::vector<float> output;
  absl::Status status = Decode(batch);
  if (status.ok() && config_.facts.is_last) {
    for (size_t i = 0; i < batch.output_rows.size(); ++i) {
      const absl::Span<const float> logits = Logits(i);
      output.insert(output.end(), logits.begin(), logits.end());
    }
  } else if (status.ok()) {
    const Payload activations = TakeActivations();
    output.assign(activations.floats().begin(), activations.floats().end());
  }
  watch_ = nullptr;
  output_rows_.clear();
  kept_logits_.clear();
  graph_rows_.clear();
  pending_ = had_edits;
  is_embedded_ = was_embedded;
  std::swap(streams, streams_);
  next.swap(next_);
  context.swap(context_);
  if (!status.ok()) return status;
  return output;
}

absl::Status LlamaStage::Check(const Batch& batch) const {
  const Facts& facts = config_.facts;
  const size_t n = batch.positions.size();
  if (n == 0) return absl::InvalidArgumentError("the batch is empty");
  if (n > facts.n_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", n, " rows; it may have ", facts.n_batch));
  }
  absl::Status lengths = CheckLength("slots", batch.slots.size(), n);
  lengths.Update(CheckLength("tokens", batch.tokens.size(), facts.is_first ? n : 0));
  lengths.Update(
      CheckLength("activations", batch.activations.size(), facts.is_first ? 0 : n * facts.n_embd));
  if (!lengths.ok()) return lengths;

  for (int32_t token : batch.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= facts.n_vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, "; the vocabulary has ", facts.n_vocab));
    }
  }
  std::vector<int32_t> next = next_;
  for (size_t i = 0; i < n; ++i) {
    const int32_t slot = batch.slots[i];
    if (slot < 0 || static_cast<uint32_t>(slot) >= facts.n_seq_max) {
      return absl::InvalidArgumentError(absl::StrCat("slot ", slot, " of ", facts.n_seq_max));
    }
    if (batch.positions[i] != next[slot]) {
      return absl::InvalidArgumentError(absl::StrCat("row ", i, " is position ", batch.positions[i],
                                                     " of slot ", slot, ", where ", next[slot],
                                                     " follows"));
    }
    if (static_cast<uint32_t>(batch.positions[i]) >= facts.n_ctx) {
      return absl::ResourceExhaustedError(
          absl::StrCat("slot ", slot, " has room for ", facts.n_ctx, " positions"));
    }
    ++next[slot];
  }

  if (!facts.is_last) {
    return CheckLength(
        "output_rows",
        batch.output_rows.size() + batch.scored_rows.size() + batch.embedded_rows.size(), 0);
  }
  if (batch.output_rows.size() > config_.n_outputs_max) {
    return absl::InvalidArgumentError(absl::StrCat("logits of ", batch.output_rows.size(),
                                                   " rows are requested; there is room for ",
                                                   config_.n_outputs_max));
  }
  for (const absl::Span<const uint32_t> rows :
       {batch.output_rows, batch.scored_rows, batch.embedded_rows}) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] >= n || (i > 0 && rows[i] <= rows[i - 1])) {
        return absl::InvalidArgumentError("output rows must rise and lie in the batch");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status LlamaStage::Decode(const Batch& batch) {
  out_.reset();
  out_rows_ = 0;
  output_rows_.clear();
  kept_logits_.clear();
  used_lookahead_ = false;
  if (absl::Status status = Check(batch); !status.ok()) return status;
  if (absl::Status status = CheckMapped(); !status.ok()) return status;

  const size_t n = batch.positions.size();
  used_lookahead_ = FinishLookahead(batch);
  if (!used_lookahead_) {
    if (absl::Status status = RunAll(batch); !status.ok()) return RollBack(batch, status);
  }
  // Wait for the GPU: its time belongs to the step, even if the logits are not read.
  absl::Status done = Synchronize();
  done.Update(CheckMapped());  // a truncated file ends in a page of zeros
  if (!done.ok()) return RollBack(batch, done);
  pending_ = {};
  for (int32_t slot : batch.slots) ++next_[slot];
  out_rows_ = config_.facts.is_last ? 0 : n;
  output_rows_.assign(batch.output_rows.begin(), batch.output_rows.end());
  return absl::OkStatus();
}

std::vector<LlamaStage::Group> LlamaStage::PartsOf(const Batch& batch) const {
  // Of each row: rises within a slot; even where it is not embedded, else odd.
  std::vector<uint32_t> phases(batch.slots.size());
  std::vector<uint32_t> slot_phases(config_.facts.n_seq_max, 0);
  uint32_t n_phases = 1;
  for (uint32_t row = 0; row < phases.size(); ++row) {
    uint32_t& phase = slot_phases[batch.slots[row]];
    phase += (phase % 2 == 1) != absl::c_binary_search(batch.embedded_rows, row);
    phases[row] = phase;
    n_phases = std::max(n_phases, phase + 1);
  }
  std::vector<Group> parts;
  for (uint32_t phase = 0; phase < n_phases; ++phase) {
    const bool is_embedded = phase % 2 == 1;
    bool begins = true;
    size_t outputs = 0;  // of the last part
    for (uint32_t row = 0; row < phases.size(); ++row) {
      if (phases[row] != phase) continue;
      const bool is_output = is_embedded || absl::c_binary_search(batch.output_rows, row) ||
                             absl::c_binary_search(batch.scored_rows, row);
      if (std::exchange(begins, false) || (is_output && outputs == config_.n_outputs_max)) {
        parts.push_back({.is_embedded = is_embedded});
        outputs = 0;
      }
      outputs += is_output;
      parts.back().rows.push_back(row);
    }
  }
  return parts;
}

std::vector<LlamaStage::Group> LlamaStage::GroupsOf(const Batch& batch) const {
  if (!config_.has_equal_graphs) return PartsOf(batch);
  std::vector<Group> groups;
  for (const Group& part : PartsOf(batch)) {
    std::vector<int32_t> sequences;
    for (const uint32_t row : part.rows) sequences.push_back(Sequence(batch.slots[row]));
    for (std::vector<uint32_t>& rows : EqualGroups(sequences)) {
      for (uint32_t& row : rows) row = part.rows[row];
      groups.push_back({.rows = std::move(rows), .is_embedded = part.is_embedded});
    }
  }
  return groups;
}

absl::Status LlamaStage::RunAll(const Batch& batch) {
  const size_t n = batch.positions.size();
  if (!config_.facts.is_last) {
    out_ = std::make_shared_for_overwrite<float[]>(n * config_.facts.n_embd);
  }
  if (absl::Status status = GatherStreams(batch); !status.ok()) return status;
  const std::vector<Group> groups = GroupsOf(batch);
  for (const Group& group : groups) {
    if (absl::Status status = Run(batch, group); !status.ok()) return status;
    // Later graphs overwrite the logits of earlier ones.
    if (groups.size() > 1 && config_.facts.is_last) KeepLogits(batch, group.rows);
    if (absl::Status status = Show(batch, group); !status.ok()) return status;
  }
  graph_rows_.clear();
  if (groups.size() == 1 && !absl::c_is_sorted(groups[0].rows)) {
    graph_rows_.resize(n);
    for (uint32_t i = 0; i < n; ++i) graph_rows_[groups[0].rows[i]] = i;
  }
  return absl::OkStatus();
}

absl::Status LlamaStage::GatherStreams(const Batch& batch) {
  // Another processor's memory is read and written that many times faster than moved to the host.
  constexpr uint64_t kDeviceFactor = 16;
  if (!config_.has_streams || pending_.any()) return absl::OkStatus();
  const std::vector<int32_t> slots = SlotsOf(batch);
  const uint32_t runs = streams_.RunsOf(slots);
  if (runs <= 1) return absl::OkStatus();
  const Facts& facts = config_.facts;
  std::vector<uint64_t> bytes(facts.n_seq_max);
  for (size_t slot = 0; slot < bytes.size(); ++slot) {
    const uint64_t share = facts.kv_bytes / facts.n_seq_max;
    bytes[slot] = KeepsEveryPosition() ? share * static_cast<uint64_t>(next_[slot]) / facts.n_ctx
                  : next_[slot] > 0    ? share
                                       : 0;
  }
  const SlotStreams::Plan plan = streams_.Gather(slots, bytes);
  // All bytes are read and written twice.
  const uint64_t cost = 4 * plan.bytes * (config_.is_async ? kDeviceFactor : 1);
  excess_bytes_ += (runs - 1) * facts.slice_bytes;
  if (cost > excess_bytes_) return absl::OkStatus();
  excess_bytes_ = 0;
  absl::Status status;
  for (const SlotStreams::Exchange& exchange : plan.exchanges) {
    status.Update(ExchangeStreams(exchange));
  }
  return status;
}

absl::Status LlamaStage::Synchronize() {
  try {
    llama_synchronize(context_.get());
  } catch (const std::exception& thrown) {
    return FromLlamaException(thrown);
  }
  return absl::OkStatus();
}

bool LlamaStage::BeginLookahead(const Batch& batch) {
  UndoLookahead();
  const Facts& facts = config_.facts;
  if (!config_.is_async || !facts.is_first || !facts.is_last || !KeepsEveryPosition() ||
      pending_.any() || !Check(batch).ok()) {
    return false;
  }
  if (GroupsOf(batch).size() > 1) return false;  // their logits must be read between them
  lookahead_.tokens.assign(batch.tokens.begin(), batch.tokens.end());
  lookahead_.positions.assign(batch.positions.begin(), batch.positions.end());
  lookahead_.slots.assign(batch.slots.begin(), batch.slots.end());
  lookahead_.output_rows.assign(batch.output_rows.begin(), batch.output_rows.end());
  if (RunAll(batch).ok()) return true;
  UndoLookahead();
  return false;
}

bool LlamaStage::FinishLookahead(const Batch& batch) {
  if (lookahead_.tokens.empty()) return false;
  if (batch.tokens == lookahead_.tokens && batch.positions == lookahead_.positions &&
      batch.slots == lookahead_.slots && batch.output_rows == lookahead_.output_rows &&
      batch.scored_rows.empty() && batch.embedded_rows.empty()) {
    lookahead_ = {};
    return true;
  }
  UndoLookahead();
  return false;
}

void LlamaStage::UndoLookahead() {
  if (lookahead_.tokens.empty()) return;
  Synchronize().IgnoreError();  // its result is discarded
  for (const int32_t slot : lookahead_.slots) {
    llama_memory_seq_rm(memory(), Sequence(slot), next_[slot], -1);
  }
  lookahead_ = {};
}

absl::Span<const float> LlamaStage::Incoming(const Batch& batch, absl::Span<const uint32_t> rows) {
  const size_t n_embd = config_.facts.n_embd;
  const bool is_run =
      rows.back() - rows.front() + 1 == rows.size() && std::is_sorted(rows.begin(), rows.end());
  if (is_run) return batch.activations.subspan(rows.front() * n_embd, rows.size() * n_embd);
  scratch_.resize(rows.size() * n_embd);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(batch.activations.data() + rows[i] * n_embd, n_embd, scratch_.data() + i * n_embd);
  }
  return scratch_;
}

void LlamaStage::SetEmbedded(bool is_embedded) {
  if (std::exchange(is_embedded_, is_embedded) == is_embedded) return;
  llama_set_embeddings(context_.get(), is_embedded);
  // The other kind of graph has equally many nodes and tensors in another order, which libllama
  // does not notice: it would write to the wrong ones. It reserves room for its graphs anew where a
  // control vector is cleared, and there is none.
  llama_set_adapter_cvec(context_.get(), nullptr, 0, static_cast<int32_t>(config_.facts.n_embd), 0,
                         0);
}

absl::Status LlamaStage::Run(const Batch& batch, const Group& group) {
  const std::vector<uint32_t>& rows = group.rows;
  const size_t n = rows.size();
  const bool writes_input = !config_.input_tensor.empty();
  const bool takes_tokens = config_.facts.is_first || writes_input;
  const int n_pos = takes_tokens ? 1 : n_pos_per_row_;
  token_.assign(takes_tokens ? n : 0, 0);
  position_.assign(n * n_pos, 0);
  n_slot_.assign(n, 1);
  slot_.resize(n);
  slot_pointer_.resize(n);
  // Every row must reach the stage's end; libllama drops rows that are no outputs in its last
  // layer.
  is_output_.assign(n, config_.facts.is_last && !group.is_embedded ? 0 : 1);
  for (size_t i = 0; i < n; ++i) {
    for (const absl::Span<const uint32_t> outputs : {batch.output_rows, batch.scored_rows}) {
      if (absl::c_binary_search(outputs, rows[i])) is_output_[i] = 1;
    }
    if (config_.facts.is_first) token_[i] = batch.tokens[rows[i]];
    for (int axis = 0; axis < std::min(n_pos, 3); ++axis) {
      position_[axis * n + i] = batch.positions[rows[i]];
    }
    slot_[i] = Sequence(batch.slots[rows[i]]);
    slot_pointer_[i] = &slot_[i];
  }
  llama_batch llama = {};
  llama.n_tokens = static_cast<int32_t>(n);
  if (!config_.facts.is_first) in_ = Incoming(batch, rows);
  if (takes_tokens) {
    llama.token = token_.data();
  } else {
    llama.embd = const_cast<float*>(in_.data());  // libllama only reads it
  }
  llama.pos = position_.data();
  llama.n_seq_id = n_slot_.data();
  llama.seq_id = slot_pointer_.data();
  llama.logits = is_output_.data();

  rows_ = rows;
  rows_in_ = 0;
  rows_out_ = 0;
  boundary_error_.clear();
  if (config_.pools_embeddings) {
    llama_set_embeddings(context_.get(), n > config_.n_unpooled_max);
  }
  if (config_.facts.is_last) SetEmbedded(group.is_embedded);
  LogCapture log;
  int32_t result = 0;
  try {
    result = llama_decode(context_.get(), llama);
  } catch (const std::exception& thrown) {
    return FromLlamaException(thrown);
  }
  if (!boundary_error_.empty()) return absl::InternalError(boundary_error_);
  switch (result) {
    case 0:
      break;
    case 1:
      return absl::ResourceExhaustedError("no room in the KV cache for the batch");
    case -2:
      return absl::ResourceExhaustedError("no memory to compute the batch");
    default:
      return absl::InternalError(
          absl::StrCat("llama_decode failed with ", result, ": ", log.errors()));
  }
  if (writes_input && rows_in_ != n) {
    return absl::InternalError(
        absl::StrCat("the graph has no tensor ", config_.input_tensor, " for every row"));
  }
  if (!config_.facts.is_last && rows_out_ != n) {
    return absl::InternalError(
        absl::StrCat("the graph has no tensor ", boundary_, " for every row"));
  }
  return absl::OkStatus();
}

Payload LlamaStage::TakeActivations() {
  const size_t bytes = out_rows_ * config_.facts.n_embd * sizeof(float);
  out_rows_ = 0;
  std::shared_ptr<float[]> out = std::move(out_);
  const float* data = out.get();
  return bytes == 0 ? Payload() : Payload::Share(std::move(out), data, bytes);
}

absl::Span<const float> LlamaStage::Logits(size_t i) {
  if (i >= output_rows_.size()) return {};
  const size_t n_vocab = config_.facts.n_vocab;
  if (!kept_logits_.empty()) {
    return absl::MakeConstSpan(kept_logits_).subspan(i * n_vocab, n_vocab);
  }
  const uint32_t row = graph_rows_.empty() ? output_rows_[i] : graph_rows_[output_rows_[i]];
  const float* logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(row));
  if (logits == nullptr) return {};
  return absl::MakeConstSpan(logits, n_vocab);
}

void LlamaStage::KeepLogits(const Batch& batch, absl::Span<const uint32_t> rows) {
  const size_t n_vocab = config_.facts.n_vocab;
  kept_logits_.resize(batch.output_rows.size() * n_vocab);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto output = absl::c_lower_bound(batch.output_rows, rows[i]);
    if (output == batch.output_rows.end() || *output != rows[i]) continue;
    const float* logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(i));
    if (logits == nullptr) continue;
    std::copy_n(logits, n_vocab,
                kept_logits_.data() + (output - batch.output_rows.begin()) * n_vocab);
  }
}

absl::Status LlamaStage::Show(const Batch& batch, const Group& group) {
  if (!group.is_embedded && batch.scored_rows.empty()) return absl::OkStatus();
  const size_t n = group.is_embedded ? config_.facts.n_embd_out : config_.facts.n_vocab;
  for (size_t i = 0; i < group.rows.size(); ++i) {
    const uint32_t row = group.rows[i];
    if (!group.is_embedded && !absl::c_binary_search(batch.scored_rows, row)) continue;
    const auto at = static_cast<int32_t>(i);
    const float* output = group.is_embedded ? llama_get_embeddings_ith(context_.get(), at)
                                            : llama_get_logits_ith(context_.get(), at);
    if (output == nullptr) return absl::InternalError("libllama has no output of a row");
    batch.observe(row, {output, n});
  }
  return absl::OkStatus();
}

absl::Status LlamaStage::RollBack(const Batch& batch, absl::Status why) {
  std::string lost;
  for (const int32_t slot : SlotsOf(batch)) {
    const bool is_untouched = llama_memory_seq_pos_max(memory(), Sequence(slot)) < next_[slot];
    if (is_untouched || (HasWindowBefore(slot, next_[slot]) && TrimTo(slot, next_[slot]))) continue;
    absl::StrAppend(&lost, lost.empty() ? "" : ", ", slot);
    Drop(slot);
  }
  out_.reset();
  if (lost.empty()) return why;
  return absl::DataLossError(absl::StrCat(why.message(), "; dropped with it: slots ", lost));
}

}  // namespace strata
