#include "transport/pairing/pairing_member.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "tests/transport/pairing/pairing_fixture.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using testing::Anna;
using testing::Compare;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::KnownKey;
using testing::NewMember;
using ::testing::Not;
using testing::Rising;
using testing::TestGuest;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotNow = absl::StatusCode::kFailedPrecondition;
constexpr auto kNotTrusted = absl::StatusCode::kUnauthenticated;

// Called with each message in transit, numbered from 0.
using Interceptor = std::function<void(int step, Message*)>;
constexpr int kSteps = 6;

struct Outcome {
  absl::Status status;  // the first error
  bool shown = false;   // codes, on both sides
  bool same_code = false;
  bool taken = false;  // the guest has the key
};

// A pairing whose person confirms only the same code.
Outcome PairOver(const Interceptor& intercept) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Outcome outcome;
  int step = 0;
  const auto run = [&]() -> absl::Status {
    auto begin = *member.MakeBegin();
    intercept(step++, &begin);
    auto begun = t.guest.Begin(begin);
    if (!begun.ok()) return begun.status();
    intercept(step++, &*begun);
    auto disclose = member.OnBegun(*begun);
    if (!disclose.ok()) return disclose.status();
    intercept(step++, &*disclose);
    auto disclosed = t.guest.Disclose(*disclose);
    if (!disclosed.ok()) return disclosed.status();
    intercept(step++, &*disclosed);
    if (absl::Status status = member.OnDisclosed(*disclosed); !status.ok()) return status;
    outcome.shown = true;
    outcome.same_code = t.codes.back() == member.code();
    if (!outcome.same_code) return absl::CancelledError("the person says no");
    auto admit = *member.MakeAdmit(KnownKey());
    intercept(step++, &admit);
    auto admitted = t.guest.Admit(admit);
    if (!admitted.ok()) return admitted.status();
    intercept(step++, &*admitted);
    return member.OnAdmitted(*admitted);
  };
  outcome.status = run();
  outcome.taken = !t.admitted.empty();
  return outcome;
}

std::vector<const FieldDescriptor*> FieldsOf(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    fields.push_back(message.GetDescriptor()->field(i));
  }
  return fields;
}

size_t Bytes(const Message& message, const FieldDescriptor* field) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return sizeof(uint32_t);
  return message.GetReflection()->GetString(message, field).size();
}

void FlipBit(Message* message, const FieldDescriptor* field, size_t bit) {
  const google::protobuf::Reflection* const reflection = message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    reflection->SetUInt32(message, field, reflection->GetUInt32(*message, field) ^ 1u << bit);
    return;
  }
  std::string bytes = reflection->GetString(*message, field);
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
  reflection->SetString(message, field, std::move(bytes));
}

TEST(PairingMember, NothingOfTheKeyIsInAnyMessage) {
  const std::string key = testing::kKnownKey;
  const std::string symbols =
      absl::StrReplaceAll(key.substr(kClusterKeyPrefix.size()), {{"-", ""}});
  std::string all;
  const Outcome outcome =
      PairOver([&](int, Message* message) { absl::StrAppend(&all, message->SerializeAsString()); });
  ASSERT_THAT(outcome.status, IsOk());
  EXPECT_TRUE(outcome.same_code && outcome.taken);
  EXPECT_THAT(all, HasSubstr("anna"));
  EXPECT_THAT(all, Not(HasSubstr(kClusterKeyPrefix)));
  EXPECT_THAT(all, Not(HasSubstr("home")));
  EXPECT_THAT(all, Not(HasSubstr(Anna().node_id)));
  for (size_t at = 0; at + 8 <= symbols.size(); ++at) {
    EXPECT_THAT(all, Not(HasSubstr(symbols.substr(at, 8))));
  }
  for (size_t at = 0; at + 5 <= 32; ++at) {
    EXPECT_THAT(all, Not(HasSubstr(Rising(static_cast<char>(at), 5))));
  }
  EXPECT_THAT(absl::AsciiStrToLower(all), Not(HasSubstr(key.substr(13, 9))));
}

// Every seventh bit of every field of every message.
TEST(PairingMember, AChangeOfAnyFieldIsNoticed) {
  for (int step = 0; step < kSteps; ++step) {
    std::vector<const FieldDescriptor*> fields;
    std::vector<size_t> bits;
    PairOver([&](int at, Message* message) {
      if (at != step) return;
      fields = FieldsOf(*message);
      for (const FieldDescriptor* field : fields) bits.push_back(8 * Bytes(*message, field));
    });
    ASSERT_THAT(fields, Not(IsEmpty()));
    for (size_t i = 0; i < fields.size(); ++i) {
      for (size_t bit = i % 7; bit < bits[i]; bit += 7) {
        const Outcome outcome = PairOver([&](int at, Message* message) {
          if (at == step) FlipBit(message, fields[i], bit);
        });
        EXPECT_FALSE(outcome.status.ok()) << fields[i]->full_name() << " bit " << bit;
        // The key had been sent only where the changed message came after it.
        EXPECT_EQ(outcome.taken, step == kSteps - 1) << fields[i]->full_name() << " bit " << bit;
      }
    }
  }
}

TEST(PairingMember, AKeyReplacedInTransitDoesNotMatchTheCommitment) {
  const auto other = PairingKeyPair::New();
  ASSERT_THAT(other.status(), IsOk());
  const Outcome of_member = PairOver([&](int step, Message* message) {
    if (step == 0) {
      static_cast<wire::PairingBeginRequest*>(message)->set_member_key(other->public_key());
    }
  });
  EXPECT_THAT(of_member.status, StatusIs(kNotTrusted));
  EXPECT_FALSE(of_member.shown);
  const Outcome of_guest = PairOver([&](int step, Message* message) {
    if (step == 1) {
      static_cast<wire::PairingBeginResponse*>(message)->set_guest_key(other->public_key());
    }
  });
  EXPECT_THAT(of_guest.status, StatusIs(kNotTrusted));
  EXPECT_FALSE(of_guest.shown);
}

// An attacker with keys of his own towards both sides, who follows the protocol with either.
TEST(PairingMember, ManInTheMiddleGetsOtherCodes) {
  int differ = 0;
  // Once in 10^6 they are the same; twice would be no coincidence.
  for (int i = 0; i < 2; ++i) {
    TestGuest guest, mallory;
    PairingMember member = NewMember(&guest.fake_clock);
    PairingMember mallorys = NewMember(&guest.fake_clock);
    Compare(&mallory, &member);
    Compare(&guest, &mallorys);
    EXPECT_EQ(member.code(), mallory.codes.back());
    EXPECT_EQ(mallorys.code(), guest.codes.back());
    differ += member.code() != guest.codes.back();
  }
  EXPECT_GE(differ, 1);
}

TEST(PairingMember, APayloadSealedForOneGuestIsUselessToAnother) {
  TestGuest guest, mallory;
  PairingMember member = NewMember(&guest.fake_clock);
  PairingMember mallorys = NewMember(&guest.fake_clock);
  const std::string to_mallory = Compare(&mallory, &member);
  const std::string to_guest = Compare(&guest, &mallorys);
  wire::PairingAdmitRequest admit = *member.MakeAdmit(KnownKey());
  EXPECT_EQ(admit.pairing(), to_mallory);
  admit.set_pairing(to_guest);
  EXPECT_THAT(guest.guest.Admit(admit).status(), StatusIs(kNotTrusted));
  EXPECT_THAT(guest.admitted, IsEmpty());
}

TEST(PairingMember, ANameReplacedInTransitMakesOtherCodes) {
  int differ = 0;
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = PairOver([&](int step, Message* message) {
      if (step == 0) static_cast<wire::PairingBeginRequest*>(message)->set_member_name("bert");
    });
    EXPECT_TRUE(outcome.shown);
    differ += !outcome.same_code;
  }
  EXPECT_GE(differ, 1);
}

TEST(PairingMember, ANonceThatWasNotCommittedToIsRefused) {
  const Outcome outcome = PairOver([&](int step, Message* message) {
    if (step == 3) {
      static_cast<wire::PairingDiscloseResponse*>(message)->set_guest_nonce(Rising(0, 32));
    }
  });
  EXPECT_THAT(outcome.status, StatusIs(kNotTrusted, HasSubstr("in the middle")));
  EXPECT_FALSE(outcome.shown);
}

TEST(PairingMember, ItsOwnKeyComingBackIsRefused) {
  std::string own;
  const Outcome outcome = PairOver([&](int step, Message* message) {
    if (step == 0) own = static_cast<wire::PairingBeginRequest*>(message)->member_key();
    if (step == 1) static_cast<wire::PairingBeginResponse*>(message)->set_guest_key(own);
  });
  EXPECT_THAT(outcome.status, StatusIs(kInvalid, HasSubstr("own")));
}

TEST(PairingMember, RefusesFieldsOfAnotherSizeAndKeysThatGiveNoSecret) {
  const auto with = [](int at, const std::string& field, const std::string& value) {
    return PairOver([&](int step, Message* message) {
             if (step != at) return;
             message->GetReflection()->SetString(
                 message, message->GetDescriptor()->FindFieldByName(field), value);
           })
        .status;
  };
  for (const size_t size : {0, 15, 31, 33, 100'000}) {
    const std::string wrong(size, 'x');
    EXPECT_THAT(with(1, "pairing", wrong), StatusIs(kInvalid, HasSubstr("pairing")));
    EXPECT_THAT(with(1, "guest_key", wrong), StatusIs(kInvalid, HasSubstr("guest_key")));
    EXPECT_THAT(with(1, "commitment", wrong), StatusIs(kInvalid, HasSubstr("commitment")));
    EXPECT_THAT(with(3, "guest_nonce", wrong), StatusIs(kInvalid, HasSubstr("guest_nonce")));
    EXPECT_THAT(with(5, "proof", wrong), StatusIs(kNotTrusted));
  }
  EXPECT_THAT(with(1, "guest_key", std::string(32, '\0')), StatusIs(kInvalid));
}

TEST(PairingMember, RefusesCallsOutOfOrder) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  EXPECT_THAT(member.OnBegun({}).status(), StatusIs(kNotNow));
  EXPECT_THAT(member.OnDisclosed({}), StatusIs(kNotNow));
  EXPECT_THAT(member.MakeAdmit(KnownKey()).status(), StatusIs(kNotNow));
  EXPECT_THAT(member.OnAdmitted({}), StatusIs(kNotNow));
  EXPECT_THAT(member.MakeRefuse().status(), StatusIs(kNotNow));

  PairingMember other = NewMember(&t.fake_clock);
  const auto begun = t.guest.Begin(*other.MakeBegin());
  EXPECT_THAT(other.MakeBegin().status(), StatusIs(kNotNow));
  EXPECT_THAT(other.MakeAdmit(KnownKey()).status(), StatusIs(kNotNow));
  const auto disclosed = t.guest.Disclose(*other.OnBegun(*begun));
  EXPECT_THAT(other.OnBegun(*begun).status(), StatusIs(kNotNow));
  EXPECT_THAT(other.MakeAdmit(KnownKey()).status(), StatusIs(kNotNow));
  EXPECT_EQ(other.code(), "");
  ASSERT_THAT(other.OnDisclosed(*disclosed), IsOk());
  EXPECT_THAT(other.OnDisclosed(*disclosed), StatusIs(kNotNow));
  const auto admitted = t.guest.Admit(*other.MakeAdmit(KnownKey()));
  EXPECT_THAT(other.MakeAdmit(KnownKey()).status(), StatusIs(kNotNow));
  ASSERT_THAT(other.OnAdmitted(*admitted), IsOk());
  EXPECT_THAT(other.OnAdmitted(*admitted), StatusIs(kNotNow));
}

TEST(PairingMember, AfterAnErrorThereIsNoKeyToGive) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  const auto begun = t.guest.Begin(*member.MakeBegin());
  auto disclosed = t.guest.Disclose(*member.OnBegun(*begun));
  auto wrong = *disclosed;
  wrong.set_guest_nonce(Rising(0, 32));
  EXPECT_THAT(member.OnDisclosed(wrong), StatusIs(kNotTrusted));
  EXPECT_THAT(member.OnDisclosed(*disclosed), StatusIs(kNotNow));
  EXPECT_THAT(member.MakeAdmit(KnownKey()).status(), StatusIs(kNotNow));
  EXPECT_EQ(member.code(), "");
  EXPECT_THAT(member.MakeRefuse().status(), IsOk());
}

TEST(PairingMember, AfterARefusalThereIsNoKeyToGive) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  EXPECT_THAT(member.MakeRefuse().status(), IsOk());
  EXPECT_EQ(member.code(), "");
  EXPECT_THAT(member.MakeAdmit(KnownKey()).status(), StatusIs(kNotNow));
  EXPECT_THAT(member.MakeRefuse().status(), StatusIs(kNotNow));
}

TEST(PairingMember, GivesNoKeyAfterTwoMinutes) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  t.fake_clock.AdvanceMs(120'000);
  EXPECT_THAT(member.MakeAdmit(KnownKey()).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("120 s")));
  EXPECT_EQ(member.code(), "");
}

TEST(PairingMember, TrustsTheGuestsProofHoweverLateItComes) {
  TestGuest t;
  PairingMember member = NewMember(&t.fake_clock);
  Compare(&t, &member);
  t.fake_clock.AdvanceMs(119'999);
  const auto admitted = t.guest.Admit(*member.MakeAdmit(KnownKey()));
  ASSERT_THAT(admitted.status(), IsOk());
  t.fake_clock.AdvanceMs(10'000);
  EXPECT_THAT(member.OnAdmitted(*admitted), IsOk());
}

TEST(PairingMember, NeedsAValidIdentity) {
  TestGuest t;
  PairingIdentity nobody = Anna();
  nobody.name = "an\nna";
  EXPECT_THAT(PairingMember::New(nobody, &t.fake_clock).status(),
              StatusIs(kInvalid, HasSubstr("name")));
}

}  // namespace
}  // namespace strata
