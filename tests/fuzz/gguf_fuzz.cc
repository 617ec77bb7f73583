// Any bytes as a GGUF file: reading ends in an error or in a sound header, and a sound header
// that is written reads back the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "shard/model/gguf.h"

namespace {

void Check(bool ok) {
  if (!ok) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  absl::StatusOr<strata::GgufHeader> header = strata::ParseGgufHeader(file);
  if (!header.ok()) {
    Check(header.status().code() == absl::StatusCode::kInvalidArgument);
    Check(!header.status().message().empty());
    return 0;
  }
  for (const strata::GgufTensor& tensor : header->tensors) {
    Check(tensor.offset <= size && tensor.bytes <= size);
    Check(header->data_offset + tensor.offset + tensor.bytes <= size);
    Check(strata::GgufTensorBytes(tensor.type, tensor.dims) == tensor.bytes);
  }
  for (const auto& [key, value] : header->metadata) {
    Check(header->Find(key) == &value);
    header->GetInteger(key);
    header->GetNumber(key);
    header->GetBool(key);
    header->GetString(key);
    header->GetIntegerOfLayer(key, 0);
    header->GetIntegerOfLayer(key, static_cast<uint32_t>(value.count));
  }

  const std::vector<strata::GgufTensor> tensors = header->tensors;
  std::string written = strata::SerializeGgufHeader(*header);
  uint64_t data_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Check(header->tensors[i].offset == tensors[i].offset);
    data_bytes = tensors[i].offset + tensors[i].bytes;
  }
  written.resize(written.size() + data_bytes);
  const absl::StatusOr<strata::GgufHeader> again = strata::ParseGgufHeader(written);
  Check(again.ok());
  Check(again->metadata.size() == header->metadata.size());
  Check(again->tensors.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    Check(again->tensors[i].name == tensors[i].name);
    Check(again->tensors[i].bytes == tensors[i].bytes);
  }
  return 0;
}
