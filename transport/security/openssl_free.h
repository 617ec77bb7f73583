// Frees OpenSSL's objects: std::unique_ptr<X509, OpensslFree>.
#pragma once

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace strata {

struct OpensslFree {
  void operator()(ASN1_INTEGER* number) const { ASN1_INTEGER_free(number); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(BIO* chain) const { BIO_free_all(chain); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};

}  // namespace strata
