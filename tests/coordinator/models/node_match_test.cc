#include "coordinator/models/node_match.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr NodeNames kKitchen = {.name = "kitchen", .id_hex = "6b69746368656e00"};

TEST(MeansNode, ByItsNameInAnyCase) {
  EXPECT_TRUE(MeansNode("kitchen", kKitchen));
  EXPECT_TRUE(MeansNode("Kitchen", kKitchen));
  EXPECT_FALSE(MeansNode("kitch", kKitchen));
}

TEST(MeansNode, ByFourDigitsOfItsIdOrMore) {
  EXPECT_TRUE(MeansNode("6b69", kKitchen));
  EXPECT_TRUE(MeansNode("6B6974", kKitchen));
  EXPECT_FALSE(MeansNode("6b6", kKitchen));
  EXPECT_FALSE(MeansNode("6974", kKitchen));
}

// Removing what nobody has named would end a machine's part in the cluster.
TEST(MeansNode, ByNameAndIdAsNodesOfOneNameAreShown) {
  EXPECT_TRUE(MeansNode("kitchen-6b697463", kKitchen));
  EXPECT_FALSE(MeansNode("kitchen-6b69746f", kKitchen));
  EXPECT_FALSE(MeansNode("attic-6b697463", kKitchen));
  EXPECT_FALSE(MeansNode("kitchen-", kKitchen));
}

TEST(MeansNode, OfSeveralTheIdsAreTold) {
  const absl::Status status = MeansSeveralNodes(
      "kitchen", {kKitchen, {.name = "Kitchen", .id_hex = "00112233445566778899aabbccddeeff"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("6b697463 (kitchen), 00112233 (Kitchen)"), std::string::npos)
      << status;
}

TEST(FindNode, OneThatIsGoneOnlyWhereNoOtherIsMeant) {
  const NodeNames before = {.name = "kitchen", .id_hex = "00112233", .gone = true};
  EXPECT_EQ(FindNode("kitchen", {before, kKitchen}).value(), 1u);
  EXPECT_EQ(FindNode("0011", {before, kKitchen}).value(), 0u);
  EXPECT_EQ(FindNode("kitchen", {before}).value(), 0u);
  EXPECT_EQ(FindNode("kitchen", {kKitchen, kKitchen}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FindNode("attic", {before, kKitchen}).status().code(), absl::StatusCode::kNotFound);
}

TEST(MeansNode, NotByNothing) {
  EXPECT_FALSE(MeansNode("", kKitchen));
  EXPECT_FALSE(MeansNode("", {.name = "attic", .id_hex = ""}));
}

}  // namespace
}  // namespace strata
