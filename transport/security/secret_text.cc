#include "transport/security/secret_text.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr absl::string_view kSymbols = "0123456789abcdefghjkmnpqrstvwxyz";
constexpr absl::string_view kChecksumOf = "strata secret checksum";
constexpr size_t kChecksumBytes = 3;
constexpr size_t kSymbolCount = (kSecretBytes + kChecksumBytes) * 8 / 5;
constexpr size_t kGroupSymbols = 4;
static_assert(kSymbolCount * 5 == (kSecretBytes + kChecksumBytes) * 8);

using Checksum = std::array<uint8_t, kChecksumBytes>;

Checksum ChecksumOf(const SecretKind& kind, const SecretBytes& bytes) {
  std::string text =
      absl::StrCat(kChecksumOf, kind.prefix,
                   absl::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
  std::array<uint8_t, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), hash.data());
  Wipe(&text);
  Checksum checksum;
  std::copy_n(hash.begin(), checksum.size(), checksum.begin());
  OPENSSL_cleanse(hash.data(), hash.size());
  return checksum;
}

// The value of a symbol, -1 for any other character.
int ValueOf(char symbol) {
  const char c = absl::ascii_tolower(static_cast<unsigned char>(symbol));
  if (c == 'i' || c == 'l') return 1;
  if (c == 'o') return 0;
  const size_t at = kSymbols.find(c);
  return at == absl::string_view::npos ? -1 : static_cast<int>(at);
}

bool Skipped(char c) { return c == '-' || absl::ascii_isspace(static_cast<unsigned char>(c)); }

absl::Status Wrong(const SecretKind& kind, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a ", kind.name, ": ", what));
}

}  // namespace

void WipeSecretBytes::operator()(std::array<uint8_t, kSecretBytes>* bytes) const {
  OPENSSL_cleanse(bytes->data(), bytes->size());
  delete bytes;
}

absl::StatusOr<SecretBytes> NewSecretBytes() {
  SecretBytes bytes(new std::array<uint8_t, kSecretBytes>{});
  if (RAND_bytes(bytes->data(), static_cast<int>(bytes->size())) != 1) {
    return absl::UnavailableError("the system gives no random bytes");
  }
  return bytes;
}

std::string Base32(absl::Span<const uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() * 8 + 4) / 5);  // growing would leave a copy behind
  unsigned bits = 0, bit_count = 0;
  for (const uint8_t byte : bytes) {
    bits = (bits << 8 | byte) & 0xFFFF;
    bit_count += 8;
    for (; bit_count >= 5; bit_count -= 5) {
      text.push_back(kSymbols[bits >> (bit_count - 5) & 31]);
    }
  }
  if (bit_count > 0) text.push_back(kSymbols[bits << (5 - bit_count) & 31]);
  return text;
}

Secret SecretToText(const SecretKind& kind, const SecretBytes& bytes) {
  CHECK(bytes != nullptr);
  std::array<uint8_t, kSecretBytes + kChecksumBytes> all;
  const Checksum checksum = ChecksumOf(kind, bytes);
  std::copy(checksum.begin(), checksum.end(), std::copy(bytes->begin(), bytes->end(), all.begin()));
  const Secret symbols(Base32(all));
  OPENSSL_cleanse(all.data(), all.size());
  std::string text;
  text.reserve(kind.prefix.size() + kSymbolCount + kSymbolCount / kGroupSymbols);
  text.append(kind.prefix);
  for (size_t at = 0; at < kSymbolCount; at += kGroupSymbols) {
    if (at > 0) text.push_back('-');
    text.append(symbols.Reveal(), at, kGroupSymbols);
  }
  return Secret(std::move(text));
}

absl::StatusOr<SecretBytes> SecretFromText(const SecretKind& kind, absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (!absl::StartsWithIgnoreCase(text, kind.prefix)) {
    return Wrong(kind, absl::StrCat("it must start with ", kind.prefix, " (", kind.example, ")"));
  }
  text.remove_prefix(kind.prefix.size());
  const size_t count = static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !Skipped(c); }));
  if (count != kSymbolCount) {
    return Wrong(kind, absl::StrCat("it must have ", kSymbolCount, " characters after ",
                                    kind.prefix, " without the hyphens, but has ", count));
  }
  SecretBytes bytes(new std::array<uint8_t, kSecretBytes>{});
  Checksum checksum{};
  unsigned bits = 0, bit_count = 0;
  size_t read = 0, filled = 0;
  for (const char c : text) {
    if (Skipped(c)) continue;
    const int value = ValueOf(c);
    if (value < 0) {
      return Wrong(kind, absl::StrCat("character ", read % kGroupSymbols + 1, " of group ",
                                      read / kGroupSymbols + 1,
                                      " is neither a digit nor a letter that keys use"));
    }
    ++read;
    bits = (bits << 5 | static_cast<unsigned>(value)) & 0xFFFF;
    bit_count += 5;
    if (bit_count < 8) continue;
    bit_count -= 8;
    const auto byte = static_cast<uint8_t>(bits >> bit_count);
    if (filled < kSecretBytes) {
      (*bytes)[filled] = byte;
    } else {
      checksum[filled - kSecretBytes] = byte;
    }
    ++filled;
  }
  if (checksum != ChecksumOf(kind, bytes)) {
    return Wrong(kind, "it has a typo: its last characters do not match the others");
  }
  return bytes;
}

}  // namespace strata
