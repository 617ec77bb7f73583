#include "transport/base/host_lookup.h"

#include <memory>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

HostAddresses LookUp(const std::string& host) {
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  HostAddresses found = absl::UnknownError("not called");
  const auto handle = LookUpHost(loop.get(), host, [&](HostAddresses addresses) {
    EXPECT_TRUE(loop->InLoopThread());
    found = std::move(addresses);
    loop->Stop();
  });
  loop->Run();
  return found;
}

TEST(HostLookup, FindsAddressesOfANameAndOfANumber) {
  const HostAddresses local = LookUp("localhost");
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_THAT(*local, ::testing::Contains(::testing::AnyOf("127.0.0.1", "::1")));
  const HostAddresses number = LookUp("10.1.2.3");
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_THAT(*number, ::testing::ElementsAre("10.1.2.3"));
}

// RFC 6761, section 6.4: no name under .invalid exists.
TEST(HostLookup, SaysWhyANameHasNoAddress) {
  const HostAddresses found = LookUp("strata.invalid");
  EXPECT_TRUE(absl::IsNotFound(found.status()) || absl::IsUnavailable(found.status()));
  EXPECT_THAT(found.status().message(), ::testing::StartsWith("strata.invalid: "));
}

TEST(HostLookup, ACancelledOneIsNotHeardOf) {
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  auto watched = std::make_shared<bool>();
  auto handle = LookUpHost(loop.get(), "localhost",
                           [watched](const HostAddresses&) { ADD_FAILURE() << "called"; });
  std::unique_ptr<EventLoop::Handle> timer;
  const std::weak_ptr<bool> alive = std::exchange(watched, nullptr);
  loop->Post([&] {
    handle.reset();
    EXPECT_TRUE(alive.expired()) << "what it captured is gone with it";
    timer = loop->StartTimer({.delay_ms = 50}, [&] { loop->Stop(); });
  });
  loop->Run();
}

}  // namespace
}  // namespace strata
