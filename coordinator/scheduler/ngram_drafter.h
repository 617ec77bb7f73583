// Predicts that a sequence goes on as it, or one that ended lately, did where its last tokens stood
// before ("prompt lookup"): code that is edited, quotations, lists, templates. Needs no model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/scheduler/drafter.h"
#include "coordinator/scheduler/ngram_index.h"

namespace strata {

// Not thread-safe. Bounded: the tokens of the sequences that have begun, and of those that have
// ended kRecentTokens at most of each of kScopesMax scopes, those that a sequence ended in last.
class NgramDrafter final : public Drafter {
 public:
  static constexpr size_t kRecentTokens = 64 << 10;
  static constexpr size_t kScopesMax = 8;

  bool Serves(wire::Speculation speculation) const override {
    return speculation == wire::SPECULATION_AUTO || speculation == wire::SPECULATION_NGRAM;
  }
  void Begin(const Sequence& sequence) override;
  void Append(uint64_t request, int32_t token) override;
  std::optional<int32_t> Draft(uint64_t request, absl::Span<const int32_t> drafts) override;
  void End(uint64_t request) override;
  void ForgetEnded() override { recent_.clear(); }

 private:
  // The tokens that a sequence is expected to repeat.
  struct Source {
    std::shared_ptr<const NgramIndex> index;  // null: none
    size_t next = 0;                          // the place in it of the sequence's next token
    size_t length = 0;  // tokens before it that agree with the sequence's last
  };
  struct State {
    std::shared_ptr<NgramIndex> index;  // the prediction, then the sequence
    size_t begin = 0;                   // of the sequence in it
    bool adapts = true;
    std::string scope;
    bool is_kept = true;
    Source source;
  };
  // Of ended sequences: a half that fills, and the full one before it.
  struct Recent {
    std::shared_ptr<NgramIndex> half = std::make_shared<NgramIndex>();
    std::shared_ptr<NgramIndex> full = std::make_shared<NgramIndex>();
    uint64_t used = 0;  // rises
  };
  // The expected token `ahead` of the next one; nullopt: the source ends before it.
  static std::optional<int32_t> Expected(const State& state, size_t ahead,
                                         absl::Span<const int32_t> drafts);
  void FindSource(State* state) const;
  // The share of right tokens of sources behind so many tokens that agreed; the latest count most.
  double& ShareRight(size_t length);

  std::map<uint64_t, State> states_;      // by request
  std::map<std::string, Recent> recent_;  // by scope, at most kScopesMax
  uint64_t last_used_ = 0;
  std::array<double, 6> share_right_ = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
};

}  // namespace strata
