#include "transport/base/peer_addresses.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::StatusIs;

TEST(PeerAddresses, HostAndPortAreSplitAndJoined) {
  for (const char* text : {"10.0.0.1:7400", "kitchen.local:1", "[fe80::1%3]:65535", "[::]:0"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(JoinHostPort(parsed->host, parsed->port), text);
  }
  EXPECT_EQ(ParseHostPort("[fd00::7]:80")->host, "fd00::7");
}

TEST(PeerAddresses, InvalidHostsAndPortsAreRefused) {
  for (const char* text : {"", ":", "kitchen", ":7400", "kitchen:", "kitchen:70000", "kitchen:-1",
                           "fe80::1:7400", "[fe80::1:7400", "[]:7400", "kitchen:7400x",
                           "kitchen: 7400", "kitchen:7400 ", "kitchen:+7400"}) {
    EXPECT_THAT(ParseHostPort(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(PeerAddresses, UntrustedAddressesAreDialledOnlyIfTheyAreHosts) {
  for (const char* text : {"10.0.0.1:7400", "[fe80::1%3]:7400", "kitchen.local:7", "localhost:1"}) {
    EXPECT_TRUE(IsDialable(text)) << text;
  }
  for (const char* text : {"unix:7", "unix:/run/x:7", "dns:7", "vsock:7", "a.b/c:7", "10.0.0.1:0",
                           "[::]:7", "a b.c:7", "10.0.0.1", ""}) {
    EXPECT_FALSE(IsDialable(text)) << text;
  }
}

TEST(PeerAddresses, HostsThatMeanEveryInterfaceOrNoneAreKnown) {
  EXPECT_TRUE(IsAnyHost("0.0.0.0"));
  EXPECT_TRUE(IsAnyHost("::"));
  EXPECT_FALSE(IsAnyHost("127.0.0.1"));
  EXPECT_TRUE(IsLoopbackHost("127.0.0.1"));
  EXPECT_TRUE(IsLoopbackHost("localhost"));
  EXPECT_TRUE(IsLoopbackHost("127.8.9.10"));
  EXPECT_FALSE(IsLoopbackHost("10.0.0.1"));
  EXPECT_FALSE(IsLoopbackHost("127.evil.example"));
  EXPECT_FALSE(IsLoopbackHost("127.0.0.1.evil.example"));
}

TEST(PeerAddresses, LoopbackComesLast) {
  bool loopback_seen = false;
  for (const InterfaceAddress& address : ReadInterfaceAddresses()) {
    EXPECT_NE(address.interface, 0u);
    EXPECT_FALSE(address.ip.empty());
    EXPECT_EQ(address.is_loopback, IsLoopbackHost(address.ip) || address.name == "lo");
    EXPECT_TRUE(address.is_loopback || !loopback_seen);
    loopback_seen = address.is_loopback;
  }
}

}  // namespace
}  // namespace strata
