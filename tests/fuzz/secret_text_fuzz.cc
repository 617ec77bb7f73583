// Keys and tokens as a person types them: any bytes, alone and behind the prefix of keys.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/security/cluster_key.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void Read(absl::string_view text) {
  const absl::StatusOr<ClusterKey> key = ClusterKey::FromText(text);
  if (!key.ok()) {
    Check(absl::IsInvalidArgument(key.status()));
    return;
  }
  // An accepted text is a key's, but for its formatting.
  const Secret again = key->ToText();
  const absl::StatusOr<ClusterKey> same = ClusterKey::FromText(again.Reveal());
  Check(same.ok() && same->id() == key->id());
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  strata::Read(text);
  strata::Read(absl::StrCat(strata::kClusterKeyPrefix, text));
  return 0;
}
