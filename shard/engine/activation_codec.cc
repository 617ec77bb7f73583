#include "shard/engine/activation_codec.h"

#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ggml.h"

namespace strata {
namespace {

struct Format {
  wire::ActivationType type;
  absl::string_view name;
  ggml_type ggml;
  float largest;  // representable value
};

constexpr float kF16Largest = 65504;
// The scale of a q8_0 block is an f16, a 127th of its largest value.
constexpr Format kFormats[] = {
    {wire::F32, "f32", GGML_TYPE_F32, 0},
    {wire::F16, "f16", GGML_TYPE_F16, kF16Largest},
    {wire::BF16, "bf16", GGML_TYPE_BF16, 3.3895e38f},
    {wire::Q8_0, "q8_0", GGML_TYPE_Q8_0, 127 * kF16Largest},
};

const Format* Find(wire::ActivationType type) {
  for (const Format& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

bool Holds(const Format& format, absl::Span<const float> values) {
  bool held = true;
  for (const float value : values) held &= std::abs(value) <= format.largest;  // false for NaN
  return held;
}

}  // namespace

std::string ActivationTypeName(wire::ActivationType type) {
  const Format* const format = Find(type);
  return format == nullptr ? "unknown" : std::string(format->name);
}

std::optional<wire::ActivationType> ActivationTypeOf(absl::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return format.type;
  }
  return std::nullopt;
}

size_t ActivationRowBytes(wire::ActivationType type, uint32_t n_embd) {
  const Format* const format = Find(type);
  if (format == nullptr || n_embd % static_cast<uint64_t>(ggml_blck_size(format->ggml)) != 0) {
    return 0;
  }
  return ggml_row_size(format->ggml, n_embd);
}

absl::Status CheckActivationRule(const wire::ActivationRule& rule, uint32_t n_embd) {
  const Format* const format = Find(rule.type());
  if (format == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations of the unknown type ", static_cast<int>(rule.type())));
  }
  if (ActivationRowBytes(rule.type(), n_embd) != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "activations cannot go as ", format->name, ": its blocks of ", ggml_blck_size(format->ggml),
      " do not fit this model's rows of ", n_embd, " values; f16 and bf16 do"));
}

wire::ActivationType ActivationTypeFor(const wire::ActivationRule& rule, size_t rows) {
  return rows <= rule.f32_rows_max() ? wire::F32 : rule.type();
}

std::string ActivationRuleText(const wire::ActivationRule& rule) {
  std::string name = ActivationTypeName(rule.type());
  if (rule.type() == wire::F32 || rule.f32_rows_max() == 0) return name;
  return absl::StrCat("f32 to ", rule.f32_rows_max(), rule.f32_rows_max() == 1 ? " row" : " rows",
                      ", then ", name);
}

EncodedActivations EncodeActivations(wire::ActivationType type, Payload f32) {
  const Format* const format = Find(type);
  if (type == wire::F32 || f32.empty() || !Holds(*format, f32.floats())) {
    return {.type = wire::F32, .payload = std::move(f32)};
  }
  const absl::Span<const float> values = f32.floats();
  const size_t bytes = ggml_row_size(format->ggml, static_cast<int64_t>(values.size()));
  std::shared_ptr<char[]> out = std::make_shared_for_overwrite<char[]>(bytes);  // the payload's
  ggml_get_type_traits(format->ggml)
      ->from_float_ref(values.data(), out.get(), static_cast<int64_t>(values.size()));
  const char* const data = out.get();
  return {.type = type, .payload = Payload::Share(std::move(out), data, bytes)};
}

absl::Span<const float> DecodeActivations(wire::ActivationType type, const Payload& payload,
                                          std::vector<float>* scratch) {
  if (type == wire::F32) return payload.floats();
  const ggml_type ggml = Find(type)->ggml;
  const size_t blocks = payload.size() / ggml_type_size(ggml);
  scratch->resize(blocks * static_cast<size_t>(ggml_blck_size(ggml)));
  ggml_get_type_traits(ggml)->to_float(payload.data(), scratch->data(),
                                       static_cast<int64_t>(scratch->size()));
  return *scratch;
}

}  // namespace strata
