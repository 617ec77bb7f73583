#include "shard/kv_store/kv_block.h"

#include <blake3.h>

#include <algorithm>
#include <cstring>

namespace strata {
namespace {

constexpr char kContext[] = "strata 2026-11 name of a kv block";
constexpr char kStateContext[] = "strata 2026-11 name of a kv state";
constexpr size_t kLengthBytes = sizeof(uint32_t);

blake3_hasher Begin(const char* context, absl::string_view scope) {
  blake3_hasher hasher;
  blake3_hasher_init_derive_key(&hasher, context);
  const uint64_t scope_bytes = scope.size();
  blake3_hasher_update(&hasher, &scope_bytes, sizeof(scope_bytes));
  blake3_hasher_update(&hasher, scope.data(), scope.size());
  return hasher;
}

}  // namespace

std::vector<KvName> KvNamesOf(absl::string_view scope, absl::Span<const int32_t> tokens) {
  blake3_hasher so_far = Begin(kContext, scope);
  std::vector<KvName> names(tokens.size() / kKvBlockTokens);
  for (size_t i = 0; i < names.size(); ++i) {
    blake3_hasher_update(&so_far, tokens.data() + i * kKvBlockTokens,
                         kKvBlockTokens * sizeof(int32_t));
    // Finalizing leaves the hasher as it is.
    blake3_hasher_finalize(&so_far, reinterpret_cast<uint8_t*>(names[i].data()), kKvNameBytes);
  }
  return names;
}

std::vector<KvName> KvStateNamesOf(absl::string_view scope, absl::Span<const int32_t> tokens,
                                   absl::Span<const uint32_t> lengths) {
  blake3_hasher so_far = Begin(kStateContext, scope);
  std::vector<KvName> names;
  uint32_t done = 0;
  for (const uint32_t length : lengths) {
    blake3_hasher_update(&so_far, tokens.data() + done, (length - done) * sizeof(int32_t));
    done = length;
    KvName& name = names.emplace_back();
    std::memcpy(name.data(), &length, kLengthBytes);
    blake3_hasher_finalize(&so_far, reinterpret_cast<uint8_t*>(name.data() + kLengthBytes),
                           kKvNameBytes - kLengthBytes);
  }
  return names;
}

uint32_t KvStateLength(const KvName& name) {
  uint32_t length = 0;
  std::memcpy(&length, name.data(), kLengthBytes);
  return length;
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
