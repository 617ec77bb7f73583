#include "transport/pairing/pairing_guest.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/pairing/pairing_fixture.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using testing::Anna;
using testing::Compare;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kKnownKeyId;
using testing::KnownKey;
using testing::NewMember;
using ::testing::Not;
using testing::Rising;
using testing::TestGuest;

wire::PairingBeginRequest BeginWith(const std::string& key, const std::string& name = "anna") {
  wire::PairingBeginRequest request;
  request.set_version(kPairingVersion);
  request.set_member_key(key);
  request.set_member_name(name);
  return request;
}

wire::PairingBeginRequest NewBegin() {
  const auto pair = PairingKeyPair::New();
  EXPECT_THAT(pair.status(), IsOk());
  return BeginWith(pair->public_key());
}

wire::PairingDiscloseRequest DiscloseOf(const std::string& pairing,
                                        const std::string& nonce = Rising(0, 32)) {
  wire::PairingDiscloseRequest request;
  request.set_pairing(pairing);
  request.set_member_nonce(nonce);
  return request;
}

wire::PairingAdmitRequest AdmitOf(const std::string& pairing,
                                  const std::string& sealed = std::string(100, 's')) {
  wire::PairingAdmitRequest request;
  request.set_pairing(pairing);
  request.set_sealed(sealed);
  return request;
}

wire::PairingRefuseRequest RefuseOf(const std::string& pairing) {
  wire::PairingRefuseRequest request;
  request.set_pairing(pairing);
  return request;
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotNow = absl::StatusCode::kFailedPrecondition;
constexpr auto kLater = absl::StatusCode::kResourceExhausted;

TEST(PairingGuest, TakesTheKeyOfTheMemberWithTheSameCode) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  EXPECT_THAT(t.codes, ElementsAre(member.code()));
  EXPECT_THAT(t.names, ElementsAre("anna"));
  const auto answer = t.guest.Admit(*member.MakeAdmit(KnownKey()));
  ASSERT_THAT(answer.status(), IsOk());
  EXPECT_THAT(member.OnAdmitted(*answer), IsOk());
  ASSERT_EQ(t.admitted.size(), 1u);
  EXPECT_EQ(t.admitted[0].cluster_id, kKnownKeyId);
  EXPECT_EQ(t.admitted[0].from.node_id, Anna().node_id);
  EXPECT_EQ(t.admitted[0].from.name, "anna");
  EXPECT_EQ(t.admitted[0].from.cluster, "home");
  EXPECT_THAT(t.ends, IsEmpty());
}

// A member implemented here from the description in pairing.h.
TEST(PairingGuest, FollowsTheDerivation) {
  TestGuest t;
  const auto own = PairingKeyPair::New();
  ASSERT_THAT(own.status(), IsOk());
  const auto begun = t.guest.Begin(BeginWith(own->public_key(), "Mikas Büro"));
  ASSERT_THAT(begun.status(), IsOk());
  const auto disclosed = t.guest.Disclose(DiscloseOf(begun->pairing()));
  ASSERT_THAT(disclosed.status(), IsOk());
  const PairingTranscript transcript = {.member_key = own->public_key(),
                                        .guest_key = begun->guest_key(),
                                        .member_nonce = Rising(0, 32),
                                        .guest_nonce = disclosed->guest_nonce(),
                                        .member_name = "Mikas Büro"};
  EXPECT_EQ(*PairingCommitment(transcript), begun->commitment());
  EXPECT_THAT(t.codes, ElementsAre(*PairingCode(transcript)));
  const auto keys = DerivePairingKeys(*own->SharedWith(begun->guest_key()), transcript);
  ASSERT_THAT(keys.status(), IsOk());
  const absl::StatusOr<Secret> admission = PairingPayload(Anna(), KnownKey());
  ASSERT_THAT(admission.status(), IsOk());
  const auto admitted = t.guest.Admit(AdmitOf(begun->pairing(), *SealPairing(*keys, *admission)));
  ASSERT_THAT(admitted.status(), IsOk());
  EXPECT_EQ(admitted->proof(), keys->proof);
  ASSERT_EQ(t.admitted.size(), 1u);
  EXPECT_EQ(t.admitted[0].from.name, "Mikas Büro");
}

TEST(PairingGuest, NothingIsTheSameInTwoPairings) {
  TestGuest t;
  const wire::PairingBeginRequest request = NewBegin();
  const auto one = t.guest.Begin(request);
  ASSERT_THAT(one.status(), IsOk());
  const auto one_nonce = t.guest.Disclose(DiscloseOf(one->pairing()));
  ASSERT_THAT(t.guest.Refuse(RefuseOf(one->pairing())).status(), IsOk());
  t.fake_clock.AdvanceMs(1000);
  const auto two = t.guest.Begin(request);
  ASSERT_THAT(two.status(), IsOk());
  const auto two_nonce = t.guest.Disclose(DiscloseOf(two->pairing()));
  ASSERT_TRUE(one_nonce.ok() && two_nonce.ok());
  EXPECT_NE(one->pairing(), two->pairing());
  EXPECT_NE(one->guest_key(), two->guest_key());
  EXPECT_NE(one->commitment(), two->commitment());
  EXPECT_NE(one_nonce->guest_nonce(), two_nonce->guest_nonce());
}

TEST(PairingGuest, RefusesFieldsOfAnotherSize) {
  TestGuest t;
  for (const size_t size : {0, 31, 33, 100'000}) {
    EXPECT_THAT(t.guest.Begin(BeginWith(std::string(size, 'k'))).status(),
                StatusIs(kInvalid, HasSubstr("member_key")));
  }
  for (const std::string& name : {std::string(), std::string(65, 'a'), std::string("a\x1b[2J"),
                                  std::string("\xff\xfe"), std::string(100'000, 'a')}) {
    EXPECT_THAT(t.guest.Begin(BeginWith(std::string(32, 'k'), name)).status(),
                StatusIs(kInvalid, HasSubstr("member_name")));
  }
  // None of these counted as a beginning.
  const auto begun = t.guest.Begin(NewBegin());
  ASSERT_THAT(begun.status(), IsOk());
  for (const size_t size : {0, 15, 17, 100'000}) {
    const std::string id(size, 'i');
    EXPECT_THAT(t.guest.Disclose(DiscloseOf(id)).status(),
                StatusIs(kInvalid, HasSubstr("pairing")));
    EXPECT_THAT(t.guest.Admit(AdmitOf(id)).status(), StatusIs(kInvalid, HasSubstr("pairing")));
    EXPECT_THAT(t.guest.Refuse(RefuseOf(id)).status(), StatusIs(kInvalid, HasSubstr("pairing")));
  }
  for (const size_t size : {0, 31, 33, 100'000}) {
    EXPECT_THAT(t.guest.Disclose(DiscloseOf(begun->pairing(), std::string(size, 'n'))).status(),
                StatusIs(kInvalid, HasSubstr("member_nonce")));
  }
  ASSERT_THAT(t.guest.Disclose(DiscloseOf(begun->pairing())).status(), IsOk());
  for (const size_t size : {size_t{0}, kPairingSealedBytesMax + 1, size_t{100'000}}) {
    EXPECT_THAT(t.guest.Admit(AdmitOf(begun->pairing(), std::string(size, 's'))).status(),
                StatusIs(kInvalid, HasSubstr("sealed")));
  }
  EXPECT_THAT(t.ends, IsEmpty());
}

TEST(PairingGuest, RefusesAnotherVersion) {
  TestGuest t;
  for (const uint32_t version : {0u, kPairingVersion + 1, UINT32_MAX}) {
    wire::PairingBeginRequest request = NewBegin();
    request.set_version(version);
    EXPECT_THAT(t.guest.Begin(request).status(), StatusIs(kNotNow, HasSubstr("version")));
  }
}

TEST(PairingGuest, RefusesAKeyThatGivesNoSecretAndCountsItAsABeginning) {
  TestGuest t;
  EXPECT_THAT(t.guest.Begin(BeginWith(std::string(32, '\0'))).status(),
              StatusIs(kInvalid, HasSubstr("no shared secret")));
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), StatusIs(kLater, HasSubstr("1 s")));
  t.fake_clock.AdvanceMs(1000);
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), IsOk());
}

TEST(PairingGuest, RefusesCallsOutOfOrder) {
  TestGuest t;
  const std::string nobody(kPairingIdBytes, 'x');
  EXPECT_THAT(t.guest.Disclose(DiscloseOf(nobody)).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Admit(AdmitOf(nobody)).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Refuse(RefuseOf(nobody)).status(), StatusIs(kNotNow));
  const auto begun = t.guest.Begin(NewBegin());
  ASSERT_THAT(begun.status(), IsOk());
  EXPECT_THAT(t.guest.Admit(AdmitOf(begun->pairing())).status(),
              StatusIs(kNotNow, HasSubstr("nonces must be sent before")));
  ASSERT_THAT(t.guest.Disclose(DiscloseOf(begun->pairing())).status(), IsOk());
  // Neither a repeat nor another pairing's.
  EXPECT_THAT(t.guest.Disclose(DiscloseOf(begun->pairing())).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Disclose(DiscloseOf(begun->pairing(), Rising(1, 32))).status(),
              StatusIs(kNotNow));
  EXPECT_EQ(t.codes.size(), 1u);
}

TEST(PairingGuest, ACallForAnotherPairingChangesNothing) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  const std::string other(kPairingIdBytes, 'x');
  EXPECT_THAT(t.guest.Disclose(DiscloseOf(other)).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Admit(AdmitOf(other)).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Refuse(RefuseOf(other)).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), StatusIs(kLater));
  EXPECT_THAT(t.guest.Admit(*member.MakeAdmit(KnownKey())).status(), IsOk());
}

TEST(PairingGuest, ReplaysOfAPairingDoNothing) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  const auto begin = *member.MakeBegin();
  const auto begun = t.guest.Begin(begin);
  const auto disclose = *member.OnBegun(*begun);
  ASSERT_THAT(member.OnDisclosed(*t.guest.Disclose(disclose)), IsOk());
  const auto admit = *member.MakeAdmit(KnownKey());
  t.keeps = absl::InternalError("the disk is full");
  EXPECT_THAT(t.guest.Admit(admit).status(),
              StatusIs(absl::StatusCode::kInternal, Not(HasSubstr("disk"))));
  EXPECT_THAT(t.ends, ElementsAre(StatusIs(absl::StatusCode::kInternal, HasSubstr("disk"))));
  t.keeps = absl::OkStatus();
  EXPECT_THAT(t.guest.Disclose(disclose).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Admit(admit).status(), StatusIs(kNotNow));
  // In a pairing that began with the same messages.
  t.fake_clock.AdvanceMs(1000);
  const auto again = t.guest.Begin(begin);
  ASSERT_THAT(again.status(), IsOk());
  ASSERT_THAT(t.guest.Disclose(DiscloseOf(again->pairing(), disclose.member_nonce())).status(),
              IsOk());
  EXPECT_THAT(t.guest.Admit(AdmitOf(again->pairing(), admit.sealed())).status(),
              StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(t.admitted, IsEmpty());
}

TEST(PairingGuest, APayloadNotSealedByTheMemberEndsThePairing) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  const std::string id = Compare(&t, &member);
  EXPECT_THAT(t.guest.Admit(AdmitOf(id)).status(), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(t.ends, ElementsAre(StatusIs(absl::StatusCode::kUnauthenticated)));
  EXPECT_THAT(t.guest.Admit(*member.MakeAdmit(KnownKey())).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.admitted, IsEmpty());
}

TEST(PairingGuest, ASealedPayloadWithoutAKeyEndsThePairing) {
  TestGuest t;
  const auto own = PairingKeyPair::New();
  const auto begun = t.guest.Begin(BeginWith(own->public_key()));
  const auto disclosed = t.guest.Disclose(DiscloseOf(begun->pairing()));
  ASSERT_THAT(disclosed.status(), IsOk());
  const auto keys = DerivePairingKeys(*own->SharedWith(begun->guest_key()),
                                      {.member_key = own->public_key(),
                                       .guest_key = begun->guest_key(),
                                       .member_nonce = Rising(0, 32),
                                       .guest_nonce = disclosed->guest_nonce(),
                                       .member_name = "anna"});
  ASSERT_THAT(keys.status(), IsOk());
  const std::string sealed = *SealPairing(*keys, Secret(std::string(100, 'x')));
  EXPECT_THAT(t.guest.Admit(AdmitOf(begun->pairing(), sealed)).status(), StatusIs(kInvalid));
  EXPECT_THAT(t.ends, ElementsAre(StatusIs(kInvalid)));
  EXPECT_THAT(t.admitted, IsEmpty());
}

TEST(PairingGuest, TakesOneAtATimeUntilThatIsSilentForAMinute) {
  TestGuest t;
  PairingMember first = NewMember(&t.fake_clock);
  Compare(&t, &first);
  t.fake_clock.AdvanceMs(20'000);
  EXPECT_THAT(
      t.guest.Begin(NewBegin()).status(),
      StatusIs(kLater, HasSubstr("another machine is pairing with this one: try again in 40 s")));
  t.fake_clock.AdvanceMs(39'999);
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), StatusIs(kLater));
  EXPECT_THAT(t.ends, IsEmpty());
  t.fake_clock.AdvanceMs(1);
  PairingMember second = NewMember(&t.fake_clock);
  Compare(&t, &second);
  EXPECT_THAT(t.ends, ElementsAre(StatusIs(absl::StatusCode::kAborted)));
  EXPECT_THAT(t.guest.Admit(*first.MakeAdmit(KnownKey())).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Admit(*second.MakeAdmit(KnownKey())).status(), IsOk());
}

TEST(PairingGuest, AFailedBeginReplacesNoPairing) {
  TestGuest t;
  PairingMember first = NewMember(&t.fake_clock);
  Compare(&t, &first);
  t.fake_clock.AdvanceMs(60'000);
  EXPECT_THAT(t.guest.Begin(BeginWith(std::string(32, '\0'))).status(), StatusIs(kInvalid));
  EXPECT_THAT(t.guest.Admit(*first.MakeAdmit(KnownKey())).status(), IsOk());
}

TEST(PairingGuest, EndsAfterTwoMinutes) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  t.fake_clock.AdvanceMs(119'999);
  t.guest.Tick();
  EXPECT_THAT(t.ends, IsEmpty());
  const auto admit = *member.MakeAdmit(KnownKey());
  t.fake_clock.AdvanceMs(1);
  t.guest.Tick();
  EXPECT_THAT(t.ends, ElementsAre(StatusIs(absl::StatusCode::kDeadlineExceeded)));
  EXPECT_THAT(t.guest.Admit(admit).status(), StatusIs(kNotNow));
}

TEST(PairingGuest, EndsAfterTwoMinutesWithoutATick) {
  TestGuest t;
  const auto begun = t.guest.Begin(NewBegin());
  ASSERT_THAT(begun.status(), IsOk());
  t.fake_clock.AdvanceMs(119'999);
  ASSERT_THAT(t.guest.Disclose(DiscloseOf(begun->pairing())).status(), IsOk());
  t.fake_clock.AdvanceMs(1);
  EXPECT_THAT(t.guest.Admit(AdmitOf(begun->pairing())).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.ends, ElementsAre(StatusIs(absl::StatusCode::kDeadlineExceeded)));
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), IsOk());
}

TEST(PairingGuest, APairingWithoutACodeEndsUnseen) {
  TestGuest t;
  const auto begun = t.guest.Begin(NewBegin());
  ASSERT_THAT(begun.status(), IsOk());
  t.fake_clock.AdvanceMs(120'000);
  t.guest.Tick();
  EXPECT_THAT(t.guest.Disclose(DiscloseOf(begun->pairing())).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.ends, IsEmpty());
}

TEST(PairingGuest, MayBeRefusedByTheMember) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  const auto refuse = *member.MakeRefuse();
  EXPECT_THAT(t.guest.Refuse(refuse).status(), IsOk());
  EXPECT_THAT(t.ends, ElementsAre(StatusIs(absl::StatusCode::kCancelled)));
  EXPECT_THAT(t.guest.Refuse(refuse).status(), StatusIs(kNotNow));
}

TEST(PairingGuest, BeginsOnceInASecond) {
  TestGuest t;
  const auto begun = t.guest.Begin(NewBegin());
  ASSERT_THAT(t.guest.Refuse(RefuseOf(begun->pairing())).status(), IsOk());
  t.fake_clock.AdvanceMs(999);
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), StatusIs(kLater, HasSubstr("try again in 1 s")));
  t.fake_clock.AdvanceMs(1);
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), IsOk());
}

TEST(PairingGuest, ShowsFiveCodesInTenMinutes) {
  TestGuest t;
  for (size_t i = 0; i < kPairingCodesMax; ++i) {
    PairingMember member = NewMember(&t.fake_clock);
    Compare(&t, &member);
    ASSERT_THAT(t.guest.Refuse(*member.MakeRefuse()).status(), IsOk());
    t.fake_clock.AdvanceMs(1000);
  }
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(),
              StatusIs(kLater, HasSubstr("try again in 595 s")));
  t.fake_clock.AdvanceMs(594'999);
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), StatusIs(kLater));
  t.fake_clock.AdvanceMs(1);
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  EXPECT_EQ(t.codes.size(), kPairingCodesMax + 1);
}

TEST(PairingGuest, AMachineWithAKeyTakesNoOther) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  const std::string id = Compare(&t, &member);
  const auto admit = *member.MakeAdmit(KnownKey());
  ASSERT_THAT(t.guest.Admit(admit).status(), IsOk());
  EXPECT_THAT(t.guest.Admit(admit).status(), StatusIs(kNotNow));
  EXPECT_THAT(t.guest.Refuse(RefuseOf(id)).status(), StatusIs(kNotNow));
  t.fake_clock.AdvanceMs(3'600'000);
  EXPECT_THAT(t.guest.Begin(NewBegin()).status(), StatusIs(kNotNow, HasSubstr("key already")));
  EXPECT_EQ(t.admitted.size(), 1u);
}

TEST(PairingGuest, MayTryAgainWhenItCouldNotStoreTheKey) {
  TestGuest t;
  t.keeps = absl::InternalError("the disk is full");
  PairingMember first = NewMember(&t.fake_clock);
  Compare(&t, &first);
  ASSERT_THAT(t.guest.Admit(*first.MakeAdmit(KnownKey())).status(),
              StatusIs(absl::StatusCode::kInternal));
  t.keeps = absl::OkStatus();
  t.fake_clock.AdvanceMs(1000);
  PairingMember second = NewMember(&t.fake_clock);
  Compare(&t, &second);
  EXPECT_THAT(t.guest.Admit(*second.MakeAdmit(KnownKey())).status(), IsOk());
}

TEST(PairingGuest, OneOfManyConcurrentBeginsSucceeds) {
  TestGuest t;
  constexpr size_t kThreads = 8;
  std::array<absl::StatusCode, kThreads> codes{};
  std::vector<std::thread> threads;
  for (absl::StatusCode& code : codes) {
    threads.emplace_back([&t, &code] {
      PairingMember member = NewMember(&t.fake_clock);
      const auto begun = t.guest.Begin(*member.MakeBegin());
      code = begun.status().code();
      if (!begun.ok()) return;
      const auto disclosed = t.guest.Disclose(*member.OnBegun(*begun));
      if (!disclosed.ok() || !member.OnDisclosed(*disclosed).ok()) return;
      t.guest.Admit(*member.MakeAdmit(KnownKey())).IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
  int began = 0;
  for (const absl::StatusCode code : codes) {
    began += code == absl::StatusCode::kOk;
    EXPECT_TRUE(code == absl::StatusCode::kOk || code == kLater || code == kNotNow);
  }
  EXPECT_EQ(began, 1);
  EXPECT_EQ(t.admitted.size(), 1u);
}

TEST(ShownPairingName, LooksLikeNoCode) {
  EXPECT_EQ(ShownPairingName("anna"), "anna");
  EXPECT_EQ(ShownPairingName("pc-4070.home"), "pc-4070.home");
  EXPECT_EQ(ShownPairingName("code 123 45"), "code 123 45");
  EXPECT_EQ(ShownPairingName("code 123 456"), "code ### ###");
  EXPECT_EQ(ShownPairingName("Büro (2)"), "B??ro ?2?");
  EXPECT_EQ(ShownPairingName("\xd9\xa1\xd9\xa2"), "????");  // digits of another script
}

}  // namespace
}  // namespace strata
