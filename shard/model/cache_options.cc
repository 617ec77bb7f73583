#include "shard/model/cache_options.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ggml.h"
#include "llama.h"
#include "shard/model/architecture.h"

namespace strata {
namespace {

constexpr std::pair<absl::string_view, ggml_type> kTypes[] = {
    {"f16", GGML_TYPE_F16},   {"f32", GGML_TYPE_F32},   {"bf16", GGML_TYPE_BF16},
    {"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0},
};
constexpr std::pair<absl::string_view, llama_flash_attn_type> kFlashTypes[] = {
    {"auto", LLAMA_FLASH_ATTN_TYPE_AUTO},
    {"on", LLAMA_FLASH_ATTN_TYPE_ENABLED},
    {"off", LLAMA_FLASH_ATTN_TYPE_DISABLED},
};

// Widths of keys and values of one head, by layer, as the header states them.
class Heads {
 public:
  explicit Heads(const GgufHeader& header)
      : header_(header),
        prefix_(absl::StrCat(header.GetString("general.architecture").value_or(""), ".")),
        n_layer_(std::min(Get("block_count", 0, 0), kModelLayersMax)) {}

  bool SameKeys() const {
    std::set<uint64_t> widths;
    for (uint64_t layer = 0; layer < n_layer_; ++layer) {
      widths.insert(Get("attention.key_length", layer, 0));
      widths.insert(Get("attention.key_length_swa", layer, *widths.begin()));
    }
    return widths.size() <= 1;
  }

  // 0: every layer's heads fill whole blocks; else the width that does not.
  uint64_t NoMultiple(absl::string_view key, uint64_t block) const {
    for (uint64_t layer = 0; layer < n_layer_; ++layer) {
      const uint64_t n_head = Get("attention.head_count", layer, 0);
      if (n_head == 0 || Get("attention.head_count_kv", layer, n_head) == 0) continue;
      const uint64_t width = Get(key, layer, Get("embedding_length", layer, 0) / n_head);
      if (width % block != 0) return width;
      const uint64_t windowed = Get(absl::StrCat(key, "_swa"), layer, 0);
      if (windowed % block != 0) return windowed;
    }
    return 0;
  }

 private:
  uint64_t Get(absl::string_view key, uint64_t layer, uint64_t otherwise) const {
    return header_.GetIntegerOfLayer(absl::StrCat(prefix_, key), static_cast<uint32_t>(layer))
        .value_or(otherwise);
  }

  const GgufHeader& header_;
  const std::string prefix_;
  const uint64_t n_layer_;
};

absl::Status CheckHeads(const GgufHeader& header, absl::string_view what, absl::string_view key,
                        uint32_t type) {
  const auto ggml = static_cast<ggml_type>(type);
  const uint64_t width = Heads(header).NoMultiple(key, static_cast<uint64_t>(ggml_blck_size(ggml)));
  if (width == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " of type ", ggml_type_name(ggml), " are kept in blocks of ", ggml_blck_size(ggml),
      "; a head of this model has ", width, ". f16 works with every model"));
}

}  // namespace

CacheOptions CacheOptionsOf(const wire::CacheSpec& spec) {
  return {.type_k = spec.type_k(),
          .type_v = spec.type_v(),
          .flash_attention = spec.flash_attention(),
          .kv_cells = spec.kv_cells(),
          .checkpoints = spec.checkpoints(),
          .exact = spec.exact()};
}

absl::StatusOr<uint32_t> CacheType(absl::string_view field, absl::string_view name) {
  if (name.empty()) return GGML_TYPE_F16;
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is \"", name, "\"; it may be f16, f32, bf16, q8_0 or q4_0"));
}

absl::StatusOr<int> FlashAttentionType(absl::string_view name) {
  if (name.empty()) return LLAMA_FLASH_ATTN_TYPE_AUTO;
  for (const auto& [known, type] : kFlashTypes) {
    if (known == name) return type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("flash_attention is \"", name, "\"; it may be auto, on or off"));
}

bool KeysCanShift(const CacheOptions& options, const GgufHeader& header) {
  constexpr uint64_t kRotated = 64;
  const auto type = CacheType("type_k", options.type_k);
  if (!type.ok() || !ggml_is_quantized(static_cast<ggml_type>(*type))) return true;
  // Without them, people may say, for comparison.
  if (std::getenv("LLAMA_ATTN_ROT_DISABLE") != nullptr) return false;
  const Heads heads(header);
  return heads.NoMultiple("attention.key_length", kRotated) == 0 && heads.SameKeys();
}

bool SharesCache(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max) {
  return CellsOf(options, n_ctx, n_seq_max) < uint64_t{n_ctx} * n_seq_max;
}

uint64_t CellsOf(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max) {
  const uint64_t all = uint64_t{n_ctx} * n_seq_max;
  return options.kv_cells == 0 ? all : std::min<uint64_t>(options.kv_cells, all);
}

absl::Status CheckCacheOptions(const CacheOptions& options, uint32_t n_ctx, uint32_t n_seq_max,
                               const GgufHeader& header) {
  const auto type_k = CacheType("type_k", options.type_k);
  if (!type_k.ok()) return type_k.status();
  const auto type_v = CacheType("type_v", options.type_v);
  if (!type_v.ok()) return type_v.status();
  const auto flash = FlashAttentionType(options.flash_attention);
  if (!flash.ok()) return flash.status();
  if (auto s = CheckHeads(header, "keys", "attention.key_length", *type_k); !s.ok()) return s;
  if (auto s = CheckHeads(header, "values", "attention.value_length", *type_v); !s.ok()) return s;
  if (ggml_is_quantized(static_cast<ggml_type>(*type_v))) {
    if (*flash == LLAMA_FLASH_ATTN_TYPE_DISABLED) {
      return absl::InvalidArgumentError(
          absl::StrCat("values of type ", options.type_v,
                       " need flash attention, which is off; keys do not need it"));
    }
    if (header.GetString("general.architecture").value_or("") == "grok") {
      return absl::InvalidArgumentError(
          absl::StrCat("values of type ", options.type_v,
                       " need flash attention, which this architecture does not support"));
    }
  }
  if (options.checkpoints > kCheckpointsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.checkpoints, " checkpoints; there may be ", kCheckpointsMax));
  }
  if (options.kv_cells == 0) return absl::OkStatus();
  if (options.kv_cells < n_ctx) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_cells is ", options.kv_cells, "; one sequence may take ", n_ctx,
                     " positions: use a smaller context, or more cells"));
  }
  // libllama chooses between two sets of rope factors by the size of a sequence's cache.
  const bool has_two_factors = header.FindTensor("rope_factors_long.weight") != nullptr;
  if ((options.exact || has_two_factors) && SharesCache(options, n_ctx, n_seq_max)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_cells: ",
                     options.exact ? "an exact model needs"
                                   : "this model has two sets of rope factors, and needs",
                     " a separate cache for each sequence, so sequences cannot share cells"));
  }
  return absl::OkStatus();
}

}  // namespace strata
