// Messages of strangers to a guest: any bytes, in any order, some of them with the id of the
// current pairing, while time passes. Each message is an operation, a length and so many bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/pairing.pb.h"
#include "transport/base/clock.h"
#include "transport/pairing/pairing_guest.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

class HandClock final : public Clock {
 public:
  int64_t NowUs() const override { return now_us; }
  int64_t now_us = 0;
};

// Checks that `status` is one with which a guest may answer a stranger.
void CheckSaid(const absl::Status& status) {
  Check(status.ok() || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
        absl::IsResourceExhausted(status) || absl::IsUnauthenticated(status));
}

// A name beside a code is plain text, and no code.
void CheckName(absl::string_view name) {
  int digits = 0;
  for (const char c : name) {
    Check(c >= ' ' && c <= '~');
    digits += c >= '0' && c <= '9';
  }
  Check(!name.empty() && digits < 6);
}

class Strangers {
 public:
  void Say(uint8_t operation, absl::string_view bytes) {
    // From 4 on with right fields, so that inputs pass the first checks.
    const bool helped = (operation & 4) != 0;
    switch (operation & 3) {
      case 0:
        return Begin(bytes, helped);
      case 1:
        return Disclose(bytes, helped);
      case 2:
        return Admit(bytes, helped);
      default:
        if (helped) {
          clock_.now_us += static_cast<int64_t>(bytes.size()) * 1'000'000;
          return guest_.Tick();
        }
        return Refuse(bytes);
    }
  }

 private:
  template <typename Message>
  static bool Parse(absl::string_view bytes, Message* message) {
    return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  }

  void Begin(absl::string_view bytes, bool helped) {
    wire::PairingBeginRequest request;
    if (helped) {
      request.set_version(kPairingVersion);
      request.set_member_key(std::string(bytes));
      request.mutable_member_key()->resize(kPairingKeyBytes);
      request.set_member_name("a");
    } else if (!Parse(bytes, &request)) {
      return;
    }
    const auto response = guest_.Begin(request);
    CheckSaid(response.status());
    if (!response.ok()) return;
    Check(response->guest_key().size() == kPairingKeyBytes);
    pairing_ = response->pairing();
    began_us_ = clock_.now_us;
  }

  void Disclose(absl::string_view bytes, bool helped) {
    wire::PairingDiscloseRequest request;
    if (helped) {
      request.set_pairing(pairing_);
      request.set_member_nonce(std::string(kPairingNonceBytes, 'n'));
    } else if (!Parse(bytes, &request)) {
      return;
    }
    const size_t shown = codes_;
    const auto response = guest_.Disclose(request);
    CheckSaid(response.status());
    Check(codes_ == shown + (response.ok() ? 1 : 0));
    if (response.ok()) Check(clock_.now_us - began_us_ < kPairingUs);
  }

  void Admit(absl::string_view bytes, bool helped) {
    wire::PairingAdmitRequest request;
    if (helped) {
      request.set_pairing(pairing_);
      request.set_sealed(std::string(bytes));
    } else if (!Parse(bytes, &request)) {
      return;
    }
    // The strangers know no secret.
    const auto response = guest_.Admit(request);
    CheckSaid(response.status());
    Check(!response.ok());
  }

  void Refuse(absl::string_view bytes) {
    wire::PairingRefuseRequest request;
    if (!Parse(bytes, &request)) request.set_pairing(pairing_);
    CheckSaid(guest_.Refuse(request).status());
  }

  HandClock clock_;
  std::string pairing_;
  int64_t began_us_ = 0;
  size_t codes_ = 0;
  PairingGuest guest_{
      &clock_,
      {.on_code =
           [this](const std::string& code, const std::string& name) {
             Check(code.size() == 7);
             CheckName(name);
             ++codes_;
           },
       .on_ended = [](const absl::Status& why) { Check(!why.ok()); },
       .on_admitted = [](ClusterKey, const PairingIdentity&) -> absl::Status { std::abort(); }}};
};

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::Strangers strangers;
  absl::string_view rest(reinterpret_cast<const char*>(data), size);
  while (rest.size() >= 2) {
    const auto operation = static_cast<uint8_t>(rest[0]);
    const auto length = static_cast<uint8_t>(rest[1]);
    rest.remove_prefix(2);
    const absl::string_view bytes = rest.substr(0, length);
    rest.remove_prefix(bytes.size());
    strangers.Say(operation, bytes);
  }
  return 0;
}
