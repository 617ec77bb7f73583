#include "shard/model/gguf.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "ggml.h"
#include "shard/model/gguf_bytes.h"

namespace strata {
namespace {

constexpr uint32_t kDefaultAlignment = 32;

void AppendString(std::string* out, absl::string_view value) {
  AppendRaw<uint64_t>(out, value.size());
  out->append(value);
}

template <typename T>
std::optional<uint64_t> NonNegative(const char* bytes) {
  const T value = LoadRaw<T>(bytes);
  if constexpr (std::is_signed_v<T>) {
    if (value < 0) return std::nullopt;
  }
  return static_cast<uint64_t>(value);
}

// Element `index` of a value whose bytes are as ReadGgufHeader left them.
std::optional<uint64_t> IntegerAt(const GgufValue& value, uint64_t index) {
  const size_t size = GgufScalarBytes(value.element_type);
  if (size == 0 || index >= value.bytes.size() / size) return std::nullopt;
  const char* bytes = value.bytes.data() + index * size;
  switch (value.element_type) {
    case GgufType::kU8:
      return NonNegative<uint8_t>(bytes);
    case GgufType::kI8:
      return NonNegative<int8_t>(bytes);
    case GgufType::kU16:
      return NonNegative<uint16_t>(bytes);
    case GgufType::kI16:
      return NonNegative<int16_t>(bytes);
    case GgufType::kU32:
      return NonNegative<uint32_t>(bytes);
    case GgufType::kI32:
      return NonNegative<int32_t>(bytes);
    case GgufType::kU64:
      return NonNegative<uint64_t>(bytes);
    case GgufType::kI64:
      return NonNegative<int64_t>(bytes);
    default:
      return std::nullopt;
  }
}

template <typename T>
GgufValue Scalar(GgufType type, T value) {
  GgufValue result;
  result.type = type;
  result.element_type = type;
  AppendRaw(&result.bytes, value);
  return result;
}

}  // namespace

size_t GgufScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

uint64_t GgufPad(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

std::optional<uint32_t> LayerOfTensor(absl::string_view name, absl::string_view* rest) {
  if (!absl::ConsumePrefix(&name, "blk.")) return std::nullopt;
  const size_t dot = name.find('.');
  uint32_t layer = 0;
  if (dot == name.npos || !absl::SimpleAtoi(name.substr(0, dot), &layer)) return std::nullopt;
  if (rest != nullptr) *rest = name.substr(dot + 1);
  return layer;
}

GgufValue GgufValue::U32(uint32_t value) { return Scalar(GgufType::kU32, value); }
GgufValue GgufValue::F32(float value) { return Scalar(GgufType::kF32, value); }
GgufValue GgufValue::Bool(bool value) { return Scalar<uint8_t>(GgufType::kBool, value ? 1 : 0); }

GgufValue GgufValue::String(absl::string_view value) {
  GgufValue result;
  result.type = GgufType::kString;
  result.element_type = GgufType::kString;
  AppendString(&result.bytes, value);
  return result;
}

GgufValue GgufValue::StringArray(absl::Span<const std::string> values) {
  GgufValue result;
  result.type = GgufType::kArray;
  result.element_type = GgufType::kString;
  result.count = values.size();
  for (const std::string& value : values) AppendString(&result.bytes, value);
  return result;
}

const GgufValue* GgufHeader::Find(absl::string_view key) const {
  for (const auto& entry : metadata) {
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

const GgufTensor* GgufHeader::FindTensor(absl::string_view name) const {
  for (const GgufTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::optional<uint64_t> GgufHeader::GetInteger(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->type == GgufType::kArray) return std::nullopt;
  return IntegerAt(*value, 0);
}

std::optional<double> GgufHeader::GetNumber(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  switch (value->type) {
    case GgufType::kF32:
      return LoadRaw<float>(value->bytes.data());
    case GgufType::kF64:
      return LoadRaw<double>(value->bytes.data());
    case GgufType::kI8:
      return LoadRaw<int8_t>(value->bytes.data());
    case GgufType::kI16:
      return LoadRaw<int16_t>(value->bytes.data());
    case GgufType::kI32:
      return LoadRaw<int32_t>(value->bytes.data());
    case GgufType::kI64:
      return static_cast<double>(LoadRaw<int64_t>(value->bytes.data()));
    default:
      break;
  }
  const std::optional<uint64_t> integer = GetInteger(key);
  if (!integer.has_value()) return std::nullopt;
  return static_cast<double>(*integer);
}

std::optional<bool> GgufHeader::GetBool(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->type != GgufType::kBool) return std::nullopt;
  return value->bytes[0] != 0;
}

std::optional<std::string> GgufHeader::GetString(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->type != GgufType::kString) return std::nullopt;
  return value->bytes.substr(sizeof(uint64_t));
}

std::optional<std::string> GgufHeader::GetStringAt(absl::string_view key, uint64_t index) const {
  const std::vector<absl::string_view> strings = GetStrings(key);
  if (index >= strings.size()) return std::nullopt;
  return std::string(strings[index]);
}

std::vector<absl::string_view> GgufHeader::GetStrings(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->type != GgufType::kArray ||
      value->element_type != GgufType::kString) {
    return {};
  }
  std::vector<absl::string_view> strings;
  absl::string_view rest = value->bytes;
  while (strings.size() < value->count) {
    uint64_t length = 0;
    if (rest.size() < sizeof(length)) break;
    std::memcpy(&length, rest.data(), sizeof(length));
    rest.remove_prefix(sizeof(length));
    if (length > rest.size()) break;
    strings.push_back(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  return strings;
}

std::optional<uint64_t> GgufHeader::GetIntegerOfLayer(absl::string_view key, uint32_t layer) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return IntegerAt(*value, value->type == GgufType::kArray ? layer : 0);
}

void GgufHeader::Set(absl::string_view key, GgufValue value) {
  for (auto& entry : metadata) {
    if (entry.first == key) {
      entry.second = std::move(value);
      return;
    }
  }
  metadata.emplace_back(std::string(key), std::move(value));
}

void GgufHeader::Erase(absl::string_view key) {
  std::erase_if(metadata, [key](const auto& entry) { return entry.first == key; });
}

std::string SerializeGgufHeader(GgufHeader& header) {
  if (header.alignment != kDefaultAlignment) {
    header.Set(kGgufAlignmentKey, GgufValue::U32(header.alignment));
  }
  std::string out(kGgufMagic);
  AppendRaw<uint32_t>(&out, header.version);
  AppendRaw<uint64_t>(&out, header.tensors.size());
  AppendRaw<uint64_t>(&out, header.metadata.size());
  for (const auto& [key, value] : header.metadata) {
    AppendString(&out, key);
    AppendRaw(&out, value.type);
    if (value.type == GgufType::kArray) {
      AppendRaw(&out, value.element_type);
      AppendRaw(&out, value.count);
    }
    out.append(value.bytes);
  }
  uint64_t offset = 0;
  for (GgufTensor& tensor : header.tensors) {
    tensor.offset = offset;
    offset = GgufPad(offset + tensor.bytes, header.alignment);
    AppendString(&out, tensor.name);
    AppendRaw(&out, tensor.n_dims);
    for (uint32_t i = 0; i < tensor.n_dims; ++i) AppendRaw(&out, tensor.dims[i]);
    AppendRaw(&out, tensor.type);
    AppendRaw(&out, tensor.offset);
  }
  out.resize(GgufPad(out.size(), header.alignment));
  header.data_offset = out.size();
  return out;
}

std::optional<uint64_t> GgufTensorBytes(uint32_t type, const std::array<uint64_t, 4>& dims) {
  if (type >= GGML_TYPE_COUNT) return std::nullopt;
  const int64_t block = ggml_blck_size(static_cast<ggml_type>(type));
  const uint64_t block_bytes = ggml_type_size(static_cast<ggml_type>(type));
  if (block <= 0 || block_bytes == 0) return std::nullopt;  // a type that ggml has removed
  if (dims[0] % static_cast<uint64_t>(block) != 0) return std::nullopt;
  // ggml counts elements and bytes in an int64_t.
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  uint64_t elements = 1;
  for (const uint64_t dim : dims) {
    if (__builtin_mul_overflow(elements, dim, &elements) || elements > kMax) return std::nullopt;
  }
  uint64_t bytes = elements / static_cast<uint64_t>(block);
  if (__builtin_mul_overflow(bytes, block_bytes, &bytes) || bytes > kMax) return std::nullopt;
  return bytes;
}

}  // namespace strata
