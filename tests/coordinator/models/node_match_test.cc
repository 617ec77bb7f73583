#include "coordinator/models/node_match.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr NodeNames kKitchen = {.name = "kitchen", .id_hex = "6b69746368656e00"};

TEST(MatchesNode, ByItsNameInAnyCase) {
  EXPECT_TRUE(MatchesNode("kitchen", kKitchen));
  EXPECT_TRUE(MatchesNode("Kitchen", kKitchen));
  EXPECT_FALSE(MatchesNode("kitch", kKitchen));
}

TEST(MatchesNode, ByFourDigitsOfItsIdOrMore) {
  EXPECT_TRUE(MatchesNode("6b69", kKitchen));
  EXPECT_TRUE(MatchesNode("6B6974", kKitchen));
  EXPECT_FALSE(MatchesNode("6b6", kKitchen));
  EXPECT_FALSE(MatchesNode("6974", kKitchen));
}

// A wrong match could remove a machine from the cluster that nobody named.
TEST(MatchesNode, ByNameAndIdAsNodesOfOneNameAreShown) {
  EXPECT_TRUE(MatchesNode("kitchen-6b697463", kKitchen));
  EXPECT_FALSE(MatchesNode("kitchen-6b69746f", kKitchen));
  EXPECT_FALSE(MatchesNode("attic-6b697463", kKitchen));
  EXPECT_FALSE(MatchesNode("kitchen-", kKitchen));
}

TEST(MatchesNode, OfSeveralTheIdsAreListed) {
  const absl::Status status = MatchesSeveralNodes(
      "kitchen", {kKitchen, {.name = "Kitchen", .id_hex = "00112233445566778899aabbccddeeff"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("6b697463 (kitchen), 00112233 (Kitchen)"), std::string::npos)
      << status;
}

TEST(FindNode, ANodeThatIsGoneOnlyWhereNoOtherMatches) {
  const NodeNames before = {.name = "kitchen", .id_hex = "00112233", .gone = true};
  EXPECT_EQ(FindNode("kitchen", {before, kKitchen}).value(), 1u);
  EXPECT_EQ(FindNode("0011", {before, kKitchen}).value(), 0u);
  EXPECT_EQ(FindNode("kitchen", {before}).value(), 0u);
  EXPECT_EQ(FindNode("kitchen", {kKitchen, kKitchen}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FindNode("attic", {before, kKitchen}).status().code(), absl::StatusCode::kNotFound);
}

TEST(MatchesNode, NotByNothing) {
  EXPECT_FALSE(MatchesNode("", kKitchen));
  EXPECT_FALSE(MatchesNode("", {.name = "attic", .id_hex = ""}));
}

}  // namespace
}  // namespace strata
