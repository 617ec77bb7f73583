#include "transport/pairing/pairing.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/pairing/pairing_fixture.h"
#include "transport/pairing/pairing_payload.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using testing::Anna;
using testing::FromHex;
using ::testing::HasSubstr;
using testing::kKnownKeyId;
using testing::KnownKey;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::Rising;

// RFC 7748, 6.1: the private keys, the public ones and the secret.
constexpr char kAlice[] = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
constexpr char kAlicePublic[] = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
constexpr char kBob[] = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb";
constexpr char kBobPublic[] = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
constexpr char kShared[] = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742";

SecretBytes SecretOf(absl::string_view hex) {
  const std::string bytes = FromHex(hex);
  SecretBytes secret(new std::array<uint8_t, kSecretBytes>{});
  std::copy(bytes.begin(), bytes.end(), secret->begin());
  return secret;
}

std::string Hex(const SecretBytes& bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
}

PairingTranscript Known() {
  return {.member_key = FromHex(kAlicePublic),
          .guest_key = FromHex(kBobPublic),
          .member_nonce = Rising(0, 32),
          .guest_nonce = Rising(32, 32),
          .member_name = "anna"};
}

PairingKeys KeysOf(const PairingTranscript& transcript) {
  absl::StatusOr<PairingKeys> keys = DerivePairingKeys(SecretOf(kShared), transcript);
  EXPECT_THAT(keys, IsOk());
  return *std::move(keys);
}

PairingKeyPair Pair(absl::string_view private_key) {
  absl::StatusOr<PairingKeyPair> pair = PairingKeyPair::Of(SecretOf(private_key));
  EXPECT_THAT(pair, IsOk());
  return *std::move(pair);
}

TEST(PairingKeyPair, SharesTheSecretOfTheRfc) {
  const PairingKeyPair alice = Pair(kAlice), bob = Pair(kBob);
  EXPECT_EQ(absl::BytesToHexString(alice.public_key()), kAlicePublic);
  EXPECT_EQ(absl::BytesToHexString(bob.public_key()), kBobPublic);
  const auto of_alice = alice.SharedWith(bob.public_key());
  const auto of_bob = bob.SharedWith(alice.public_key());
  ASSERT_TRUE(of_alice.ok() && of_bob.ok());
  EXPECT_EQ(Hex(*of_alice), kShared);
  EXPECT_EQ(Hex(*of_bob), kShared);
}

TEST(PairingKeyPair, NewOnesDiffer) {
  const auto a = PairingKeyPair::New(), b = PairingKeyPair::New();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->public_key(), b->public_key());
}

// The points of low order and their other spellings, after D. J. Bernstein's list at
// cr.yp.to/ecdh.html.
TEST(PairingKeyPair, KeysThatGiveNoSecretAreRefused) {
  const PairingKeyPair alice = Pair(kAlice);
  for (const char* hex : {"0000000000000000000000000000000000000000000000000000000000000000",
                          "0100000000000000000000000000000000000000000000000000000000000000",
                          "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
                          "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
                          "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                          "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                          "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                          "0000000000000000000000000000000000000000000000000000000000000080"}) {
    EXPECT_THAT(alice.SharedWith(FromHex(hex)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no shared secret")))
        << hex;
  }
  for (size_t size : {0, 31, 33, 4096}) {
    EXPECT_THAT(alice.SharedWith(std::string(size, 'x')).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32 bytes")));
  }
}

// Computed with Python's hashlib and hmac, HKDF written out after RFC 5869; a change here keeps new
// nodes from pairing with old ones and needs another kPairingVersion.
TEST(Pairing, GivesTheKnownValues) {
  const PairingTranscript known = Known();
  EXPECT_EQ(absl::BytesToHexString(*PairingCommitment(known)),
            "0fbaac3bfca27b1a2bf7b85c998c6186db3af243ae4052623d7fb695f0f989c1");
  EXPECT_EQ(*PairingCode(known), "948 312");
  const PairingKeys keys = KeysOf(known);
  EXPECT_EQ(Hex(keys.admit_key),
            "415d7bb09b87c906292c0d9f081a6f8324afa24fbf3592de71438a84f6dc0a17");
  EXPECT_EQ(absl::BytesToHexString(keys.admit_iv), "4655b756e8b5a31b7aa6cf89");
  EXPECT_EQ(absl::BytesToHexString(keys.proof),
            "1ae8d1e2507f535b3afa36ea55a02c53914aa30f347518e691984fb63118577a");
}

TEST(Pairing, GivesTheKnownValuesForOtherNames) {
  PairingTranscript other = Known();
  other.member_name = "Mikas Büro";
  EXPECT_EQ(*PairingCode(other), "652 690");
  EXPECT_EQ(Hex(KeysOf(other).admit_key),
            "ca064d44fd66ea731bc2cdac86749179a55882538f44b6d0fe72eaaea6e0f82b");
}

TEST(Pairing, CodesKeepTheirZeros) {
  PairingTranscript other = Known();
  other.guest_nonce = std::string(32, '\x11');
  EXPECT_EQ(*PairingCode(other), "053 700");  // computed as above
  other.guest_nonce = std::string(32, '\x1a');
  EXPECT_EQ(*PairingCode(other), "036 259");
}

// Sealed with the Python package cryptography.
TEST(Pairing, SealsToTheKnownBytes) {
  const absl::StatusOr<Secret> plain = PairingPayload(Anna(), KnownKey());
  ASSERT_THAT(plain, IsOk());
  EXPECT_EQ(absl::BytesToHexString(*SealPairing(KeysOf(Known()), *plain)),
            "cecbc5287c6f535f02f7f8fcb92b997e77bbb3f1eae9c684003a0a0e2a4573ef315ebd2557dd51e23c2158"
            "c742d3889571484b787bf1f0d8c9d6348928cfbd49404e4d19e0bd4d4e4ee26fd681e31a564cdc40f32a2a"
            "f24eacebcda84caab9568a29e5d3b6f7749b2abe85b82127fa70801588f1fa4bea0fe1956ce68367f54357"
            "f0cc6ab4a6f2");
}

// NIST's "The Galois/Counter Mode of Operation", test case 14.
TEST(Pairing, MatchesNistsTestCase) {
  const PairingKeys zeros = {.admit_key = SecretBytes(new std::array<uint8_t, kSecretBytes>{}),
                             .admit_iv = std::string(12, '\0')};
  EXPECT_EQ(absl::BytesToHexString(*SealPairing(zeros, Secret(std::string(16, '\0')))),
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919");
}

TEST(Pairing, EveryPartOfTheTranscriptCounts) {
  std::set<std::string> codes = {*PairingCode(Known())};
  std::set<std::string> keys = {Hex(KeysOf(Known()).admit_key)};
  std::set<std::string> proofs = {KeysOf(Known()).proof};
  size_t count = 1;
  for (std::string PairingTranscript::* part :
       {&PairingTranscript::member_key, &PairingTranscript::guest_key,
        &PairingTranscript::member_nonce, &PairingTranscript::guest_nonce,
        &PairingTranscript::member_name}) {
    for (size_t at : {size_t{0}, (Known().*part).size() - 1}) {
      PairingTranscript other = Known();
      (other.*part)[at] = static_cast<char>((other.*part)[at] ^ 1);
      codes.insert(*PairingCode(other));
      keys.insert(Hex(KeysOf(other).admit_key));
      proofs.insert(KeysOf(other).proof);
      ++count;
    }
  }
  EXPECT_EQ(codes.size(), count);
  EXPECT_EQ(keys.size(), count);
  EXPECT_EQ(proofs.size(), count);
}

TEST(Pairing, TheCommitmentIsToKeysAndNonce) {
  const std::string commitment = *PairingCommitment(Known());
  for (std::string PairingTranscript::* part :
       {&PairingTranscript::member_key, &PairingTranscript::guest_key,
        &PairingTranscript::guest_nonce}) {
    PairingTranscript other = Known();
    (other.*part)[0] = static_cast<char>((other.*part)[0] ^ 1);
    EXPECT_NE(*PairingCommitment(other), commitment);
  }
}

// 2000 transcripts, always the same: each digit at each place some 200 times.
TEST(PairingCode, DigitsAreSpread) {
  constexpr int kPairings = 2000;
  std::array<std::array<int, 10>, 6> counts{};
  for (int i = 0; i < kPairings; ++i) {
    PairingTranscript transcript = Known();
    transcript.guest_nonce[0] = static_cast<char>(i);
    transcript.guest_nonce[1] = static_cast<char>(i >> 8);
    std::string code = *PairingCode(transcript);
    ASSERT_THAT(code, MatchesRegex("[0-9][0-9][0-9] [0-9][0-9][0-9]"));
    code.erase(3, 1);
    for (size_t place = 0; place < code.size(); ++place) {
      ++counts[place][static_cast<size_t>(code[place] - '0')];
    }
  }
  for (const std::array<int, 10>& place : counts) {
    double chi_square = 0;
    for (const int count : place) {
      const double off = count - kPairings / 10.0;
      chi_square += off * off / (kPairings / 10.0);
    }
    EXPECT_LT(chi_square, 30);  // of 9 degrees of freedom: 4 in 10,000 are higher
  }
}

TEST(PairingName, IsTextOfSomeLength) {
  EXPECT_THAT(CheckPairingName("name", "anna"), IsOk());
  EXPECT_THAT(CheckPairingName("name", "Mikas Büro"), IsOk());
  EXPECT_THAT(CheckPairingName("name", std::string(kPairingNameBytesMax, 'a')), IsOk());
  for (const std::string& name :
       {std::string(), std::string(kPairingNameBytesMax + 1, 'a'), std::string("a\nb"),
        std::string("\x1b[2J"), std::string("a\0b", 3), std::string("a\x7f"),
        std::string("\xc2\x85"), std::string("\xc2"), std::string("\xff")}) {
    EXPECT_THAT(CheckPairingName("name", name),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name")))
        << absl::CHexEscape(name);
  }
}

TEST(PairingPayload, ComesBack) {
  const absl::StatusOr<Secret> plain = PairingPayload(Anna(), KnownKey());
  ASSERT_THAT(plain, IsOk());
  const auto sealed = SealPairing(KeysOf(Known()), *plain);
  ASSERT_THAT(sealed, IsOk());
  EXPECT_LE(sealed->size(), kPairingSealedBytesMax);
  const absl::StatusOr<Secret> unsealed = UnsealPairing(KeysOf(Known()), *sealed);
  ASSERT_THAT(unsealed, IsOk());
  const absl::StatusOr<PairingPayloadContent> read = ReadPairingPayload(*unsealed);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->key.id(), kKnownKeyId);
  EXPECT_EQ(read->from.node_id, Anna().node_id);
  EXPECT_EQ(read->from.cluster, "home");
}

TEST(PairingPayload, TheLongestFits) {
  PairingIdentity from = Anna();
  from.cluster = std::string(kPairingNameBytesMax, 'c');
  const absl::StatusOr<Secret> plain = PairingPayload(from, KnownKey());
  ASSERT_THAT(plain, IsOk());
  const auto sealed = SealPairing(KeysOf(Known()), *plain);
  ASSERT_THAT(sealed, IsOk());
  EXPECT_THAT(UnsealPairing(KeysOf(Known()), *sealed).status(), IsOk());
}

TEST(PairingPayload, ChangedOrForeignPayloadsAreNotOpened) {
  const absl::StatusOr<Secret> plain = PairingPayload(Anna(), KnownKey());
  ASSERT_THAT(plain, IsOk());
  const std::string sealed = *SealPairing(KeysOf(Known()), *plain);
  const PairingKeys keys = KeysOf(Known());
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::string changed = sealed;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    EXPECT_THAT(UnsealPairing(keys, changed).status(),
                StatusIs(absl::StatusCode::kUnauthenticated));
  }
  for (size_t size = 0; size < sealed.size(); ++size) {
    EXPECT_THAT(UnsealPairing(keys, sealed.substr(0, size)).status(),
                StatusIs(absl::StatusCode::kUnauthenticated));
  }
  PairingTranscript other = Known();
  other.member_name = "bert";
  EXPECT_THAT(UnsealPairing(KeysOf(other), sealed).status(),
              StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST(PairingPayload, CutOrLongerPayloadsAreRefused) {
  const absl::StatusOr<Secret> plain = PairingPayload(Anna(), KnownKey());
  ASSERT_THAT(plain, IsOk());
  for (size_t size = 0; size < plain->Reveal().size(); ++size) {
    EXPECT_THAT(ReadPairingPayload(Secret(plain->Reveal().substr(0, size))).status(),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  for (const size_t more : {1, 100, 1000}) {
    EXPECT_THAT(
        ReadPairingPayload(Secret(absl::StrCat(plain->Reveal(), std::string(more, '0')))).status(),
        StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(PairingPayload, ErrorsRevealNothingOfTheKey) {
  const absl::StatusOr<Secret> plain = PairingPayload(Anna(), KnownKey());
  ASSERT_THAT(plain, IsOk());
  for (const size_t at : {size_t{0}, size_t{32}, size_t{33}, plain->Reveal().size() - 1}) {
    std::string changed = plain->Reveal();
    changed[at] = '\x01';
    EXPECT_THAT(ReadPairingPayload(Secret(std::move(changed))).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, Not(HasSubstr("000g"))));
  }
}

TEST(PairingIdentity, IsChecked) {
  EXPECT_THAT(CheckPairingIdentity(Anna()), IsOk());
  for (const char* id :
       {"", "0123", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdeg"}) {
    PairingIdentity wrong = Anna();
    wrong.node_id = id;
    EXPECT_THAT(PairingPayload(wrong, KnownKey()).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node id")));
  }
  PairingIdentity wrong = Anna();
  wrong.cluster = "";
  EXPECT_THAT(CheckPairingIdentity(wrong),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cluster")));
}

}  // namespace
}  // namespace strata
