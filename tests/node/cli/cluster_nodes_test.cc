#include "node/cli/cluster_nodes.h"

#include <string>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/rpc/cluster_service.h"

namespace strata {
namespace {

using testing::HasSubstr;

wire::GetClusterResponse Cluster() {
  wire::GetClusterResponse cluster;
  cluster.set_cluster("home");
  cluster.set_asked(std::string(16, '\x01'));
  cluster.set_coordinator(std::string(16, '\x02'));
  for (char i = 1; i <= 3; ++i) {
    wire::ClusterNode* node = cluster.add_nodes();
    node->mutable_record()->set_node_id(std::string(16, i));
    node->mutable_record()->set_name(i == 1 ? "kitchen" : i == 2 ? "büro" : "attic");
    node->mutable_record()->mutable_versions()->set_strata("0.1.0");
    node->mutable_record()->mutable_versions()->set_protocol(i == 3 ? 9 : 1);
    node->set_state(i == 3 ? "other version" : "alive");
    node->set_address("10.0.0.1:7400");
    node->set_round_trip_us(1234);
    node->set_since_ms(i == 3 ? -1 : 3'600'000);
    node->set_last_heard_ms(200);
  }
  return cluster;
}

TEST(ClusterNodes, TheTableShowsTheNodesAndTheCoordinator) {
  const std::string table = NodesTable(Cluster());
  EXPECT_THAT(table,
              HasSubstr("kitchen  01010101  alive          10.0.0.1:7400  itself      60 min"));
  EXPECT_THAT(table,
              HasSubstr("büro     02020202  alive          10.0.0.1:7400  1.2 ms      60 min"));
  EXPECT_THAT(table, HasSubstr("0.1.0, protocol 9"));
  EXPECT_THAT(table, HasSubstr("Cluster home: büro (02020202) coordinates.\n"));
  for (absl::string_view line : absl::StrSplit(table, '\n')) EXPECT_FALSE(line.ends_with(' '));
}

TEST(ClusterNodes, TheTableShowsThatThereIsNoCoordinator) {
  wire::GetClusterResponse cluster = Cluster();
  cluster.clear_coordinator();
  EXPECT_THAT(NodesTable(cluster), HasSubstr("no node coordinates"));
}

TEST(ClusterNodes, JsonHasCompleteIdsAndNullForNever) {
  const auto json = nlohmann::json::parse(NodesJson(Cluster()));
  EXPECT_EQ(json["cluster"], "home");
  EXPECT_EQ(json["coordinator"], "02020202020202020202020202020202");
  ASSERT_EQ(json["nodes"].size(), 3u);
  EXPECT_EQ(json["nodes"][0]["here_ms"], 3'600'000);
  EXPECT_TRUE(json["nodes"][2]["here_ms"].is_null());
  EXPECT_EQ(json["nodes"][2]["protocol"], 9);
}

TEST(ClusterService, ReadsTheHostOfACallsPeer) {
  EXPECT_EQ(HostOfGrpcPeer("ipv4:10.0.0.1:5"), "10.0.0.1");
  EXPECT_EQ(HostOfGrpcPeer("ipv6:%5Bfe80::1%252%5D:4321"), "fe80::1%2");
  EXPECT_EQ(HostOfGrpcPeer("ipv6:[::1]:5"), "::1");
  EXPECT_EQ(HostOfGrpcPeer("unix:/tmp/x"), "");
  EXPECT_EQ(HostOfGrpcPeer("ipv4:"), "");
  EXPECT_EQ(HostOfGrpcPeer("ipv6:%5"), "");
}

}  // namespace
}  // namespace strata
