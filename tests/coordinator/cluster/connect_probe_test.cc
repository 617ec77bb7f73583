#include "coordinator/cluster/connect_probe.h"

#include <cerrno>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/taken_port.h"

namespace strata {
namespace {

using ::strata::testing::TakenPort;

// What the system says of an address.
int Ask(const std::string& address) {
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

TEST(ConnectProbe, TellsWhetherSomebodyListens) {
  const TakenPort listens({});
  EXPECT_EQ(Ask(listens.address()), 0);
  const TakenPort refuses({.listens = false});
  EXPECT_EQ(Ask(refuses.address()), ECONNREFUSED);
}

TEST(ConnectProbe, LooksUpNoNames) {
  const TakenPort refuses({.listens = false});
  EXPECT_EQ(Ask("localhost:" + std::to_string(refuses.port())), EINVAL);
  EXPECT_EQ(Ask("nothing"), EINVAL);
}

TEST(ConnectProbe, SaysNothingOnceItIsGone) {
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
