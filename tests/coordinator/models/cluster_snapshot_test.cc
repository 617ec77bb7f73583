// The report has its own node without a call.
#include "coordinator/models/cluster_snapshot.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kOwnId[] = "\x01own", kOtherId[] = "\x02other";

class CollectReportTest : public ::testing::Test {
 protected:
  CollectReportTest() {
    own_.info.set_node_id("01");
    own_.info.set_name("attic");
    own_.info.set_memory_free(7);
    own_.cluster.set_asked(kOwnId);
    Add(kOwnId)->set_state("alive");
  }
  wire::ClusterNode* Add(const std::string& id) {
    wire::ClusterNode* const node = own_.cluster.add_nodes();
    node->mutable_record()->set_node_id(id);
    return node;
  }
  ClusterSnapshot Collect(const std::vector<std::string>& only = {}) {
    return CollectReport(std::move(own_), "127.0.0.1:1", only,
                         [this](absl::Duration) { ++pauses_; });
  }

  OwnReport own_;
  int pauses_ = 0;
};

TEST_F(CollectReportTest, ANodeKnowsItselfWithoutACall) {
  const ClusterSnapshot report = Collect();
  ASSERT_THAT(report.nodes, SizeIs(1));
  const NodeReport& own = report.nodes[0];
  EXPECT_THAT(own.status, IsOk());
  EXPECT_EQ(own.info.memory_free(), 7u);
  EXPECT_EQ(own.sees.asked(), kOwnId);
  ASSERT_NE(own.client, nullptr);
  EXPECT_EQ(own.client->id(), "01");
  EXPECT_EQ(own.client->name(), "attic");
  EXPECT_EQ(own.client->address(), "127.0.0.1:1");
}

TEST_F(CollectReportTest, NodesThatCannotBeQueriedHaveTheReason) {
  Add(kOtherId)->set_state("gone");
  Add("\x03third")->set_state("alive");  // without an address
  const ClusterSnapshot report = Collect();
  ASSERT_THAT(report.nodes, SizeIs(3));
  EXPECT_THAT(report.nodes[1].status, StatusIs(absl::StatusCode::kUnavailable, "it is gone"));
  EXPECT_THAT(report.nodes[2].status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no route")));
  EXPECT_EQ(report.nodes[2].client, nullptr);
}

TEST_F(CollectReportTest, ANodeThatRefusesIsDialledThreeTimes) {
  wire::ClusterNode* const other = Add(kOtherId);
  other->set_state("alive");
  other->set_address("127.0.0.1:1");  // a port where no node listens
  const ClusterSnapshot report = Collect();
  EXPECT_THAT(report.nodes[1].status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(pauses_, 2);
}

TEST_F(CollectReportTest, OnlyTheWantedNodesAreReported) {
  Add(kOtherId)->set_state("gone");
  const ClusterSnapshot report = Collect({kOtherId});
  ASSERT_THAT(report.nodes, SizeIs(1));
  EXPECT_EQ(report.nodes[0].id(), kOtherId);
  EXPECT_THAT(report.cluster.nodes(), SizeIs(2));
}

}  // namespace
}  // namespace strata
