// Text that must not be seen: keys, tokens, private keys as PEM. Wiped when it goes, moved but
// never copied, and nothing prints it by accident: no stream, no StrCat, no test's failure message.
// Who needs the text says Reveal(), so that a search for that word finds everyone who does.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>

namespace strata {

// Overwrites the bytes of `text`, spare capacity included, and empties it. The compiler does not
// leave it out.
void Wipe(std::string* text);

// Not thread-safe to move; reading is.
class Secret {
 public:
  Secret();  // empty
  // Takes `text` over and wipes what is left of it here. Copies that the caller made before are the
  // caller's.
  explicit Secret(std::string text);
  Secret(Secret&&) noexcept = default;  // leaves one that may only be assigned to or destroyed
  Secret& operator=(Secret&&) noexcept = default;
  ~Secret() = default;

  // Valid for as long as this is neither moved from nor destroyed.
  const std::string& Reveal() const { return *text_; }
  bool empty() const { return text_->empty(); }

  template <typename Sink>
  friend void AbslStringify(Sink&, const Secret&) = delete;
  friend std::ostream& operator<<(std::ostream&, const Secret&) = delete;

 private:
  struct WipeAndDelete {
    void operator()(std::string* text) const;
  };
  // Apart from this object, whose own bytes a debugger or a test may show.
  std::unique_ptr<std::string, WipeAndDelete> text_;
};

}  // namespace strata
