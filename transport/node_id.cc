#include "transport/node_id.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace strata {

bool IsNodeId(absl::string_view text) {
  return text.size() == kNodeIdDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c)) &&
                  !absl::ascii_isupper(static_cast<unsigned char>(c));
         });
}

}  // namespace strata
