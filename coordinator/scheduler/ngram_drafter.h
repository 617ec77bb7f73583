// Guesses that a text goes on as it, or a recent one, did where its last tokens stood before
// ("prompt lookup"): code that is edited, quotations, lists, templates. Needs no model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "coordinator/scheduler/drafter.h"
#include "coordinator/scheduler/ngram_index.h"

namespace strata {

// Not thread-safe. Bounded: the texts of the sequences that have begun, and kRecentTokens at most
// of those that have ended.
class NgramDrafter final : public Drafter {
 public:
  static constexpr size_t kRecentTokens = 64 << 10;

  void Begin(const Sequence& sequence) override;
  void Append(uint64_t request, int32_t token) override;
  std::optional<int32_t> Guess(uint64_t request, absl::Span<const int32_t> guesses) override;
  void End(uint64_t request) override;

 private:
  // What a text is expected to repeat.
  struct Source {
    std::shared_ptr<const NgramIndex> index;  // null: nothing
    size_t next = 0;                          // the place in it of the text's next token
    size_t length = 0;                        // tokens before it that agree with the text's last
  };
  struct Text {
    std::shared_ptr<NgramIndex> index;  // the prediction, then the text
    size_t begin = 0;                   // of the text in it
    bool adapts = true;
    Source source;
  };
  // The expected token `ahead` of the text's next one; nullopt: the source ends before it.
  static std::optional<int32_t> Expected(const Text& text, size_t ahead,
                                         absl::Span<const int32_t> guesses);
  void FindSource(Text* text) const;
  // How often a source proved right behind so many tokens that agreed; the latest count most.
  double& ShareRight(size_t length);

  std::map<uint64_t, Text> texts_;
  // Of ended texts: a half that fills, and the full one before it.
  std::shared_ptr<NgramIndex> recent_ = std::make_shared<NgramIndex>();
  std::shared_ptr<NgramIndex> recent_full_ = std::make_shared<NgramIndex>();
  std::array<double, 6> share_right_ = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
};

}  // namespace strata
