// The certificate authority that every node of a cluster makes for itself from the cluster's key,
// and the certificates that it issues: X.509 v3 (RFC 5280), Ed25519 (RFC 8032, RFC 8410).
//
//   authority's private key   the 32 bytes that the cluster's key gives for "certificate authority
//                             ed25519" (cluster_key.h), as an Ed25519 private key
//   authority's certificate   the same bytes on every node, because all fields are fixed and
//                             Ed25519 signs without randomness: version 3, serial 1, subject =
//                             issuer = CN "strata cluster ID", CA without further authorities,
//                             may only sign certificates
//   node's certificate        a new private key and a random serial each time; CN = node id; DNS
//                             names NodeName() and kMemberName, which TLS checks in place of a
//                             host's name; for servers and clients
//
// Both are valid from 1970-01-01 to 9999-12-31: a key ends by rotation and not by a date, so that a
// machine whose clock is wrong, or jumps, stays a member. An expiry of a node's key would protect
// nothing: a thief of that key can read the cluster's key beside it.
//
// Every owner of the key can make a certificate for any node id: ids distinguish members, and do
// not protect one from another. Everything here is thread-safe except moves, and blocks for some
// hundred microseconds at most. Errors are kInternal with OpenSSL's message unless noted.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "transport/security/cluster_key.h"
#include "transport/security/secret.h"

// OpenSSL's.
struct evp_pkey_st;
struct x509_st;

namespace strata {

// The beginning of an authority's common name; the cluster's id follows.
inline constexpr absl::string_view kAuthorityNamePrefix = "strata cluster ";

// The names in a certificate, one of which a dialling node expects: kMemberName for any node of the
// cluster, which the authority identifies, NodeName() for one node. No DNS has these names.
inline constexpr absl::string_view kMemberName = "member.strata.internal";
std::string NodeName(absl::string_view node_id);

// The names in a certificate; nothing is verified. Both are plain letters and digits, for people.
struct CertificateNames {
  std::string cluster_id;  // empty: not a node's certificate
  std::string node_id;     // empty as well then
};
CertificateNames NamesOf(const x509_st& certificate);

// The id of the cluster whose authority signed a node's certificate, as the certificate says.
absl::StatusOr<std::string> ClusterIdOf(const std::string& certificate_pem);

struct NodeCertificate {
  std::string certificate_pem;
  Secret private_key_pem;  // PKCS #8
};

class ClusterAuthority {
 public:
  static absl::StatusOr<ClusterAuthority> Of(const ClusterKey& key);

  ClusterAuthority(ClusterAuthority&&) noexcept = default;
  ClusterAuthority& operator=(ClusterAuthority&&) noexcept = default;
  ~ClusterAuthority() = default;

  const std::string& cluster_id() const { return cluster_id_; }
  // Not secret.
  const std::string& certificate_pem() const { return certificate_pem_; }

  struct NodeOptions {
    std::string node_id;
    // The end is RFC 5280's (4.1.2.5) for a certificate without a well-defined end.
    absl::Time not_before = absl::UnixEpoch();
    absl::Time not_after = absl::FromUnixSeconds(253'402'300'799);  // 9999-12-31 23:59:59
  };
  // kInvalidArgument: the node id is no DNS label (letters, digits and hyphens, at most 48).
  absl::StatusOr<NodeCertificate> Issue(const NodeOptions& options) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;  // wipes it
  };
  ClusterAuthority() = default;

  std::string cluster_id_;
  std::unique_ptr<evp_pkey_st, Free> private_key_;
  std::string certificate_pem_;
};

}  // namespace strata
