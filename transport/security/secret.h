// Secret text: keys, tokens, private keys as PEM. Wiped on destruction, moved but never copied, and
// nothing prints it by accident: no stream, no StrCat, no test's failure message. Code that needs
// the text calls Reveal(), so that a search for that word finds all such places.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>

namespace strata {

// Overwrites the bytes of `text`, spare capacity included, and empties it. The compiler cannot
// optimize this away.
void Wipe(std::string* text);

// Not thread-safe to move; reading is.
class Secret {
 public:
  Secret();  // empty
  // Takes `text` over and wipes the parameter. Copies that the caller made before stay the caller's
  // to wipe.
  explicit Secret(std::string text);
  Secret(Secret&&) noexcept = default;  // the source may then only be assigned to or destroyed
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
