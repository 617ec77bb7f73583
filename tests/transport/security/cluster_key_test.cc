#include "transport/security/cluster_key.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// The bytes 0 to 31.
constexpr char kKnown[] =
    "strata-key-1-000g-40r4-0m30-e209-185g-r38e-1w81-24gk-2gah-c5rr-34d1-p70x-3rfh-2j9b";

ClusterKey Known() {
  absl::StatusOr<ClusterKey> key = ClusterKey::FromText(kKnown);
  EXPECT_THAT(key, IsOk());
  return *std::move(key);
}

std::string Derived(const ClusterKey& key, absl::string_view info, size_t size) {
  std::string bytes(size, '\0');
  EXPECT_THAT(key.Derive(info, absl::MakeSpan(reinterpret_cast<uint8_t*>(bytes.data()), size)),
              IsOk());
  return absl::BytesToHexString(bytes);
}

TEST(ClusterKey, HasItsKnownText) { EXPECT_EQ(Known().ToText().Reveal(), kKnown); }

// Computed with another implementation of RFC 5869; a change here separates new nodes from old
// ones.
TEST(ClusterKey, GivesTheKnownValues) {
  const ClusterKey key = Known();
  EXPECT_EQ(Derived(key, "cluster id", 10), "b84d15f934b39328156c");
  EXPECT_EQ(key.id(), "q16hby9mpe9jg5bc");
  EXPECT_EQ(Derived(key, "certificate authority ed25519", 32),
            "4f86929b4e38088b1c8b15f064a26d37fe9314df9ae1f3e474fd57d9a03f18a9");
}

TEST(ClusterKey, GivesSomethingElseForEachPurpose) {
  const ClusterKey key = Known();
  EXPECT_NE(Derived(key, "a", 32), Derived(key, "b", 32));
  EXPECT_EQ(Derived(key, "a", 32), Derived(key, "a", 32));
}

TEST(ClusterKey, TooManyBytesAreAnErrorOfOpenssl) {
  std::vector<uint8_t> bytes(256 * 32);
  EXPECT_THAT(Known().Derive("a", absl::MakeSpan(bytes)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("HKDF")));
}

TEST(ClusterKey, NewOnesDiffer) {
  const absl::StatusOr<ClusterKey> a = ClusterKey::New();
  const absl::StatusOr<ClusterKey> b = ClusterKey::New();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->ToText().Reveal(), b->ToText().Reveal());
  EXPECT_NE(a->id(), b->id());
}

TEST(ClusterKey, ComesBackFromItsText) {
  const absl::StatusOr<ClusterKey> key = ClusterKey::New();
  ASSERT_THAT(key, IsOk());
  const Secret text = key->ToText();
  EXPECT_THAT(text.Reveal(), StartsWith(kClusterKeyPrefix));
  const absl::StatusOr<ClusterKey> again = ClusterKey::FromText(text.Reveal());
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->id(), key->id());
  EXPECT_EQ(again->ToText().Reveal(), text.Reveal());
}

TEST(ClusterKey, IdsAreShortAndLowerCase) {
  EXPECT_THAT(Known().id(), MatchesRegex("[0-9a-z]{16}"));
}

TEST(ClusterKey, OneWrongCharacterIsATypoAndNotAnotherKey) {
  std::string text = kKnown;
  text.back() = 'c';
  EXPECT_THAT(ClusterKey::FromText(text),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("typo")));
}

TEST(ClusterKey, OtherThingsAreRefused) {
  const std::string token = absl::StrReplaceAll(kKnown, {{"key", "token"}});
  for (const std::string& text :
       {std::string(), std::string("correct horse battery staple"),
        std::string("strata-key-2-0000"), token, std::string("0123456789abcdef0123456789abcdef")}) {
    EXPECT_THAT(ClusterKey::FromText(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("strata key show")))
        << text;
  }
}

TEST(ClusterKey, IsNotInWhatATestPrints) {
  const ClusterKey key = Known();
  EXPECT_THAT(::testing::PrintToString(key), Not(HasSubstr("0D-0E-0F")));
}

}  // namespace
}  // namespace strata
