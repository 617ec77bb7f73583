// Messages of a gRPC call as plain bytes.
#pragma once

#include <string>

#include "absl/log/check.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace strata::testing {

inline grpc::ByteBuffer MessageOf(absl::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

inline std::string BytesOf(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  CHECK(message.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

}  // namespace strata::testing
