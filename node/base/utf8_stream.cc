#include "node/base/utf8_stream.h"

#include <cstddef>
#include <utility>

namespace strata {
namespace {

// Bytes of the character that starts with `lead`; 1 if it starts none.
size_t CharacterBytes(unsigned char lead) {
  if (lead >= 0xF0 && lead < 0xF8) return 4;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  return 1;
}

// Bytes at the end of `text` that begin a character without ending it.
size_t UnfinishedBytes(absl::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // continuation
    return CharacterBytes(byte) > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::string Utf8Stream::Add(absl::string_view piece) {
  std::string text = std::exchange(pending_, {});
  text.append(piece.data(), piece.size());
  const size_t unfinished = UnfinishedBytes(text);
  pending_ = text.substr(text.size() - unfinished);
  text.resize(text.size() - unfinished);
  return text;
}

std::string Utf8Stream::Flush() { return std::exchange(pending_, {}); }

}  // namespace strata
