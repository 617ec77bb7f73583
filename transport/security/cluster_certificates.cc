#include "transport/security/cluster_certificates.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "transport/security/openssl_free.h"
#include "transport/security/openssl_status.h"

namespace strata {
namespace {

constexpr absl::string_view kAuthorityInfo = "certificate authority ed25519";
constexpr size_t kEd25519KeyBytes = 32;
constexpr size_t kNodeIdBytesMax = 48;  // with NodeName()'s prefix at most a DNS label's 63
constexpr size_t kSerialBytes = 16;     // of 20 that RFC 5280 4.1.2.2 allows

// RFC 5280 4.1.2.5: a certificate without a well-defined end.
constexpr char kAuthorityNotBefore[] = "19700101000000Z";
constexpr char kAuthorityNotAfter[] = "99991231235959Z";

using Certificate = std::unique_ptr<X509, OpensslFree>;

// Sets a name that has only a common name.
bool SetName(X509_NAME* name, const std::string& common_name) {
  return X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8,
                                    reinterpret_cast<const uint8_t*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1;
}

struct Extension {
  int nid;
  std::string value;  // as OpenSSL's x509v3_config reads it
};

bool AddExtensions(X509* certificate, X509* issuer, std::initializer_list<Extension> extensions) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  return std::all_of(extensions.begin(), extensions.end(), [&](const Extension& e) {
    const std::unique_ptr<X509_EXTENSION, OpensslFree> extension(
        X509V3_EXT_nconf_nid(nullptr, &context, e.nid, e.value.c_str()));
    return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
  });
}

bool SetRandomSerial(X509* certificate) {
  std::array<uint8_t, kSerialBytes> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) return false;
  bytes[0] = static_cast<uint8_t>((bytes[0] & 0x7F) | 0x40);  // positive, and of fixed length
  const std::unique_ptr<BIGNUM, OpensslFree> number(
      BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr));
  return number != nullptr &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetTime(ASN1_TIME* to, absl::Time time) {
  return ASN1_TIME_set(to, absl::ToTimeT(time)) != nullptr;
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size <= 0 ? std::string() : std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<std::string> ToPem(X509* certificate) {
  const std::unique_ptr<BIO, OpensslFree> bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return OpensslError("writing a certificate");
  }
  return Text(bio.get());
}

absl::StatusOr<Secret> ToPem(EVP_PKEY* key) {
  const std::unique_ptr<BIO, OpensslFree> bio(BIO_new(BIO_s_secmem()));  // wiped
  if (bio == nullptr ||
      PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpensslError("writing a private key");
  }
  return Secret(Text(bio.get()));
}

absl::StatusOr<Certificate> FromPem(const std::string& pem) {
  const std::unique_ptr<BIO, OpensslFree> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate certificate(bio == nullptr ? nullptr
                                         : PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return OpensslError("reading a certificate");
  return certificate;
}

absl::StatusOr<std::string> MakeAuthorityPem(const std::string& cluster_id, EVP_PKEY* key) {
  const Certificate certificate(X509_new());
  X509* const x = certificate.get();
  const bool ok =
      x != nullptr && X509_set_version(x, X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set(X509_get_serialNumber(x), 1) == 1 &&
      SetName(X509_get_subject_name(x), absl::StrCat(kAuthorityNamePrefix, cluster_id)) &&
      X509_set_issuer_name(x, X509_get_subject_name(x)) == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notBefore(x), kAuthorityNotBefore) == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notAfter(x), kAuthorityNotAfter) == 1 &&
      X509_set_pubkey(x, key) == 1 &&
      AddExtensions(x, x,
                    {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                     {NID_key_usage, "critical,keyCertSign"},
                     {NID_subject_key_identifier, "hash"}}) &&
      X509_sign(x, key, nullptr) > 0;
  if (!ok) return OpensslError("making the cluster's certificate");
  return ToPem(x);
}

bool IsLabel(absl::string_view text) {
  return !text.empty() && text.size() <= kNodeIdBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
         });
}

// The common name, or "" where it has characters that we never write: it is shown to people.
std::string CommonName(const X509_NAME* name) {
  char text[128];
  const int size = X509_NAME_get_text_by_NID(name, NID_commonName, text, sizeof text);
  if (size <= 0) return "";
  const absl::string_view found(text, static_cast<size_t>(size));
  const bool plain = std::all_of(found.begin(), found.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == ' ';
  });
  return plain ? std::string(found) : "";
}

}  // namespace

CertificateNames NamesOf(const x509_st& certificate) {
  const std::string issuer = CommonName(X509_get_issuer_name(&certificate));
  absl::string_view id = issuer;
  if (!absl::ConsumePrefix(&id, kAuthorityNamePrefix) || absl::StrContains(id, ' ')) return {};
  return {.cluster_id = std::string(id),
          .node_id = CommonName(X509_get_subject_name(&certificate))};
}

absl::StatusOr<std::string> ClusterIdOf(const std::string& certificate_pem) {
  const absl::StatusOr<Certificate> certificate = FromPem(certificate_pem);
  if (!certificate.ok()) return certificate.status();
  CertificateNames names = NamesOf(**certificate);
  if (names.cluster_id.empty()) {
    return absl::InvalidArgumentError("no cluster has issued this certificate");
  }
  return std::move(names.cluster_id);
}

std::string NodeName(absl::string_view node_id) {
  return absl::StrCat("node-", node_id, ".strata.internal");
}

void ClusterAuthority::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

absl::StatusOr<ClusterAuthority> ClusterAuthority::Of(const ClusterKey& key) {
  ClusterAuthority authority;
  authority.cluster_id_ = key.id();
  std::array<uint8_t, kEd25519KeyBytes> seed;
  if (absl::Status status = key.Derive(kAuthorityInfo, absl::MakeSpan(seed)); !status.ok()) {
    return status;
  }
  authority.private_key_.reset(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
  OPENSSL_cleanse(seed.data(), seed.size());
  if (authority.private_key_ == nullptr) return OpensslError("the cluster's private key");
  absl::StatusOr<std::string> pem =
      MakeAuthorityPem(authority.cluster_id_, authority.private_key_.get());
  if (!pem.ok()) return pem.status();
  authority.certificate_pem_ = *std::move(pem);
  return authority;
}

absl::StatusOr<NodeCertificate> ClusterAuthority::Issue(const NodeOptions& options) const {
  if (!IsLabel(options.node_id)) {
    return absl::InvalidArgumentError("a node id has letters, digits and hyphens, at most 48");
  }
  const absl::StatusOr<Certificate> issuer = FromPem(certificate_pem_);
  if (!issuer.ok()) return issuer.status();
  const std::unique_ptr<evp_pkey_st, OpensslFree> key(
      EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  if (key == nullptr) return OpensslError("making a node's private key");

  NodeCertificate made;
  const Certificate certificate(X509_new());
  X509* const x = certificate.get();
  const bool ok =
      x != nullptr && X509_set_version(x, X509_VERSION_3) == 1 && SetRandomSerial(x) &&
      SetName(X509_get_subject_name(x), options.node_id) &&
      X509_set_issuer_name(x, X509_get_subject_name(issuer->get())) == 1 &&
      SetTime(X509_getm_notBefore(x), options.not_before) &&
      SetTime(X509_getm_notAfter(x), options.not_after) && X509_set_pubkey(x, key.get()) == 1 &&
      AddExtensions(x, issuer->get(),
                    {{NID_basic_constraints, "critical,CA:FALSE"},
                     {NID_key_usage, "critical,digitalSignature"},
                     {NID_ext_key_usage, "serverAuth,clientAuth"},
                     {NID_subject_alt_name,
                      absl::StrCat("DNS:", NodeName(options.node_id), ",DNS:", kMemberName)},
                     {NID_subject_key_identifier, "hash"},
                     {NID_authority_key_identifier, "keyid:always"}}) &&
      X509_sign(x, private_key_.get(), nullptr) > 0;
  if (!ok) return OpensslError("making a node's certificate");

  absl::StatusOr<std::string> pem = ToPem(x);
  if (!pem.ok()) return pem.status();
  made.certificate_pem = *std::move(pem);
  absl::StatusOr<Secret> private_pem = ToPem(key.get());
  if (!private_pem.ok()) return private_pem.status();
  made.private_key_pem = *std::move(private_pem);
  return made;
}

}  // namespace strata
