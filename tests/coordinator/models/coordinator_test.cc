#include "coordinator/models/coordinator.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/cluster/cluster_runtime.h"
#include "coordinator/cluster/peer_transport.h"
#include "gtest/gtest.h"
#include "node/gateway/gateway.h"
#include "tests/support/fake_event_loop.h"

namespace strata {
namespace {

// No other node exists.
class NoTransport final : public PeerTransport {
 public:
  void Exchange(const std::string&, const wire::Heartbeat&, int64_t,
                Done<wire::Heartbeat>) override {}
  void Identify(const std::string&, int64_t, Done<wire::IdentifyResponse>) override {}
  void IsRefused(const std::string&, int64_t, absl::AnyInvocable<void(bool) &&>) override {}
  void Forget(const std::string&) override {}
};

TEST(Coordinator, AnIdleCoordinatorLooksOnceASecond) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  ClusterRuntime::Options options;
  options.self.id = {.high = 0, .low = 1};
  options.self.boot = 1000;
  options.discovery = nullptr;
  ClusterRuntime cluster(&loop, &clock, std::move(options), std::make_unique<NoTransport>());
  Coordinator coordinator(
      &loop, &cluster, /*fetcher=*/nullptr,
      {.node_id = std::string(31, '0') + "1", .own_report = [] { return OwnReport(); }});
  const Gateway gateway(&loop, &cluster, &coordinator, Gateway::Options());
  coordinator.Start("127.0.0.1:1");
  cluster.Start({.address = {.host = "10.0.0.1", .port = 7}});
  clock.AdvanceMs(20'000);
  ASSERT_TRUE(cluster.view().is_coordinator);
  const size_t before = loop.timer_calls();
  clock.AdvanceMs(60'000);
  // Its look, the cluster's and the addresses' each second.
  EXPECT_LE(loop.timer_calls() - before, 3u * 61);
}

}  // namespace
}  // namespace strata
