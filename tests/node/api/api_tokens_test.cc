#include "node/api/api_tokens.h"

#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/api/api_token_file.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class ApiTokensTest : public ::testing::Test {
 protected:
  std::string Add(const std::string& name, const ApiTokenLimits& limits = {}) {
    const absl::StatusOr<Secret> text =
        AddApiToken(path_, {.name = name, .limits = limits, .now = kNow});
    EXPECT_THAT(text, IsOk());
    return text->Reveal();
  }
  ApiTokens::AdmitResult Admit(absl::string_view text, absl::Time now = kNow) {
    return tokens_->Admit({.text = text, .now = now});
  }
  ApiTokens::AdmitResult AdmitStream(absl::string_view text) {
    return tokens_->Admit({.text = text, .stream = true, .now = kNow});
  }

  const std::string path_ = ApiTokenFilePath(testing::MakeTestFolder());
  FakeClock clock_;
  std::optional<ApiTokens> tokens_{std::in_place, path_, &clock_};
};

constexpr auto kRefused = absl::StatusCode::kUnauthenticated;
constexpr auto kLimit = absl::StatusCode::kResourceExhausted;

TEST_F(ApiTokensTest, ATokenIsAdmitted) {
  const std::string text = Add("kitchen");
  const std::string other = Add("garden");
  const ApiTokens::AdmitResult result = Admit(text);
  EXPECT_THAT(result.status, IsOk());
  EXPECT_EQ(result.grant.name(), "kitchen");
  EXPECT_EQ(Admit(other).grant.name(), "garden");
  EXPECT_THAT(Admit(absl::AsciiStrToUpper(text)).status, IsOk());
}

TEST_F(ApiTokensTest, WhatIsKeptForATokenIsLostWithItsText) {
  const std::string text = Add("kitchen");
  const std::string scope = Admit(text).grant.cache_scope();
  EXPECT_EQ(scope.size(), 32u);
  EXPECT_EQ(Admit(text).grant.cache_scope(), scope);
  EXPECT_NE(Admit(Add("garden")).grant.cache_scope(), scope);
  EXPECT_NE(scope, *ApiTokenHash(text)) << "the file tells it";
  // Another token of the same name.
  EXPECT_THAT(RevokeApiToken(path_, "kitchen"), IsOk());
  EXPECT_NE(Admit(Add("kitchen")).grant.cache_scope(), scope);
  EXPECT_EQ(ApiTokens::TokenGrant().cache_scope(), "");
}

TEST_F(ApiTokensTest, ATokenMayDoWhatItsScopesSay) {
  const auto admit = [this](const Secret& text, ApiScope scope) {
    return tokens_->Admit({.text = text.Reveal(), .scope = scope, .now = kNow});
  };
  const auto chat = AddApiToken(path_, {.name = "chat", .now = kNow});
  const auto view = AddApiToken(path_, {.name = "view", .scopes = {.view = true}, .now = kNow});
  const auto admin = AddApiToken(path_, {.name = "admin", .scopes = {.admin = true}, .now = kNow});
  EXPECT_THAT(admit(*chat, ApiScope::kChat).status, IsOk());
  EXPECT_THAT(admit(*chat, ApiScope::kView).status,
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--scope view")));
  EXPECT_THAT(admit(*chat, ApiScope::kAdmin).status, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(admit(*view, ApiScope::kView).status, IsOk());
  EXPECT_THAT(admit(*view, ApiScope::kChat).status, StatusIs(absl::StatusCode::kPermissionDenied));
  for (const ApiScope scope : {ApiScope::kChat, ApiScope::kView, ApiScope::kAdmin}) {
    EXPECT_THAT(admit(*admin, scope).status, IsOk());
  }
  EXPECT_TRUE(admit(*admin, ApiScope::kView).grant.scopes().admin);
}

TEST_F(ApiTokensTest, ALinksCodeAdmitsNobodyButIsExchangedOnce) {
  const auto code = AddLinkCode(path_, kNow);
  ASSERT_THAT(code, IsOk());
  EXPECT_THAT(Admit(code->Reveal()).status, StatusIs(kRefused));
  const auto late = AddLinkCode(path_, kNow);
  EXPECT_THAT(RedeemLinkCode(path_, late->Reveal(), kNow + kLinkTime),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("strata page")));
  const auto again = AddLinkCode(path_, kNow);
  const auto token = RedeemLinkCode(path_, again->Reveal(), kNow);
  ASSERT_THAT(token, IsOk());
  EXPECT_THAT(RedeemLinkCode(path_, again->Reveal(), kNow),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(RedeemLinkCode(path_, token->Reveal(), kNow),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(RedeemLinkCode(path_, Add("kitchen"), kNow),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(RedeemLinkCode(path_, "nonsense", kNow),
              StatusIs(absl::StatusCode::kPermissionDenied));
  tokens_.emplace(path_, &clock_);  // reads the file anew
  const auto admit = [&](absl::Time now) {
    return tokens_->Admit({.text = token->Reveal(), .scope = ApiScope::kAdmin, .now = now}).status;
  };
  EXPECT_THAT(admit(kNow), IsOk());
  EXPECT_THAT(admit(kNow + kPageTokenTime), StatusIs(kRefused));
  // Those that have expired do not fill the file.
  ASSERT_THAT(AddLinkCode(path_, kNow + 2 * kPageTokenTime), IsOk());
  EXPECT_EQ(ReadApiTokens(path_)->size(), 2u);  // that code, and "kitchen"
}

TEST_F(ApiTokensTest, AnythingElseIsRefusedAndNotRepeated) {
  const std::string text = Add("kitchen");
  std::string typo = text;
  typo.back() = typo.back() == '0' ? '1' : '0';
  const std::string stranger =
      AddApiToken(path_ + "-other", {.name = "kitchen", .now = kNow})->Reveal();
  for (const std::string& given : {std::string(), std::string("kitchen"), std::string("sk-1234"),
                                   typo, stranger, text + "0", text.substr(1), text + text}) {
    const ApiTokens::AdmitResult result = Admit(given);
    EXPECT_THAT(result.status, StatusIs(kRefused, "no valid token came with the request")) << given;
    EXPECT_EQ(result.grant.name(), "");
  }
}

TEST_F(ApiTokensTest, WithoutAFileNoRequestIsAdmitted) {
  EXPECT_THAT(Admit("").status, StatusIs(kRefused));
  EXPECT_THAT(Admit(std::string(kApiTokenPrefix)).status, StatusIs(kRefused));
}

TEST_F(ApiTokensTest, TheHashOfATokenIsNoToken) {
  const std::string text = Add("kitchen");
  EXPECT_THAT(Admit(*ApiTokenHash(text)).status, StatusIs(kRefused));
}

TEST_F(ApiTokensTest, ATokenExpires) {
  const std::string text = Add("guest", {.expires = kNow + absl::Hours(1)});
  EXPECT_THAT(Admit(text, kNow + absl::Hours(1) - absl::Seconds(1)).status, IsOk());
  EXPECT_THAT(Admit(text, kNow + absl::Hours(1)).status, StatusIs(kRefused));
}

TEST_F(ApiTokensTest, NewTokensTakeEffectAtOnceAndRevokedOnesASecondLater) {
  const std::string old = Add("old");
  EXPECT_THAT(Admit(old).status, IsOk());
  const std::string made = Add("new");
  EXPECT_THAT(Admit(made).status, IsOk()) << "though the file was looked at just before";
  ASSERT_THAT(RevokeApiToken(path_, "old"), IsOk());
  clock_.AdvanceMs(1000);
  EXPECT_THAT(Admit(old).status, StatusIs(kRefused));
  EXPECT_THAT(Admit(made).status, IsOk());
}

TEST_F(ApiTokensTest, AReusedNameIsAnotherToken) {
  const std::string old = Add("kitchen", {.requests_per_minute = 1});
  EXPECT_THAT(Admit(old).status, IsOk());
  ASSERT_THAT(RevokeApiToken(path_, "kitchen"), IsOk());
  const std::string made = Add("kitchen", {.requests_per_minute = 1});
  clock_.AdvanceMs(1000);
  EXPECT_THAT(Admit(old).status, StatusIs(kRefused));
  EXPECT_THAT(Admit(made).status, IsOk());
}

TEST_F(ApiTokensTest, EachTokenHasItsOwnLimits) {
  const std::string one = Add("one", {.requests_per_minute = 1});
  const std::string other = Add("other", {.requests_per_minute = 1});
  EXPECT_THAT(Admit(one).status, IsOk());
  const ApiTokens::AdmitResult refused = Admit(one);
  EXPECT_THAT(refused.status, StatusIs(kLimit, HasSubstr("1 requests in a minute")));
  EXPECT_EQ(refused.retry_after, absl::Seconds(60));
  EXPECT_THAT(Admit(other).status, IsOk());
  clock_.AdvanceMs(60'000);
  EXPECT_THAT(Admit(one).status, IsOk());
}

TEST_F(ApiTokensTest, AStreamCountsUntilItsGrantIsDestroyed) {
  const std::string text = Add("one", {.streams_max = 1});
  {
    ApiTokens::AdmitResult first = AdmitStream(text);
    EXPECT_THAT(first.status, IsOk());
    EXPECT_THAT(AdmitStream(text).status, StatusIs(kLimit));
    ApiTokens::TokenGrant moved = std::move(first.grant);
    EXPECT_THAT(AdmitStream(text).status, StatusIs(kLimit));
    EXPECT_EQ(moved.name(), "one");
  }
  EXPECT_THAT(AdmitStream(text).status, IsOk());
  EXPECT_THAT(AdmitStream(text).status, IsOk());  // the one before went at once
}

TEST_F(ApiTokensTest, ARevokedTokensStreamGoesOn) {
  const std::string text = Add("one", {.streams_max = 1});
  ApiTokens::AdmitResult stream = AdmitStream(text);
  ASSERT_THAT(stream.status, IsOk());
  ASSERT_THAT(RevokeApiToken(path_, "one"), IsOk());
  clock_.AdvanceMs(1000);
  EXPECT_THAT(AdmitStream(text).status, StatusIs(kRefused));
  EXPECT_EQ(stream.grant.name(), "one");
}

TEST_F(ApiTokensTest, AGrantOutlivesTheTokens) {
  ApiTokens::AdmitResult stream = AdmitStream(Add("one", {.streams_max = 1}));
  ASSERT_THAT(stream.status, IsOk());
  tokens_.reset();
  EXPECT_EQ(stream.grant.name(), "one");
}

TEST_F(ApiTokensTest, AnUnreadableFileAdmitsNoRequestUntilItIsReadable) {
  const std::string text = Add("one");
  EXPECT_THAT(Admit(text).status, IsOk());
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  clock_.AdvanceMs(1000);
  EXPECT_THAT(Admit(text).status,
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("chmod 600"))));
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  clock_.AdvanceMs(1000);
  EXPECT_THAT(Admit(text).status, IsOk());
  std::ofstream(path_) << "nonsense";
  clock_.AdvanceMs(1000);
  EXPECT_THAT(Admit(text).status,
              StatusIs(absl::StatusCode::kUnavailable, Not(HasSubstr("sense"))));
}

TEST_F(ApiTokensTest, ManyThreadsAdmitAtOnce) {
  const std::string text = Add("one", {.requests_per_minute = 100, .streams_max = 1000});
  std::atomic<int> admitted = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        if (AdmitStream(text).status.ok()) ++admitted;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admitted, 100);
}

}  // namespace
}  // namespace strata
