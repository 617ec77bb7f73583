// The certificate and key by which the HTTP API speaks HTTPS, as its owner gave them: PEM files.
// TLS 1.2 and later: 1.3 alone would turn away clients and proxies that are still about, and 1.2
// with the suites that are left here (ephemeral keys, AEAD) has no weakness that is known.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct ssl_ctx_st;  // OpenSSL's
struct ssl_st;

namespace strata {

// Thread-safe once it is there.
class HttpTls {
 public:
  struct Files {
    std::string certificate;  // the server's, then those between it and an authority
    std::string key;          // its owner's alone to read
  };
  // kInvalidArgument, naming the file: it cannot be read, is no PEM, is locked with a passphrase,
  // or the key is another certificate's. Else what ReadPrivateFile() says of the key's file. A
  // certificate that is not good at `now` is a warning in the log. The files are read once.
  static absl::StatusOr<std::shared_ptr<const HttpTls>> Load(const Files& files, absl::Time now);
  ~HttpTls();

  // For one connection; the caller frees it.
  ssl_st* NewSession() const;

 private:
  explicit HttpTls(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

}  // namespace strata
