// Bodies in a coding of HTTP's Content-Encoding (RFC 9110, 8.4). Pure; no byte of the input is
// trusted.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// As Accept-Encoding lists them.
inline constexpr absl::string_view kContentCodings = "gzip, deflate, zstd";

// The body without its coding; an empty coding or body is left as it is. kUnimplemented: none of
// kContentCodings, or several; kInvalidArgument: the body is not in that coding, or is cut;
// kResourceExhausted: it becomes more than `bytes_max`, which is never allocated.
absl::StatusOr<std::string> DecodeContent(absl::string_view coding, std::string body,
                                          size_t bytes_max);

}  // namespace strata
