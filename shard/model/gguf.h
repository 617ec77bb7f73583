// The header of a GGUF file: metadata and the directory of tensors, without their data. Reads a few
// MB of a file of hundreds of GB, and writes headers for slices.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 2 and 3,
// little-endian. The bytes are untrusted: reading never asserts, bounds every count and size by the
// available bytes, and is fuzzed (tests/fuzz/gguf_fuzz.cc). libggml's own reader is not
// used in the node's process because it may abort.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace strata {

// Values as in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// Bytes of one value; 0 for strings, arrays and unknown types.
size_t GgufScalarBytes(GgufType type);

// `value` rounded up to a multiple of `alignment`.
uint64_t GgufPad(uint64_t value, uint64_t alignment);

// The layer N of a tensor "blk.N.…"; `rest`, if any, becomes what follows the second dot. nullopt:
// it is of no layer.
std::optional<uint32_t> LayerOfTensor(absl::string_view name, absl::string_view* rest = nullptr);

// One metadata value, kept as the bytes of the file so that unchanged values are copied exactly.
struct GgufValue {
  GgufType type = GgufType::kU32;
  GgufType element_type = GgufType::kU32;  // arrays only; arrays of arrays are refused
  uint64_t count = 1;                      // elements of an array
  std::string bytes;  // the bytes after the type (for arrays: only the elements)

  static GgufValue U32(uint32_t value);
  static GgufValue F32(float value);
  static GgufValue Bool(bool value);
  static GgufValue String(absl::string_view value);
  static GgufValue StringArray(absl::Span<const std::string> values);
};

struct GgufTensor {
  std::string name;
  uint32_t n_dims = 0;
  std::array<uint64_t, 4> dims = {1, 1, 1, 1};  // [0] is the row length, as ggml's ne
  uint32_t type = 0;                            // ggml_type
  uint64_t offset = 0;                          // from the start of the data section
  uint64_t bytes = 0;                           // of data, without padding
};

class GgufHeader {
 public:
  uint32_t version = 3;
  uint32_t alignment = 32;
  uint64_t data_offset = 0;                                 // of the data section in its file
  std::vector<std::pair<std::string, GgufValue>> metadata;  // in file order, keys unique
  std::vector<GgufTensor> tensors;                          // in file order, names unique

  const GgufValue* Find(absl::string_view key) const;
  const GgufTensor* FindTensor(absl::string_view name) const;

  // Any integer type that fits; nullopt when absent or of another kind.
  std::optional<uint64_t> GetInteger(absl::string_view key) const;
  std::optional<double> GetNumber(absl::string_view key) const;
  std::optional<bool> GetBool(absl::string_view key) const;
  std::optional<std::string> GetString(absl::string_view key) const;
  // Element `index` of an array of strings.
  std::optional<std::string> GetStringAt(absl::string_view key, uint64_t index) const;
  // All strings of an array, views of the header; empty: the key has none.
  std::vector<absl::string_view> GetStrings(absl::string_view key) const;
  // A scalar, or element `layer` of a per-layer array.
  std::optional<uint64_t> GetIntegerOfLayer(absl::string_view key, uint32_t layer) const;

  void Set(absl::string_view key, GgufValue value);  // replaces or appends
  void Erase(absl::string_view key);
};

// Reads up to out.size() bytes at `offset`; returns how many there were (fewer only at the end).
using ReadAt = absl::FunctionRef<absl::StatusOr<size_t>(uint64_t offset, absl::Span<char> out)>;

// Reads the header of a file of `file_bytes`. kInvalidArgument with what is wrong and where: bad
// magic, version, counts or sizes; truncated header; duplicate names; an unknown tensor type; a
// tensor whose data lies past the end of the file or does not follow the tensor before it (libggml
// refuses gaps and overlaps too); big-endian files. Errors of `read` are passed on. Blocks on
// `read`.
absl::StatusOr<GgufHeader> ReadGgufHeader(uint64_t file_bytes, ReadAt read);

// As ReadGgufHeader, from the whole file in memory (tests, fuzzing).
absl::StatusOr<GgufHeader> ParseGgufHeader(absl::string_view file);

// The header as bytes up to and including the padding before the data section. Lays the tensors out
// in order: recomputes every `offset`, and `data_offset`, in place.
std::string SerializeGgufHeader(GgufHeader& header);

// Bytes of a tensor of this type and shape, or nullopt when the type is unknown, the row length is
// not a multiple of the type's block, or the size overflows.
std::optional<uint64_t> GgufTensorBytes(uint32_t type, const std::array<uint64_t, 4>& dims);

}  // namespace strata
