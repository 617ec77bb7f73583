#include "transport/security/openssl_status.h"

#include <openssl/err.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace strata {

absl::Status OpensslError(absl::string_view what) {
  std::string message(what);
  while (const unsigned long code = ERR_get_error()) {
    char words[256];
    ERR_error_string_n(code, words, sizeof words);
    absl::StrAppend(&message, ": ", words);
  }
  return absl::InternalError(message);
}

}  // namespace strata
