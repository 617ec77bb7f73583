#include "node/api/api_token_file.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::IsOkAndHolds;
using absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

std::string NewTokenFilePath() { return ApiTokenFilePath(testing::MakeTestFolder()); }

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

absl::StatusOr<Secret> Add(const std::string& path, const std::string& name,
                           const ApiTokenLimits& limits = {}) {
  return AddApiToken(path, {.name = name, .limits = limits, .now = kNow});
}

TEST(ApiTokenFile, ANewTokenIsListedWithItsLimits) {
  const std::string path = NewTokenFilePath();
  const absl::StatusOr<Secret> text =
      Add(path, "kitchen",
          {.requests_per_minute = 60, .streams_max = 2, .expires = kNow + absl::Hours(24)});
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(text->Reveal(), StartsWith(kApiTokenPrefix));
  ASSERT_THAT(Add(path, "anna@home"), IsOk());

  const auto tokens = ReadApiTokens(path);
  ASSERT_THAT(tokens, IsOkAndHolds(SizeIs(2)));
  EXPECT_EQ((*tokens)[0].name, "kitchen");
  EXPECT_EQ((*tokens)[0].created, kNow);
  EXPECT_EQ((*tokens)[0].limits.requests_per_minute, 60u);
  EXPECT_EQ((*tokens)[0].limits.streams_max, 2u);
  EXPECT_EQ((*tokens)[0].limits.expires, kNow + absl::Hours(24));
  EXPECT_THAT(ApiTokenHash(text->Reveal()), IsOkAndHolds((*tokens)[0].hash));
  EXPECT_EQ((*tokens)[1].name, "anna@home");
  EXPECT_EQ((*tokens)[1].limits.requests_per_minute, 0u);
  EXPECT_EQ((*tokens)[1].limits.expires, absl::InfiniteFuture());
}

// The token's bytes 0 to 31; computed elsewhere.
TEST(ApiTokenFile, HashesAreStable) {
  const absl::StatusOr<std::string> hash = ApiTokenHash(
      "strata-token-1-000g-40r4-0m30-e209-185g-r38e-1w81-24gk-2gah-c5rr-34d1-p70x-3rfz-bm3r");
  ASSERT_THAT(hash, IsOk());
  EXPECT_EQ(absl::BytesToHexString(*hash),
            "087adc31fc7dead2fc69c7c544c6e961efa263c61598a2adf1e0c847243640a9");
}

TEST(ApiTokenFile, HoldsNoTokenAndIsReadableByItsOwnerOnly) {
  const std::string path = NewTokenFilePath();
  const absl::StatusOr<Secret> text = Add(path, "kitchen");
  ASSERT_THAT(text, IsOk());
  const std::string symbols = text->Reveal().substr(kApiTokenPrefix.size());
  for (size_t i = 0; i + 9 <= symbols.size(); i += 5) {
    EXPECT_THAT(Contents(path), Not(HasSubstr(symbols.substr(i, 9))));
  }
  EXPECT_THAT(Contents(path), Not(HasSubstr(kApiTokenPrefix)));
  struct stat about{};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
}

TEST(ApiTokenFile, WithoutAFileThereAreNoTokens) {
  EXPECT_THAT(ReadApiTokens(NewTokenFilePath()), IsOkAndHolds(IsEmpty()));
}

TEST(ApiTokenFile, ARevokedTokenIsGone) {
  const std::string path = NewTokenFilePath();
  ASSERT_THAT(Add(path, "a"), IsOk());
  ASSERT_THAT(Add(path, "b"), IsOk());
  EXPECT_THAT(RevokeApiToken(path, "a"), IsOk());
  const auto tokens = ReadApiTokens(path);
  ASSERT_THAT(tokens, IsOkAndHolds(SizeIs(1)));
  EXPECT_EQ((*tokens)[0].name, "b");
  EXPECT_THAT(RevokeApiToken(path, "a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no token a")));
  EXPECT_THAT(RevokeApiToken(NewTokenFilePath(), "a"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ApiTokenFile, ANameIsUnique) {
  const std::string path = NewTokenFilePath();
  ASSERT_THAT(Add(path, "a"), IsOk());
  EXPECT_THAT(Add(path, "a"), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(ReadApiTokens(path), IsOkAndHolds(SizeIs(1)));
}

TEST(ApiTokenFile, InvalidNamesAndLimitsAreRefused) {
  const std::string path = NewTokenFilePath();
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a\n"), std::string("a\""), std::string("ä"),
        std::string("../a"), std::string(65, 'a')}) {
    EXPECT_THAT(Add(path, name), StatusIs(absl::StatusCode::kInvalidArgument)) << name;
  }
  EXPECT_THAT(Add(path, "a", {.requests_per_minute = kRequestsPerMinuteMax + 1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Add(path, "a", {.streams_max = kTokenStreamsMax + 1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Add(path, "a", {.expires = kNow}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Add(path, "a", {.expires = absl::FromUnixSeconds(int64_t{1} << 41)}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ReadApiTokens(path), IsOkAndHolds(IsEmpty()));
}

TEST(ApiTokenFile, TheNumberOfTokensIsBounded) {
  const std::string path = NewTokenFilePath();
  std::vector<ApiToken> tokens;
  for (size_t i = 0; i < kApiTokensMax; ++i) {
    tokens.push_back({.name = absl::StrCat("t", i), .hash = std::string(32, 'x'), .created = kNow});
  }
  std::ofstream(path) << FormatApiTokens(tokens);
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(ReadApiTokens(path), IsOkAndHolds(SizeIs(kApiTokensMax)));
  EXPECT_THAT(Add(path, "more"), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(ApiTokenFile, ConcurrentChangesAreNotLost) {
  const std::string path = NewTokenFilePath();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { EXPECT_THAT(Add(path, absl::StrCat("t", i)), IsOk()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(ReadApiTokens(path), IsOkAndHolds(SizeIs(8)));
}

TEST(ApiTokenFile, ADamagedFileIsNeitherReadNorOverwritten) {
  const std::string path = NewTokenFilePath();
  ASSERT_THAT(Add(path, "a"), IsOk());
  const std::string good = Contents(path);
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string("[]"), std::string(10000, '['),
        good.substr(0, good.size() / 2),
        absl::StrReplaceAll(good, {{"\"version\": 1", "\"version\": 2"}}),
        absl::StrReplaceAll(good, {{"\"sha256\": \"", "\"sha256\": \"zz"}}),
        absl::StrReplaceAll(good, {{"1800000000", "-1"}}),
        absl::StrReplaceAll(good, {{"1800000000", "1e300"}}),
        absl::StrReplaceAll(good, {{"1800000000", "18446744073709551615"}}),
        absl::StrReplaceAll(good, {{"\"a\"", "\"\""}}), absl::StrReplaceAll(good, {{"\"a\"", "7"}}),
        absl::StrReplaceAll(good, {{"{\n   ", "{\"streams_max\": true, "}}),
        std::string("\xff\xfe")}) {
    std::ofstream(path) << bad;
    ASSERT_NE(bad, good);
    EXPECT_THAT(ReadApiTokens(path),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path)))
        << bad;
    EXPECT_THAT(Add(path, "b"), StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(Contents(path), bad);
  }
}

TEST(ApiTokenFile, DuplicateNamesAreInvalid) {
  const ApiToken token = {.name = "a", .hash = std::string(32, 'x'), .created = kNow};
  EXPECT_THAT(ParseApiTokens(FormatApiTokens({token})), IsOk());
  EXPECT_THAT(ParseApiTokens(FormatApiTokens({token, token})),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ApiTokenFile, AFileThatOthersMayReadIsRefused) {
  const std::string path = NewTokenFilePath();
  ASSERT_THAT(Add(path, "a"), IsOk());
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(ReadApiTokens(path), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Add(path, "b"), StatusIs(absl::StatusCode::kPermissionDenied));
}

}  // namespace
}  // namespace strata
