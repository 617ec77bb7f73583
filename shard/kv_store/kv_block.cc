#include "shard/kv_store/kv_block.h"

#include <blake3.h>

#include <algorithm>

namespace strata {
namespace {

constexpr char kContext[] = "strata 2026-11 name of a kv block";

}  // namespace

std::vector<KvName> KvNamesOf(absl::string_view scope, absl::Span<const int32_t> tokens) {
  blake3_hasher so_far;
  blake3_hasher_init_derive_key(&so_far, kContext);
  const uint64_t scope_bytes = scope.size();
  blake3_hasher_update(&so_far, &scope_bytes, sizeof(scope_bytes));
  blake3_hasher_update(&so_far, scope.data(), scope.size());
  std::vector<KvName> names(tokens.size() / kKvBlockTokens);
  for (size_t i = 0; i < names.size(); ++i) {
    blake3_hasher_update(&so_far, tokens.data() + i * kKvBlockTokens,
                         kKvBlockTokens * sizeof(int32_t));
    // Finalizing leaves the hasher as it is.
    blake3_hasher_finalize(&so_far, reinterpret_cast<uint8_t*>(names[i].data()), kKvNameBytes);
  }
  return names;
}

std::string JoinKvNames(absl::Span<const KvName> names) {
  std::string bytes;
  bytes.reserve(names.size() * kKvNameBytes);
  for (const KvName& name : names) bytes.append(name.data(), name.size());
  return bytes;
}

std::vector<KvName> SplitKvNames(absl::string_view bytes) {
  std::vector<KvName> names(bytes.size() / kKvNameBytes);
  for (size_t i = 0; i < names.size(); ++i) {
    std::ranges::copy(bytes.substr(i * kKvNameBytes, kKvNameBytes), names[i].begin());
  }
  return names;
}

}  // namespace strata
