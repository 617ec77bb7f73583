#include "shard/engine/self_test.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ggml-backend.h"
#include "shard/device/engine.h"
#include "shard/model/weight_blocks.h"
#include "shard/sampling/random.h"
#include "transport/base/version.h"

namespace strata {
namespace {

// The purpose of a block of random bits.
enum class Purpose : uint32_t { kTokens = 0, kActivations = 1, kProjections = 2 };

constexpr size_t kBlockBits = 32;  // numbers for which one block has the signs of each projection
constexpr float kMaskedLogit = 1e30f;
// A norm is at least this share of the row's length: a tiny sum of layers is rounded with the row.
constexpr double kNormShareMin = 0.01;

std::array<uint32_t, 4> RandomBlock(Purpose purpose, size_t index) {
  static_assert(kSelfTestProjections == 4, "a word of a block for each projection");
  return Philox4x32({static_cast<uint32_t>(index), 0, 0, static_cast<uint32_t>(purpose)},
                    {kSelfTestVersion, 0});
}

uint32_t RandomWord(Purpose purpose, size_t index) {
  return RandomBlock(purpose, index / 4)[index % 4];
}

std::vector<int32_t> Tokens(size_t n, uint32_t n_vocab) {
  std::vector<int32_t> tokens(n);
  for (size_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<int32_t>(RandomWord(Purpose::kTokens, i) % n_vocab);
  }
  return tokens;
}

// Of mean 0 and mean square 1. Every operation is exact or rounded once: the same on all machines.
std::vector<float> Activations(size_t n) {
  constexpr float kRange = 1.7320508f / 2147483648.0f;
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const auto word = std::bit_cast<int32_t>(RandomWord(Purpose::kActivations, i));
    values[i] = static_cast<float>(word) * kRange;
  }
  return values;
}

// A logit may be minus infinity: a token that the model never chooses.
bool AreNumbers(absl::Span<const float> values, bool logits) {
  return std::all_of(values.begin(), values.end(), [logits](float value) {
    return std::isfinite(value) || (logits && value == -std::numeric_limits<float>::infinity());
  });
}

std::string DeviceKindOf(const wire::StageSpec& spec) {
  const absl::StatusOr<ggml_backend_dev_t> device = FindDevice(spec.device());
  if (!device.ok() || *device == nullptr) return "CPU";
  const char* const kind = ggml_backend_reg_name(ggml_backend_dev_backend_reg(*device));
  return absl::StrCat(kind, spec.n_cpu_moe() > 0 ? " with experts on the CPU" : "");
}

std::string SettingOf(const wire::StageSpec& spec, size_t n_rows) {
  const auto or_default = [](const std::string& name, const char* other) {
    return name.empty() ? std::string(other) : name;
  };
  const wire::CacheSpec& cache = spec.cache();
  return absl::StrCat("k=", or_default(cache.type_k(), "f16"),
                      " v=", or_default(cache.type_v(), "f16"),
                      " flash=", or_default(cache.flash_attention(), "auto"), " rows=", n_rows);
}

}  // namespace

wire::SelfTestPoint SketchOf(absl::Span<const float> rows, absl::Span<const float> input,
                             size_t n_rows) {
  wire::SelfTestPoint point;
  WeightHasher hasher;
  hasher.Add({reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float)});
  point.set_hash(hasher.Finish());
  const size_t n = rows.size() / n_rows;
  for (size_t row = 0; row < n_rows; ++row) {
    double added_square = 0, square = 0;
    std::array<double, kSelfTestProjections> projections = {};
    std::array<uint32_t, 4> signs = {};
    for (size_t i = 0; i < n; ++i) {
      if (i % kBlockBits == 0) signs = RandomBlock(Purpose::kProjections, i / kBlockBits);
      const float value = rows[row * n + i];
      if (std::abs(value) > kMaskedLogit) continue;
      const double added = input.empty() ? value : double{value} - input[row * n + i];
      square += double{value} * value;
      added_square += added * added;
      for (size_t p = 0; p < projections.size(); ++p) {
        projections[p] += (signs[p] >> (i % kBlockBits) & 1) != 0 ? added : -added;
      }
    }
    for (const double projection : projections) {
      point.add_sketch(static_cast<float>(projection));
    }
    point.add_norm(
        static_cast<float>(std::max(std::sqrt(added_square), kNormShareMin * std::sqrt(square))));
  }
  return point;
}

wire::SelfTest RunSelfTest(const wire::StageSpec& spec, Stage* stage) {
  const Stage::Facts& facts = stage->facts();
  const size_t n = std::min({kSelfTestRowsMax, facts.n_batch, facts.n_ctx});
  wire::SelfTest test;
  test.set_version(kSelfTestVersion);
  test.set_model_id(spec.model_id());
  *test.mutable_layers() = spec.layers();
  test.set_setting(SettingOf(spec, n));
  test.set_device_kind(DeviceKindOf(spec));
  test.set_llama(LocalVersions().llama());
  test.set_ggml(LocalVersions().ggml());

  const std::vector<int32_t> slots(n, 0);
  std::vector<int32_t> positions(n), tokens;
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<float> input = Activations(n * facts.n_embd);
  std::vector<uint32_t> output_rows;
  Stage::Batch batch = {.positions = positions, .slots = slots};
  if (facts.is_first) {
    tokens = Tokens(n, std::max(1u, facts.n_vocab));
    batch.tokens = tokens;
  } else {
    batch.activations = input;
  }
  if (facts.is_last) {
    output_rows.resize(n);
    std::iota(output_rows.begin(), output_rows.end(), 0);
    batch.output_rows = output_rows;
  }
  uint32_t begin = facts.layers.begin;
  const auto add = [&](uint32_t end, absl::Span<const float> rows, bool logits) {
    if (test.fault().empty() && !AreNumbers(rows, logits)) {
      test.set_fault(absl::StrCat(logits ? "the head after " : "", "layer ", end - 1,
                                  " gives values that are not numbers"));
    }
    const bool of_tokens = facts.is_first && begin == facts.layers.begin;
    wire::SelfTestPoint& point = *test.add_points();
    point = SketchOf(rows, logits || of_tokens ? absl::Span<const float>() : input, n);
    point.mutable_layers()->set_begin(std::exchange(begin, end));
    point.mutable_layers()->set_end(end);
    point.set_logits(logits);
  };
  const auto output = stage->DecodeApart(batch, [&](uint32_t end, absl::Span<float> rows) {
    add(end, rows, /*logits=*/false);
    std::copy(input.begin(), input.end(), rows.begin());
  });
  if (output.ok()) {
    add(facts.layers.end, *output, facts.is_last);
    return test;
  }
  LOG(WARNING) << "stage " << spec.stage()
               << " is loaded without a self-test, since it cannot compute the test's input: "
               << output.status().message();
  test.clear_points();
  test.clear_fault();
  test.set_why_not_run(std::string(output.status().message()));
  return test;
}

}  // namespace strata
