#include "node/measure/link_benchmark.h"

#include <future>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

constexpr NodeId kKitchen{.high = 0, .low = 1};
constexpr NodeId kAttic{.high = 0, .low = 2};

wire::LinkSpeed Speed(uint32_t us, uint64_t bytes_per_s) {
  wire::LinkSpeed speed;
  speed.set_round_trip_p50_us(us);
  speed.set_round_trip_p99_us(us);
  speed.set_bytes_per_s(bytes_per_s);
  return speed;
}

// A benchmark with the measurements of a test, on a loop that runs until `enough` is true.
class LinkBenchmarkTest : public ::testing::Test {
 protected:
  void Run(LinkBenchmark::Measure measure, absl::AnyInvocable<void(LinkBenchmark*)> start,
           absl::AnyInvocable<bool(const LinkBenchmark&)> enough) {
    LinkBenchmark benchmark(loop_.get(), {.pause_ms = 0, .retry_ms = 0, .old_after_ms = 1'000'000},
                            std::move(measure));
    start(&benchmark);
    auto look = loop_->StartTimer({.delay_ms = 5, .repeat_ms = 5}, [&] {
      if (enough(benchmark)) loop_->Stop();
    });
    loop_->Run();
  }

  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
};

TEST_F(LinkBenchmarkTest, MeasuresEachLinkOnce) {
  std::vector<std::string> measured;  // written by the benchmark's thread; read after it has ended
  Run(
      [&](const std::string& address, auto) {
        measured.push_back(address);
        return Speed(measured.size() == 1 ? 100 : 200, 1000);
      },
      [](LinkBenchmark* benchmark) {
        benchmark->SetPeers({{kKitchen, "10.0.0.1:1"}, {kAttic, "10.0.0.2:1"}});
      },
      [&, ticks = 0](const LinkBenchmark& benchmark) mutable {
        const bool both = benchmark.Find(kKitchen) != nullptr && benchmark.Find(kAttic) != nullptr;
        return both && ++ticks > 60;  // three more ticks of the benchmark
      });
  EXPECT_THAT(measured, ::testing::UnorderedElementsAre("10.0.0.1:1", "10.0.0.2:1"));
}

TEST_F(LinkBenchmarkTest, MeasuresAgainWhenTheAddressChanges) {
  std::vector<std::string> measured;
  Run(
      [&](const std::string& address, auto) {
        measured.push_back(address);
        return Speed(100, 1000);
      },
      [](LinkBenchmark* benchmark) { benchmark->SetPeers({{kKitchen, "10.0.0.1:1"}}); },
      [&, changed = false](const LinkBenchmark& benchmark) mutable {
        if (benchmark.Find(kKitchen) == nullptr) return false;
        if (changed) return true;
        changed = true;
        auto* mutable_benchmark = const_cast<LinkBenchmark*>(&benchmark);
        mutable_benchmark->SetPeers({{kKitchen, "192.168.0.1:1"}});
        EXPECT_EQ(benchmark.Find(kKitchen), nullptr);
        return false;
      });
  EXPECT_THAT(measured, ElementsAre("10.0.0.1:1", "192.168.0.1:1"));
}

TEST_F(LinkBenchmarkTest, RetriesAFailedMeasurement) {
  int calls = 0;
  Run(
      [&](const std::string&, auto) -> absl::StatusOr<wire::LinkSpeed> {
        if (++calls == 1) return absl::ResourceExhaustedError("too many");
        return Speed(100, 1000);
      },
      [](LinkBenchmark* benchmark) { benchmark->SetPeers({{kKitchen, "10.0.0.1:1"}}); },
      [](const LinkBenchmark& benchmark) { return benchmark.Find(kKitchen) != nullptr; });
  EXPECT_EQ(calls, 2);
}

TEST_F(LinkBenchmarkTest, KeepsTheOldThroughputWhenOnlyRoundTripsWereMeasured) {
  int calls = 0;
  Run([&](const std::string&, auto) { return ++calls == 1 ? Speed(100, 1000) : Speed(300, 0); },
      [](LinkBenchmark* benchmark) { benchmark->SetPeers({{kKitchen, "10.0.0.1:1"}}); },
      [](const LinkBenchmark& benchmark) {
        const wire::LinkSpeed* speed = benchmark.Find(kKitchen);
        if (speed == nullptr) return false;
        if (speed->round_trip_p50_us() == 100)
          const_cast<LinkBenchmark*>(&benchmark)->MeasureAgain();
        if (speed->round_trip_p50_us() != 300) return false;
        EXPECT_EQ(speed->bytes_per_s(), 1000u);
        return true;
      });
}

TEST_F(LinkBenchmarkTest, LinksArePendingUntilTheyAreMeasuredCompletely) {
  int calls = 0;
  Run(
      [&](const std::string&, auto) -> absl::StatusOr<wire::LinkSpeed> {
        ++calls;
        if (calls == 3) return Speed(300, 0);  // without throughput
        if (calls == 4) return absl::ResourceExhaustedError("too many");
        return Speed(100, 1000);
      },
      [](LinkBenchmark* benchmark) {
        benchmark->SetPeers({{kKitchen, "10.0.0.1:1"}, {kAttic, "10.0.0.2:1"}});
        EXPECT_EQ(benchmark->pending(), 0u);
      },
      [&, before = uint64_t{0}](const LinkBenchmark& benchmark) mutable {
        const wire::LinkSpeed* speed = benchmark.Find(kKitchen);
        if (speed == nullptr || benchmark.Find(kAttic) == nullptr) return false;
        if (before == 0) {
          before = speed->measurement();
          const_cast<LinkBenchmark*>(&benchmark)->MeasureAgain();
          EXPECT_EQ(benchmark.pending(), 2u);
          return false;
        }
        if (benchmark.pending() > 0) return false;
        EXPECT_GT(speed->measurement(), before);
        return true;
      });
  EXPECT_GE(calls, 6);
}

TEST_F(LinkBenchmarkTest, IsIdleWhenNothingIsDue) {
  LinkBenchmark benchmark(loop_.get(), LinkBenchmark::Options());
  EXPECT_EQ(benchmark.next_due_ms(), LinkBenchmark::kNever);
  benchmark.SetPeers({{kKitchen, "10.0.0.1:1"}});
  EXPECT_NE(benchmark.next_due_ms(), LinkBenchmark::kNever);
  benchmark.SetBusy(true);
  EXPECT_EQ(benchmark.next_due_ms(), LinkBenchmark::kNever);
  benchmark.SetBusy(false);
  EXPECT_NE(benchmark.next_due_ms(), LinkBenchmark::kNever);
  benchmark.SetPeers({});
  EXPECT_EQ(benchmark.next_due_ms(), LinkBenchmark::kNever);
}

// Measurements of all nodes in an hour, since each measures the links to all others.
TEST_F(LinkBenchmarkTest, MeasurementsGrowWithTheNumberOfNodesNotOfLinks) {
  const auto each_in_an_hour = [&](size_t nodes) {
    LinkBenchmark benchmark(loop_.get(), LinkBenchmark::Options());
    std::vector<LinkBenchmark::Peer> peers;
    for (size_t i = 1; i < nodes; ++i) {
      peers.push_back({{.high = 0, .low = i}, absl::StrCat("10.0.0.", i, ":1")});
    }
    benchmark.SetPeers(peers);
    return 3'600'000.0 * static_cast<double>(peers.size()) /
           static_cast<double>(benchmark.OldAfterMs());
  };
  EXPECT_EQ(each_in_an_hour(3), 8);
  for (const size_t nodes : {20, 50, 200, 1000}) EXPECT_LE(each_in_an_hour(nodes), 32) << nodes;
}

TEST_F(LinkBenchmarkTest, StopsAMeasurementWhenTheMachineIsBusy) {
  std::promise<void> begun;
  Run(
      [&](const std::string&,
          absl::FunctionRef<bool()> should_continue) -> absl::StatusOr<wire::LinkSpeed> {
        begun.set_value();
        while (should_continue()) std::this_thread::yield();
        return absl::AbortedError("busy");
      },
      [](LinkBenchmark* benchmark) { benchmark->SetPeers({{kKitchen, "10.0.0.1:1"}}); },
      [&, seen = begun.get_future()](const LinkBenchmark& benchmark) mutable {
        if (seen.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
        const_cast<LinkBenchmark*>(&benchmark)->SetBusy(true);
        return true;
      });
}

}  // namespace
}  // namespace strata
