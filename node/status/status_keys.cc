#include "node/status/status_keys.h"

#include <map>

namespace strata {
namespace {

// The sequences of xterm and terminals like it.
const std::map<absl::string_view, Key>& Sequences() {
  static const auto* const sequences = new std::map<absl::string_view, Key>{
      {"\x1b[A", Key::kUp},    {"\x1bOA", Key::kUp},      {"\x1b[B", Key::kDown},
      {"\x1bOB", Key::kDown},  {"\x1b[5~", Key::kPageUp}, {"\x1b[6~", Key::kPageDown},
      {"\x1b[H", Key::kHome},  {"\x1bOH", Key::kHome},    {"\x1b[1~", Key::kHome},
      {"\x1b[7~", Key::kHome}, {"\x1b[F", Key::kEnd},     {"\x1bOF", Key::kEnd},
      {"\x1b[4~", Key::kEnd},  {"\x1b[8~", Key::kEnd},
  };
  return *sequences;
}

void ReadPlain(char byte, std::vector<Key>* keys) {
  switch (byte) {
    case 'q':
    case 'Q':
    case '\x03':  // Ctrl-C, if the terminal does not make a signal of it
    case '\x04':
      keys->push_back(Key::kQuit);
      break;
    case 'k':
      keys->push_back(Key::kUp);
      break;
    case 'j':
    case '\r':
    case '\n':
      keys->push_back(Key::kDown);
      break;
    case 'b':
      keys->push_back(Key::kPageUp);
      break;
    case ' ':
      keys->push_back(Key::kPageDown);
      break;
    case 'g':
      keys->push_back(Key::kHome);
      break;
    case 'G':
      keys->push_back(Key::kEnd);
      break;
    default:
      break;
  }
}

}  // namespace

std::vector<Key> KeyReader::Read(absl::string_view bytes) {
  std::vector<Key> keys;
  for (const char byte : bytes) {
    if (byte == '\x1b') {
      if (escape_waits()) keys.push_back(Key::kQuit);  // twice: the first was the key
      sequence_ = byte;
      continue;
    }
    if (sequence_.empty()) {
      ReadPlain(byte, &keys);
      continue;
    }
    sequence_ += byte;
    // Esc [ parameters and a last byte, Esc O and one byte, or Esc and one byte.
    const bool more = sequence_.size() == 2 ? byte == '[' || byte == 'O'
                                            : sequence_[1] == '[' && (byte < '@' || byte > '~');
    if (more && sequence_.size() < kSequenceBytesMax) continue;
    const auto found = Sequences().find(sequence_);
    if (found != Sequences().end()) keys.push_back(found->second);
    sequence_.clear();
  }
  return keys;
}

std::vector<Key> KeyReader::Flush() {
  const bool key = escape_waits();
  sequence_.clear();
  return key ? std::vector<Key>{Key::kQuit} : std::vector<Key>();
}

}  // namespace strata
