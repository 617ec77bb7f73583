// The certificate and key of the HTTP API's HTTPS, from its owner's PEM files. TLS 1.2 and later:
// 1.3 alone would exclude clients and proxies still in use, and 1.2 with the suites enabled here
// (ephemeral keys, AEAD) has no known weakness.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct ssl_ctx_st;  // OpenSSL's
struct ssl_st;

namespace strata {

// Thread-safe after Load().
class HttpTls {
 public:
  struct Files {
    std::string certificate;  // the server's, then the intermediate ones
    std::string key;          // readable by its owner only
  };
  // kInvalidArgument, naming the file: it cannot be read, is not PEM, has a passphrase, or the key
  // belongs to another certificate. Else the errors of ReadPrivateFile() for the key's file. Logs a
  // warning for a certificate that is not valid at `now`. The files are read once.
  static absl::StatusOr<std::shared_ptr<const HttpTls>> Load(const Files& files, absl::Time now);
  ~HttpTls();

  // A session for one connection; the caller frees it.
  ssl_st* NewSession() const;

 private:
  explicit HttpTls(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

}  // namespace strata
