#include "transport/security/trusted_networks.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool Shared(absl::string_view a, absl::string_view b) {
  const auto first = ParseTrustedAddress(a);
  const auto second = ParseTrustedAddress(b);
  EXPECT_TRUE(first.ok() && second.ok()) << a << " " << b;
  return first.ok() && second.ok() && SameNetwork(*first, *second);
}

TEST(TrustedAddress, IsAnAddressAndTheLengthOfItsPrefix) {
  const auto address = ParseTrustedAddress("10.0.0.7/24");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->host, "10.0.0.7");
  EXPECT_EQ(address->prefix_bits, 24);
  EXPECT_EQ(TrustedAddressText(*address), "10.0.0.7/24");
  EXPECT_TRUE(ParseTrustedAddress("fd00::1/64").ok());
}

TEST(TrustedAddress, AnythingElseIsRefused) {
  for (const char* text :
       {"", "/", "10.0.0.7", "10.0.0.7/", "10.0.0.7/33", "10.0.0.7/0", "10.0.0.7/-1", "10.0.0/24",
        "host/24", "fd00::1/129", "0.0.0.0/8", "::/64", "fe80::1/64", "10.0.0.7/24/3"}) {
    EXPECT_THAT(ParseTrustedAddress(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(SameNetwork, IsTheSamePrefix) {
  EXPECT_TRUE(Shared("10.0.0.7/24", "10.0.0.200/24"));
  EXPECT_FALSE(Shared("10.0.0.7/24", "10.0.1.7/24"));
  EXPECT_TRUE(Shared("10.0.0.7/23", "10.0.1.7/23"));
  EXPECT_FALSE(Shared("10.0.0.7/24", "10.0.0.8/16"));  // one of them is mistaken
  EXPECT_FALSE(Shared("10.0.0.7/32", "10.0.0.8/32"));
  EXPECT_TRUE(Shared("fd00::1/64", "fd00::ffff:1/64"));
  EXPECT_FALSE(Shared("fd00::1/64", "fd00:0:0:1::1/64"));
}

TEST(AddressesOf, TheLoopbackAreItsOwn) {
#ifdef __APPLE__
  const char loopback[] = "lo0";
#else
  const char loopback[] = "lo";
#endif
  EXPECT_THAT(AddressesOf({loopback}), Contains(AllOf(Field(&TrustedAddress::host, "127.0.0.1"),
                                                      Field(&TrustedAddress::prefix_bits, 8))));
  EXPECT_TRUE(CheckInterfaces({loopback}).ok());
}

TEST(AddressesOf, AnInterfaceThatIsNotThereHasNone) {
  EXPECT_THAT(AddressesOf({"nothing0"}), IsEmpty());
  EXPECT_THAT(CheckInterfaces({"nothing0"}),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("nothing0"), HasSubstr("lo"))));
}

}  // namespace
}  // namespace strata
