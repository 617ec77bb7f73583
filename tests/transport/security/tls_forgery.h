// Forged certificates for tests, made from a cluster's certificates without its key: the same
// names, numbers and dates, signed with another key.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/log/check.h"
#include "transport/security/cluster_certificates.h"

namespace strata::testing {

struct OpensslFree {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using X509Ptr = std::unique_ptr<X509, OpensslFree>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree>;

inline X509Ptr ParseCertificate(const std::string& pem) {
  const std::unique_ptr<BIO, OpensslFree> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  X509Ptr certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  CHECK(certificate != nullptr);
  return certificate;
}

inline KeyPtr ParsePrivateKey(const std::string& pem) {
  const std::unique_ptr<BIO, OpensslFree> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  CHECK(key != nullptr);
  return key;
}

inline std::string BioText(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

// `pem` with another public key, signed by another's.
inline std::string Resigned(const std::string& pem, EVP_PKEY* subject_key, EVP_PKEY* issuer_key) {
  const X509Ptr certificate = ParseCertificate(pem);
  CHECK_EQ(X509_set_pubkey(certificate.get(), subject_key), 1);
  CHECK_GT(X509_sign(certificate.get(), issuer_key, nullptr), 0);
  const std::unique_ptr<BIO, OpensslFree> bio(BIO_new(BIO_s_mem()));
  CHECK_EQ(PEM_write_bio_X509(bio.get(), certificate.get()), 1);
  return BioText(bio.get());
}

struct Forgery {
  std::string authority_pem;
  NodeCertificate node;
};

inline Forgery Forge(const ClusterAuthority& cluster, const NodeCertificate& node) {
  const KeyPtr authority_key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const KeyPtr node_key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  CHECK(authority_key != nullptr && node_key != nullptr);
  Forgery forged;
  forged.authority_pem =
      Resigned(cluster.certificate_pem(), authority_key.get(), authority_key.get());
  forged.node.certificate_pem = Resigned(node.certificate_pem, node_key.get(), authority_key.get());
  const std::unique_ptr<BIO, OpensslFree> bio(BIO_new(BIO_s_mem()));
  CHECK_EQ(PEM_write_bio_PKCS8PrivateKey(bio.get(), node_key.get(), nullptr, nullptr, 0, nullptr,
                                         nullptr),
           1);
  forged.node.private_key_pem = Secret(BioText(bio.get()));
  return forged;
}

}  // namespace strata::testing
