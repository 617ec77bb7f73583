// Small GGUF files in memory, good and bad, written without the code under test.
//
//   GgufBuilder builder = TinyLlama({.n_layer = 3});
//   builder.Set("general.name", GgufValue::String("mine"));
//   std::string file = builder.Build();
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/model/gguf.h"

namespace strata::testing {

// Appends values in GGUF's encoding.
class GgufBytes {
 public:
  GgufBytes& Raw(absl::string_view bytes);
  GgufBytes& U32(uint32_t value);
  GgufBytes& U64(uint64_t value);
  GgufBytes& String(absl::string_view value);
  // The key, the type and the value.
  GgufBytes& Entry(absl::string_view key, const GgufValue& value);
  // A line of the tensor directory.
  GgufBytes& Tensor(absl::string_view name, absl::Span<const uint64_t> dims, uint32_t type,
                    uint64_t offset);
  // Magic, version 3 and the counts.
  GgufBytes& Start(uint64_t tensors, uint64_t metadata);
  GgufBytes& PadTo(uint32_t alignment);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class GgufBuilder {
 public:
  uint32_t version = 3;
  uint32_t alignment = 32;  // written as metadata where it is not 32

  GgufBuilder& Set(absl::string_view key, GgufValue value);  // replaces or appends
  GgufBuilder& Erase(absl::string_view key);

  // Of F32; its bytes depend on the name alone.
  GgufBuilder& Tensor(absl::string_view name, std::vector<uint64_t> dims);
  GgufBuilder& EraseTensor(absl::string_view name);
  // Of any type; zeros where it is not F32.
  GgufBuilder& TensorOfType(absl::string_view name, std::vector<uint64_t> dims, uint32_t type);

  std::string BuildHeader() const;  // up to the data section
  std::string Build() const;

  // The same as `parts` files, tensors spread evenly, and all metadata in the first.
  std::vector<std::string> BuildParts(uint16_t parts) const;

  // The bytes that Tensor() writes.
  static std::string DataOf(absl::string_view name, uint64_t bytes);

 private:
  struct Entry {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type;
    uint64_t bytes;
  };
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::vector<Entry> tensors_;
};

struct TinyLlamaOptions {
  uint32_t n_layer = 6;
  bool tied = false;  // without output.weight
};

// A llama that libllama loads: 32 values per row, 2 heads, a vocabulary of 272 tokens.
GgufBuilder TinyLlama(TinyLlamaOptions options);

// PREFIX-00002-of-00003.gguf
std::string PartPath(const std::string& prefix, int number, int count);

// Creates or replaces the file; fails the test when it cannot.
void WriteFile(const std::string& path, absl::string_view bytes);

}  // namespace strata::testing
