// Text from outside that may be shown: names, paths and messages that came from a file, the file
// system, another node, mDNS or a client. The type is the proof: a name that is a PrintableText can
// go to a terminal, into a line of a log, a label of a metric, a JSON string or a protobuf `string`
// as it is. Model names, architectures, node names and mDNS records are of this type from the place
// where they are read; an unconverted string does not compile there. Values; any thread.
//
//   PrintableText name = PrintableText::From(header.GetString("general.name"), kNameBytesMax);
#pragma once

#include <compare>
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace strata {

// Limits of a name, a path and a message, in bytes; a longer one is cut and ends in "…".
inline constexpr size_t kShownNameBytesMax = 160;
inline constexpr size_t kShownPathBytesMax = 4096;
inline constexpr size_t kShownMessageBytesMax = 64 * 1024;

class PrintableText {
 public:
  PrintableText() = default;  // empty
  // From() of a string literal.
  template <size_t n>
  PrintableText(const char (&literal)[n])  // NOLINT(google-explicit-constructor)
      : PrintableText(From(absl::string_view(literal, n - 1))) {}

  // `bytes` as valid UTF-8 of one line and at most `bytes_max` bytes, cut between characters:
  //   - each byte that is not UTF-8 and each noncharacter becomes U+FFFD;
  //   - control characters (C0, DEL, C1), line and paragraph separators, bidi controls and marks,
  //     zero-width and all other invisible characters become visible escapes: \n, \u001b, \u202e.
  // A variation selector stays behind a character that is not ASCII: emoji have them. Text that is
  // printable already is left as it is, so that From(From(x)) == From(x). A backslash stays as it
  // is: escapes are for people and are not decoded again.
  static PrintableText From(absl::string_view bytes, size_t bytes_max = kShownNameBytesMax);
  // Of a file's or folder's name; the file is opened by its own bytes.
  static PrintableText OfPath(absl::string_view path) { return From(path, kShownPathBytesMax); }

  const std::string& str() const { return text_; }
  // NOLINTNEXTLINE(google-explicit-constructor): valid wherever a string_view is.
  operator absl::string_view() const { return text_; }
  bool empty() const { return text_.empty(); }

  friend bool operator==(const PrintableText&, const PrintableText&) = default;
  friend auto operator<=>(const PrintableText&, const PrintableText&) = default;
  friend bool operator==(const PrintableText& a, absl::string_view b) { return a.text_ == b; }
  friend bool operator==(const PrintableText& a, const char* b) { return a.text_ == b; }
  friend std::ostream& operator<<(std::ostream& out, const PrintableText& text) {
    return out << text.text_;
  }
  template <typename Sink>
  friend void AbslStringify(Sink& sink, const PrintableText& text) {
    sink.Append(text.text_);
  }

 private:
  explicit PrintableText(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

// The same for a text of several lines: line feeds stay. Where one line is wanted, From() of it.
std::string PrintableLines(absl::string_view bytes, size_t bytes_max = kShownMessageBytesMax);

// Whether From() leaves `text` as it is, whatever its length.
bool IsPrintable(absl::string_view text);

}  // namespace strata
