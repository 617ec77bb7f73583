#include "node/standard_output.h"

#include <cstdio>

namespace strata {

absl::Status WriteToStdout(absl::string_view text) {
  if (fwrite(text.data(), 1, text.size(), stdout) != text.size() || fflush(stdout) != 0) {
    return absl::UnavailableError("cannot write to stdout");
  }
  return absl::OkStatus();
}

}  // namespace strata
