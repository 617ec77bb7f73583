// Heartbeats, one after another, each behind two bytes of its length: a node's membership
// answers or refuses each, keeps within its bounds and follows no other coordinator than it may.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/membership/membership.h"
#include "coordinator/membership/membership_wire.h"

namespace strata {
namespace {

constexpr MembershipOptions kOptions = {.nodes_max = 8};

void Check(bool right) {
  if (!right) std::abort();
}

void CheckRefusal(const absl::Status& status) {
  Check(status.ok() || absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
        absl::IsResourceExhausted(status));
}

class Node {
 public:
  Node() : membership_(kOptions, Self(), now_us_) {}

  void Hear(absl::string_view bytes) {
    wire::Heartbeat wire;
    if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    const absl::StatusOr<Heartbeat> heartbeat = FromWire(wire);
    if (!heartbeat.ok()) {
      CheckRefusal(heartbeat.status());
      return;
    }
    now_us_ += 100'000;
    if (const auto answer = membership_.OnRequest(*heartbeat, now_us_); answer.ok()) {
      Check(FromWire(ToWire(*answer)).ok());
    } else {
      CheckRefusal(answer.status());
    }
    CheckRefusal(membership_.OnReply(*heartbeat, now_us_));
    for (const OutgoingHeartbeat& out : membership_.Tick(now_us_)) {
      Check(FromWire(ToWire(out.message)).ok());
    }
    // A tick may make another one due at once, but not endlessly.
    for (int i = 0; membership_.next_wake_us() <= now_us_; ++i) {
      Check(i < 8);
      (void)membership_.Tick(now_us_);
    }
    const ClusterView& view = membership_.view();
    Check(view.nodes.size() <= kOptions.nodes_max);
    for (const ClusterView::Node& node : view.nodes) {
      Check(node.record.addresses.size() <= kOptions.addresses_max);
    }
    if (view.is_coordinator) Check(view.coordinator == Self().id);
  }

 private:
  static NodeRecord Self() {
    NodeRecord self = {.id = {.high = 1, .low = 1}, .boot = 1};
    self.name = "attic";
    self.cluster = "home";
    self.protocol = 2;
    return self;
  }

  int64_t now_us_ = 1'000'000;
  Membership membership_;
};

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  strata::Node node;
  while (bytes.size() >= 2) {
    const size_t n = static_cast<unsigned char>(bytes[0]) | static_cast<unsigned char>(bytes[1])
                                                                << 8;
    const absl::string_view one = bytes.substr(2, n);
    bytes.remove_prefix(2 + one.size());
    node.Hear(one);
  }
  return 0;
}
