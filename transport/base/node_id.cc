#include "transport/base/node_id.h"

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace strata {

bool IsNodeId(absl::string_view text) {
  return text.size() == kNodeIdDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c)) &&
                  !absl::ascii_isupper(static_cast<unsigned char>(c));
         });
}

std::string NewNodeId() {
  std::random_device device;
  std::string id;
  for (size_t i = 0; i < kNodeIdDigits / 8; ++i) {
    absl::StrAppendFormat(&id, "%08x", static_cast<uint32_t>(device()));
  }
  return id;
}

uint64_t NewNonce() {
  std::random_device device;
  uint64_t nonce = 0;
  while (nonce == 0) nonce = uint64_t{device()} << 32 | device();
  return nonce;
}

}  // namespace strata
