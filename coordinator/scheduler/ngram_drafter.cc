#include "coordinator/scheduler/ngram_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace strata {
namespace {

// A guess that is right less often than this, those before it included, is kept back: the stages
// would compute it, and draw power, for too little.
constexpr double kWorthwhile = 0.2;
// The beginning of a prediction counts as a place that so many tokens agree with.
constexpr size_t kPredictionLength = 4;
constexpr double kLatest = 1.0 / 32;  // weight of the latest outcome

}  // namespace

void NgramDrafter::Begin(const Sequence& sequence) {
  Text& text = texts_[sequence.request];
  text = {.index = std::make_shared<NgramIndex>(), .adapts = sequence.adapts};
  for (int32_t token : sequence.prediction) text.index->Append(token);
  if (!sequence.prediction.empty()) text.index->Append(NgramIndex::kSeparator);
  text.begin = text.index->size();
  for (int32_t token : sequence.tokens) text.index->Append(token);
  FindSource(&text);
  // What follows a prompt repeats what was predicted from its beginning on.
  if (sequence.prediction.empty()) return;
  text.source = {.index = text.index, .length = kPredictionLength};
}

void NgramDrafter::FindSource(Text* text) const {
  text->source = {};
  std::vector<int32_t> end;
  const size_t size = text->index->size();
  const size_t length = std::min(size - text->begin, NgramIndex::kLengthMax);
  for (size_t i = size - length; i < size; ++i) end.push_back(text->index->token(i));
  for (const std::shared_ptr<const NgramIndex>& index :
       {std::shared_ptr<const NgramIndex>(text->index), std::shared_ptr<const NgramIndex>(recent_),
        std::shared_ptr<const NgramIndex>(recent_full_)}) {
    const auto match = index->Find(end);
    if (match && match->length > text->source.length) {
      text->source = {.index = index, .next = match->next, .length = match->length};
    }
  }
}

double& NgramDrafter::ShareRight(size_t length) {
  // Lengths 2, 3, 4 to 5, 6 to 8, 9 to 15, more.
  constexpr std::array<size_t, 5> kEnds = {2, 3, 5, 8, 15};
  return share_right_[std::lower_bound(kEnds.begin(), kEnds.end(), length) - kEnds.begin()];
}

std::optional<int32_t> NgramDrafter::Expected(const Text& text, size_t ahead,
                                              absl::Span<const int32_t> guesses) {
  const Source& source = text.source;
  if (source.index == nullptr) return std::nullopt;
  const size_t at = source.next + ahead;
  if (at < source.index->size()) {
    const int32_t token = source.index->token(at);
    return token == NgramIndex::kSeparator ? std::nullopt : std::optional<int32_t>(token);
  }
  // The text repeats itself up to here: it is expected to repeat the guesses, too.
  const size_t behind = at - source.index->size();
  if (source.index != text.index || behind >= guesses.size()) return std::nullopt;
  return guesses[behind];
}

void NgramDrafter::Append(uint64_t request, int32_t token) {
  Text& text = texts_.at(request);
  const std::optional<int32_t> expected = Expected(text, 0, {});
  if (expected) {
    double& share = ShareRight(text.source.length);
    share += ((*expected == token ? 1 : 0) - share) * kLatest;
  }
  text.index->Append(token);
  if (expected == token) {
    ++text.source.next;
    ++text.source.length;
  } else {
    FindSource(&text);
  }
}

std::optional<int32_t> NgramDrafter::Guess(uint64_t request, absl::Span<const int32_t> guesses) {
  const Text& text = texts_.at(request);
  const size_t ahead = guesses.size();
  double right = 1;
  for (size_t i = 0; i <= ahead; ++i) {
    const std::optional<int32_t> expected = Expected(text, i, guesses);
    if (!expected) return std::nullopt;
    // They were given for another source.
    if (i < ahead && *expected != guesses[i]) return std::nullopt;
    right *= ShareRight(text.source.length + i);
    if (i == ahead && (!text.adapts || right >= kWorthwhile)) return expected;
  }
  return std::nullopt;
}

void NgramDrafter::End(uint64_t request) {
  const auto found = texts_.find(request);
  const NgramIndex& text = *found->second.index;
  constexpr size_t kHalf = kRecentTokens / 2;
  const size_t n = std::min(text.size() - found->second.begin, kHalf / 4);
  if (recent_->size() + n + 1 > kHalf) {
    recent_full_ = std::exchange(recent_, std::make_shared<NgramIndex>());
  }
  for (size_t i = text.size() - n; i < text.size(); ++i) recent_->Append(text.token(i));
  recent_->Append(NgramIndex::kSeparator);
  texts_.erase(found);
}

}  // namespace strata
