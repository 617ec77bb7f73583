#include "transport/security/cluster_key.h"

#include <array>

#include "absl/log/check.h"
#include "transport/security/hkdf.h"

namespace strata {
namespace {

constexpr SecretKind kKind = {.name = "cluster key",
                              .prefix = kClusterKeyPrefix,
                              .example = "'strata key show' on another node prints it"};

constexpr absl::string_view kSalt = "strata cluster key v1\n";
constexpr absl::string_view kIdInfo = "cluster id";
constexpr size_t kIdBytes = 10;

}  // namespace

absl::StatusOr<ClusterKey> ClusterKey::Of(SecretBytes bytes) {
  ClusterKey key(std::move(bytes));
  std::array<uint8_t, kIdBytes> id;
  if (absl::Status status = key.Derive(kIdInfo, absl::MakeSpan(id)); !status.ok()) return status;
  key.id_ = Base32(id);
  return key;
}

absl::StatusOr<ClusterKey> ClusterKey::New() {
  absl::StatusOr<SecretBytes> bytes = NewSecretBytes();
  if (!bytes.ok()) return bytes.status();
  return Of(*std::move(bytes));
}

absl::StatusOr<ClusterKey> ClusterKey::FromText(absl::string_view text) {
  absl::StatusOr<SecretBytes> bytes = SecretFromText(kKind, text);
  if (!bytes.ok()) return bytes.status();
  return Of(*std::move(bytes));
}

Secret ClusterKey::ToText() const { return SecretToText(kKind, bytes_); }

absl::Status ClusterKey::Derive(absl::string_view info, absl::Span<uint8_t> out) const {
  CHECK(bytes_ != nullptr);
  return HkdfSha256({.secret = *bytes_, .salt = kSalt, .info = info}, out);
}

}  // namespace strata
