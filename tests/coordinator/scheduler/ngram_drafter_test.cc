#include "coordinator/scheduler/ngram_drafter.h"

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduler/ngram_index.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using Tokens = std::vector<int32_t>;

NgramIndex IndexOf(const Tokens& tokens) {
  NgramIndex index;
  for (int32_t token : tokens) index.Append(token);
  return index;
}

// The drafts for a sequence, at most `n`.
Tokens DraftsFor(NgramDrafter* drafter, uint64_t request, size_t n) {
  Tokens drafts;
  while (drafts.size() < n) {
    const std::optional<int32_t> draft = drafter->Draft(request, drafts);
    if (!draft) break;
    drafts.push_back(*draft);
  }
  return drafts;
}

TEST(NgramIndex, FindsTheLongestEndAndTheLastOfEquals) {
  const NgramIndex index = IndexOf({1, 2, 3, 7, 9, 2, 3, 8, 2, 3, 4});
  const auto longest = index.Find(Tokens{1, 2, 3});
  ASSERT_TRUE(longest.has_value());
  EXPECT_EQ(index.tokens()[longest->next], 7);
  EXPECT_EQ(longest->length, 3u);
  const auto last = index.Find(Tokens{5, 2, 3});
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(index.tokens()[last->next], 4);
  EXPECT_EQ(last->length, 2u);
}

TEST(NgramIndex, FindsNothingWithoutTwoTokensAndOneBehind) {
  const NgramIndex index = IndexOf({1, 2, NgramIndex::kSeparator, 3, 4});
  EXPECT_FALSE(index.Find(Tokens{2}).has_value());
  EXPECT_FALSE(index.Find(Tokens{3, 4}).has_value());  // nothing behind
  EXPECT_FALSE(index.Find(Tokens{2, NgramIndex::kSeparator}).has_value());
  EXPECT_FALSE(index.Find(Tokens{1, 2}).has_value());
}

TEST(NgramDrafter, DraftsWhatFollowedBefore) {
  NgramDrafter drafter;
  drafter.Begin({.request = 1, .tokens = Tokens{10, 11, 12, 13, 14, 15, 10, 11}, .adapts = false});
  EXPECT_EQ(DraftsFor(&drafter, 1, 3), (Tokens{12, 13, 14}));
  drafter.Append(1, 12);
  EXPECT_EQ(DraftsFor(&drafter, 1, 2), (Tokens{13, 14}));
  drafter.Append(1, 99);  // wrong, and stood nowhere
  EXPECT_EQ(DraftsFor(&drafter, 1, 2), Tokens());
  EXPECT_EQ(drafter.Draft(1, Tokens{13}), std::nullopt) << "of another source";
}

TEST(NgramDrafter, GoesOnWithItsDraftsWhereATextRepeatsItself) {
  NgramDrafter drafter;
  drafter.Begin({.request = 1, .tokens = Tokens{5, 6, 7, 5, 6, 7, 5, 6}, .adapts = false});
  EXPECT_EQ(DraftsFor(&drafter, 1, 7), (Tokens{7, 5, 6, 7, 5, 6, 7}));
}

TEST(NgramDrafter, KnowsTextsOfItsScopeOnly) {
  NgramDrafter drafter;
  const auto drafts = [&](const char* scope) {
    drafter.Begin({.request = 9, .tokens = Tokens{1, 2}, .adapts = false, .scope = scope});
    const Tokens found = DraftsFor(&drafter, 9, 2);
    drafter.End(9);
    return found;
  };
  drafter.Begin({.request = 1, .tokens = Tokens{1, 2, 3, 4}, .scope = "a"});
  drafter.End(1);
  EXPECT_EQ(drafts("b"), Tokens());
  EXPECT_EQ(drafts("a"), (Tokens{3, 4}));
  // One that is not to be kept is known to nobody, and takes no scope's place.
  drafter.Begin({.request = 2, .tokens = Tokens{1, 2, 8, 9}, .scope = "a", .is_kept = false});
  drafter.End(2);
  EXPECT_EQ(drafts("a"), (Tokens{3, 4}));
  for (size_t i = 0; i < NgramDrafter::kScopesMax; ++i) {
    const std::string scope = absl::StrCat("of another ", i);
    drafter.Begin({.request = 3, .tokens = Tokens{1, 2, 5, 6}, .scope = scope});
    drafter.End(3);
  }
  EXPECT_EQ(drafts("a"), Tokens()) << "there are more scopes than places";
  EXPECT_EQ(drafts("of another 7"), (Tokens{5, 6}));
  drafter.ForgetEnded();
  EXPECT_EQ(drafts("of another 7"), Tokens());
}

TEST(NgramDrafter, KnowsRecentTextsOnly) {
  NgramDrafter drafter;
  drafter.Begin({.request = 1, .tokens = Tokens{1, 2, 3, 4}, .adapts = false});
  drafter.End(1);
  drafter.Begin({.request = 2, .tokens = Tokens{8, 1, 2}, .adapts = false});
  EXPECT_EQ(DraftsFor(&drafter, 2, 5), (Tokens{3, 4}));  // not beyond its end
  drafter.End(2);
  Tokens other(NgramDrafter::kRecentTokens / 8);
  std::iota(other.begin(), other.end(), 1000);
  for (uint64_t request = 3; request < 3 + 8; ++request) {
    drafter.Begin({.request = request, .tokens = other, .adapts = false});
    drafter.End(request);
  }
  drafter.Begin({.request = 20, .tokens = Tokens{8, 1, 2}, .adapts = false});
  EXPECT_EQ(DraftsFor(&drafter, 20, 5), Tokens());
}

TEST(NgramDrafter, BeginsWithThePrediction) {
  NgramDrafter drafter;
  const Tokens prediction = {30, 31, 32, 33, 34, 35};
  drafter.Begin(
      {.request = 1, .tokens = Tokens{1, 2, 3}, .prediction = prediction, .adapts = false});
  EXPECT_EQ(DraftsFor(&drafter, 1, 3), (Tokens{30, 31, 32}));
  for (int32_t token : {30, 31, 99, 33, 34}) drafter.Append(1, token);
  EXPECT_EQ(DraftsFor(&drafter, 1, 3), Tokens{35}) << "found again behind an edit";
}

TEST(NgramDrafter, KeepsBackWhatSeldomProvesRight) {
  NgramDrafter drafter;
  // "1 2" is followed by another token each time.
  Tokens text;
  for (int32_t i = 0; i < 100; ++i) text.insert(text.end(), {1, 2, 1000 + i});
  for (const bool adapts : {true, false}) {
    const uint64_t request = adapts ? 1 : 2;
    drafter.Begin(
        {.request = request, .tokens = Tokens(text.begin(), text.begin() + 3), .adapts = adapts});
    for (size_t i = 3; i < text.size(); ++i) drafter.Append(request, text[i]);
    drafter.Append(request, 1);
    drafter.Append(request, 2);
    EXPECT_EQ(drafter.Draft(request, {}).has_value(), !adapts);
  }
}

}  // namespace
}  // namespace strata
