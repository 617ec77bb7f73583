// Guests and members of pairings for tests: on a clock that the test moves by hand, with a record
// of shown codes and admissions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "tests/support/fake_clock.h"
#include "transport/pairing/pairing_guest.h"
#include "transport/pairing/pairing_member.h"

namespace strata::testing {

// The bytes 0 to 31.
inline constexpr char kKnownKey[] =
    "strata-key-1-000g-40r4-0m30-e209-185g-r38e-1w81-24gk-2gah-c5rr-34d1-p70x-3rfh-2j9b";
inline constexpr char kKnownKeyId[] = "q16hby9mpe9jg5bc";

inline ClusterKey KnownKey() {
  absl::StatusOr<ClusterKey> key = ClusterKey::FromText(kKnownKey);
  CHECK_OK(key.status());
  return *std::move(key);
}

inline PairingIdentity Anna() {
  return {.node_id = "0123456789abcdef0123456789abcdef", .name = "anna", .cluster = "home"};
}

inline std::string FromHex(absl::string_view hex) {
  std::string bytes;
  CHECK(absl::HexStringToBytes(hex, &bytes));
  return bytes;
}

// The bytes from `first` on.
inline std::string Rising(char first, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(first + static_cast<int>(i)));
  return bytes;
}

// A guest whose events are recorded; used by one thread at a time, except `guest`.
struct TestGuest {
  struct Admission {
    std::string cluster_id;
    PairingIdentity from;
  };

  TestGuest()
      : guest(&fake_clock, {.on_code =
                                [this](const std::string& code, const std::string& name) {
                                  codes.push_back(code);
                                  names.push_back(name);
                                },
                            .on_ended = [this](const absl::Status& why) { ends.push_back(why); },
                            .on_admitted =
                                [this](ClusterKey key, const PairingIdentity& from) {
                                  if (keeps.ok()) admitted.push_back({key.id(), from});
                                  return keeps;
                                }}) {}

  FakeClock fake_clock;
  absl::Status keeps;  // what it says to a key
  std::vector<std::string> codes;
  std::vector<std::string> names;
  std::vector<absl::Status> ends;
  std::vector<Admission> admitted;
  PairingGuest guest;
};

inline PairingMember NewMember(const Clock* clock, PairingIdentity self = Anna()) {
  absl::StatusOr<PairingMember> member = PairingMember::New(std::move(self), clock);
  CHECK_OK(member.status());
  return *std::move(member);
}

// Runs the pairing up to the codes. Returns its id.
inline std::string Compare(TestGuest* to, PairingMember* member) {
  const auto begun = to->guest.Begin(*member->MakeBegin());
  CHECK_OK(begun.status());
  const auto disclosed = to->guest.Disclose(*member->OnBegun(*begun));
  CHECK_OK(disclosed.status());
  CHECK_OK(member->OnDisclosed(*disclosed));
  return begun->pairing();
}

}  // namespace strata::testing
