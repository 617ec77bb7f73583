#include "node/daemon/node.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/taken_port.h"
#include "tests/support/temp_folder.h"
#include "transport/base/peer_addresses.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::TakenPort;

// Starts a node, reads its port, and stops it.
absl::StatusOr<uint16_t> PortOfARun(const std::string& folder, const std::string& listen) {
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  NodeOptions options;
  options.listen = listen;
  options.name = "kitchen";
  options.mdns = false;
  options.measure = false;
  options.data_dir = folder;
  auto identity = Node::Identify(options);
  if (!identity.ok()) return identity.status();
  auto node =
      Node::Start(loop.get(), std::move(options), *std::move(identity), /*security=*/nullptr);
  if (!node.ok()) return node.status();
  const absl::StatusOr<HostPort> address = ParseHostPort((*node)->address());
  loop->Post([&] { (*node)->Shutdown([&] { loop->Stop(); }); });
  loop->Run();
  node->reset();
  if (!address.ok()) return address.status();
  return address->port;
}

TEST(Node, KeepsItsPortOverRestarts) {
  const std::string folder = testing::MakeTestFolder();
  const auto first = PortOfARun(folder, "127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  for (int i = 0; i < 3; ++i) {
    const auto again = PortOfARun(folder, "127.0.0.1:0");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *first);
  }
}

TEST(Node, TakesAFreePortWhereItsLastOneIsTaken) {
  const std::string folder = testing::MakeTestFolder();
  const auto first = PortOfARun(folder, "127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  absl::StatusOr<uint16_t> second;
  {
    const TakenPort taken({.port = *first});
    second = PortOfARun(folder, "127.0.0.1:0");
  }
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(*second, *first);
  const auto third = PortOfARun(folder, "127.0.0.1:0");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(*third, *second);
}

TEST(Node, TriesNoOtherPortThanTheOneInListen) {
  const std::string folder = testing::MakeTestFolder();
  const TakenPort taken({});
  EXPECT_THAT(PortOfARun(folder, absl::StrCat("127.0.0.1:", taken.port())),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(Node, ThePortInListenWinsOverTheLastOne) {
  const std::string folder = testing::MakeTestFolder();
  const auto first = PortOfARun(folder, "127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  uint16_t free_port;
  {
    const TakenPort taken({});
    free_port = taken.port();
  }
  const auto second = PortOfARun(folder, absl::StrCat("127.0.0.1:", free_port));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, free_port);
}

}  // namespace
}  // namespace strata
