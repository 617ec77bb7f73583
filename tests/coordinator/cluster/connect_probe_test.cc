#include "coordinator/cluster/connect_probe.h"

#include <cerrno>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/taken_port.h"

namespace strata {
namespace {

using ::strata::testing::TakenPort;

// The system's reply for an address.
int ErrorOf(const std::string& address) {
  const auto loop = EventLoop::Create();
  std::unique_ptr<ConnectProbe> connect_probe;
  int said = -1;
  loop->Post([&] {
    connect_probe = ConnectProbe::Start(loop.get(), address, /*timeout_ms=*/10'000, [&](int error) {
      said = error;
      connect_probe.reset();
      loop->Stop();
    });
    EXPECT_EQ(said, -1) << "called from inside";
  });
  loop->Run();
  return said;
}

TEST(ConnectProbe, ReportsWhetherAProcessListens) {
  const TakenPort listens({});
  EXPECT_EQ(ErrorOf(listens.address()), 0);
  const TakenPort refuses({.listens = false});
  EXPECT_EQ(ErrorOf(refuses.address()), ECONNREFUSED);
}

TEST(ConnectProbe, LooksUpNoNames) {
  const TakenPort refuses({.listens = false});
  EXPECT_EQ(ErrorOf("localhost:" + std::to_string(refuses.port())), EINVAL);
  EXPECT_EQ(ErrorOf("nothing"), EINVAL);
}

TEST(ConnectProbe, CallsNothingOnceItIsDestroyed) {
  const TakenPort refuses({.listens = false});
  const auto loop = EventLoop::Create();
  std::unique_ptr<EventLoop::Handle> timer;
  loop->Post([&] {
    auto connect_probe = ConnectProbe::Start(loop.get(), refuses.address(), 0, [](int) { FAIL(); });
    connect_probe.reset();
    timer = loop->StartTimer({.delay_ms = 20}, [&] {
      timer.reset();
      loop->Stop();
    });
  });
  loop->Run();
}

}  // namespace
}  // namespace strata
