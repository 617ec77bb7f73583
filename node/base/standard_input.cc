#include "node/base/standard_input.h"

#include <unistd.h>

#include <cerrno>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "transport/base/utf8.h"

namespace strata {

absl::StatusOr<std::string> ReadPromptFromStdin() {
  std::string text;
  char buffer[16 * 1024];
  while (true) {
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "cannot read the prompt from stdin");
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() <= kStdinPromptBytesMax) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt on stdin is longer than ", kStdinPromptBytesMax >> 20, " MiB"));
  }
  if (absl::EndsWith(text, "\n")) text.pop_back();
  if (absl::EndsWith(text, "\r")) text.pop_back();
  if (text.empty()) {
    return absl::InvalidArgumentError("prompt is required: as an argument, or on stdin");
  }
  if (ValidUtf8(text) != text) {
    return absl::InvalidArgumentError("the prompt on stdin is not UTF-8");
  }
  return text;
}

bool Confirm(absl::string_view question) {
  std::cerr << question << " [y/N] " << std::flush;
  std::string line;
  std::getline(std::cin, line);
  const std::string answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(line));
  return answer == "y" || answer == "yes";
}

}  // namespace strata
