#include "node/base/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace strata {

absl::Status WriteToStdout(absl::string_view text) {
  errno = 0;
  if (fwrite(text.data(), 1, text.size(), stdout) == text.size() && fflush(stdout) == 0 &&
      ferror(stdout) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  const std::string message =
      error == 0 ? "cannot write to stdout"
                 : absl::StrCat("cannot write to stdout: ", std::generic_category().message(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::UnknownError(message);
}

}  // namespace strata
