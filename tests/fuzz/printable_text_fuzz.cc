// Any bytes as text that is shown, cut to any length: the result is UTF-8 without control
// characters, line ends and invisible characters, is not too long, and does not change a second
// time.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "transport/base/printable_text.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

// Independent of the tables of the code under test.
void CheckCharacters(absl::string_view text) {
  while (!text.empty()) {
    const size_t n = Utf8CharacterBytes(text);
    Check(n > 0);
    const absl::string_view c = text.substr(0, n);
    text.remove_prefix(n);
    const auto at = [c](size_t i) { return static_cast<unsigned char>(c[i]); };
    Check(n > 1 || (at(0) >= 0x20 && at(0) != 0x7F));
    Check(!(at(0) == 0xC2 && at(1) < 0xA0));                                     // C1
    Check(!(at(0) == 0xE2 && at(1) == 0x80 && at(2) >= 0x8B && at(2) <= 0x8F));  // zero-width
    Check(!(at(0) == 0xE2 && at(1) == 0x80 && at(2) >= 0xA8 && at(2) <= 0xAE));  // lines, bidi
    Check(!(at(0) == 0xE2 && at(1) == 0x81 && at(2) >= 0xA0 && at(2) <= 0xAF));  // isolates
    Check(!(at(0) == 0xF3 && at(1) == 0xA0));                                    // tags
  }
}

void Show(absl::string_view bytes, size_t bytes_max) {
  const PrintableText text = PrintableText::From(bytes, bytes_max);
  Check(text.str().size() <= bytes_max);
  CheckCharacters(text);
  Check(IsPrintable(text));
  Check(PrintableText::From(text, bytes_max) == text);
  if (IsPrintable(bytes) && bytes.size() <= bytes_max) Check(text == bytes);

  const std::string lines = PrintableLines(bytes, bytes_max);
  Check(lines.size() <= bytes_max);
  CheckCharacters(absl::StrReplaceAll(lines, {{"\n", ""}}));
  Check(PrintableLines(lines, bytes_max) == lines);
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  strata::Show(bytes, data[0]);
  strata::Show(bytes, 10 * size + 3);
  return 0;
}
