#include "coordinator/scheduler/ngram_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace strata {
namespace {

// A draft that is right less often than this, those before it included, is kept back: the stages
// would compute it, and draw power, for too little.
constexpr double kWorthwhile = 0.2;
// The beginning of a prediction counts as a place that so many tokens agree with.
constexpr size_t kPredictionLength = 4;
constexpr double kLatest = 1.0 / 32;  // weight of the latest outcome

}  // namespace

void NgramDrafter::Begin(const Sequence& sequence) {
  State& state = states_[sequence.request];
  state = {.index = std::make_shared<NgramIndex>(),
           .adapts = sequence.adapts,
           .scope = std::string(sequence.scope),
           .is_kept = sequence.is_kept};
  for (int32_t token : sequence.prediction) state.index->Append(token);
  if (!sequence.prediction.empty()) state.index->Append(NgramIndex::kSeparator);
  state.begin = state.index->tokens().size();
  for (int32_t token : sequence.tokens) state.index->Append(token);
  if (sequence.prediction.empty()) {
    FindSource(&state);
  } else {
    // The answer repeats its prediction from the beginning on.
    state.source = {.index = state.index, .length = kPredictionLength};
  }
}

void NgramDrafter::FindSource(State* state) const {
  state->source = {};
  const absl::Span<const int32_t> sequence = state->index->tokens().subspan(state->begin);
  std::vector<std::shared_ptr<NgramIndex>> indexes = {state->index};
  if (const auto recent = recent_.find(state->scope); recent != recent_.end()) {
    indexes.push_back(recent->second.half);
    indexes.push_back(recent->second.full);
  }
  for (const auto& index : indexes) {
    const auto match = index->Find(sequence);
    if (match && match->length > state->source.length) {
      state->source = {.index = index, .next = match->next, .length = match->length};
    }
  }
}

double& NgramDrafter::ShareRight(size_t length) {
  // Lengths 2, 3, 4 to 5, 6 to 8, 9 to 15, more.
  constexpr std::array<size_t, 5> kEnds = {2, 3, 5, 8, 15};
  return share_right_[std::lower_bound(kEnds.begin(), kEnds.end(), length) - kEnds.begin()];
}

std::optional<int32_t> NgramDrafter::Expected(const State& state, size_t ahead,
                                              absl::Span<const int32_t> drafts) {
  const Source& source = state.source;
  if (source.index == nullptr) return std::nullopt;
  const absl::Span<const int32_t> tokens = source.index->tokens();
  const size_t at = source.next + ahead;
  if (at < tokens.size()) {
    return tokens[at] == NgramIndex::kSeparator ? std::nullopt : std::optional<int32_t>(tokens[at]);
  }
  // The sequence repeats itself up to here: it is expected to repeat the drafts, too.
  const size_t behind = at - tokens.size();
  if (source.index != state.index || behind >= drafts.size()) return std::nullopt;
  return drafts[behind];
}

void NgramDrafter::Append(uint64_t request, int32_t token) {
  State& state = states_.at(request);
  const std::optional<int32_t> expected = Expected(state, 0, {});
  if (expected) {
    double& share = ShareRight(state.source.length);
    share += ((*expected == token ? 1 : 0) - share) * kLatest;
  }
  state.index->Append(token);
  if (expected == token) {
    ++state.source.next;
    ++state.source.length;
  } else {
    FindSource(&state);
  }
}

std::optional<int32_t> NgramDrafter::Draft(uint64_t request, absl::Span<const int32_t> drafts) {
  const State& state = states_.at(request);
  double right = ShareRight(state.source.length + drafts.size());
  for (size_t i = 0; i < drafts.size(); ++i) {
    // Else they were given for another source.
    if (Expected(state, i, drafts) != drafts[i]) return std::nullopt;
    right *= ShareRight(state.source.length + i);
  }
  if (state.adapts && right < kWorthwhile) return std::nullopt;
  return Expected(state, drafts.size(), drafts);
}

void NgramDrafter::End(uint64_t request) {
  const auto ended = states_.extract(request);
  const State& state = ended.mapped();
  if (!state.is_kept) return;
  Recent& recent = recent_[state.scope];
  recent.used = ++last_used_;
  if (recent_.size() > kScopesMax) {
    const auto used = [](const auto& each) { return each.second.used; };
    recent_.erase(std::ranges::min_element(recent_, {}, used));
  }
  const absl::Span<const int32_t> sequence = state.index->tokens().subspan(state.begin);
  constexpr size_t kHalf = kRecentTokens / 2;
  const auto kept = sequence.last(std::min(sequence.size(), kHalf / 4));
  if (recent.half->tokens().size() + kept.size() + 1 > kHalf) {
    recent.full = std::exchange(recent.half, std::make_shared<NgramIndex>());
  }
  for (int32_t token : kept) recent.half->Append(token);
  recent.half->Append(NgramIndex::kSeparator);
}

}  // namespace strata
