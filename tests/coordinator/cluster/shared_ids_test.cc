#include "coordinator/cluster/shared_ids.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

wire::SharedId Shared(const std::string& id) {
  wire::SharedId shared;
  shared.set_node_id(id);
  shared.set_name("kitchen");
  shared.set_taken_address("10.0.0.5:7400");
  shared.set_refused_address("10.0.0.9:7400");
  return shared;
}

wire::ClusterNode* AddNode(wire::GetClusterResponse* cluster, const std::string& id,
                           const std::string& name) {
  wire::ClusterNode* node = cluster->add_nodes();
  node->mutable_record()->set_node_id(id);
  node->mutable_record()->set_name(name);
  node->set_state("alive");
  node->set_address(absl::StrCat(id, ":7400"));
  return node;
}

TEST(SharedIdMessage, NamesBothAddressesAndWhatToDo) {
  EXPECT_THAT(SharedIdMessage(Shared("a")),
              AllOf(HasSubstr("two machines have the id of kitchen"),
                    HasSubstr("10.0.0.5:7400 is taken, 10.0.0.9:7400 is refused"),
                    HasSubstr("remove the file node_id in its data dir")));
}

TEST(SharedIdMessage, OfTheRefusedOneItNamesTheFile) {
  wire::SharedId shared = Shared("a");
  shared.set_asked_is_refused(true);
  shared.set_id_file("/var/lib/strata/node_id");
  shared.clear_taken_address();
  EXPECT_THAT(SharedIdMessage(shared),
              AllOf(HasSubstr("which is this one"), HasSubstr("remove /var/lib/strata/node_id"),
                    HasSubstr("one at an unknown address is taken")));
}

TEST(SharedIds, ThatSeveralNodesKnowAreReportedOnce) {
  wire::GetClusterResponse first, second;
  *first.add_shared_ids() = Shared("a");
  *second.add_shared_ids() = Shared("a");
  *second.add_shared_ids() = Shared("b");
  EXPECT_THAT(AllSharedIds({&first, &second}), SizeIs(2));
  for (int i = 0; i < 100; ++i) *second.add_shared_ids() = Shared(absl::StrCat("c", i));
  EXPECT_THAT(AllSharedIds({&first, &second}), SizeIs(8));
}

TEST(SharedNames, AreTheSameInAnyCase) {
  wire::GetClusterResponse cluster;
  AddNode(&cluster, "a", "kitchen");
  AddNode(&cluster, "b", "attic");
  EXPECT_THAT(SharedNameProblems(cluster), IsEmpty());
  wire::ClusterNode* other = AddNode(&cluster, "c", "Kitchen");
  EXPECT_THAT(
      SharedNameProblems(cluster),
      ElementsAre(HasSubstr("two nodes have the name kitchen: 61 at a:7400, 63 at c:7400")));
  other->set_state("gone");
  EXPECT_THAT(SharedNameProblems(cluster), IsEmpty());
}

TEST(DistinctName, HasTheIdWhereAnotherHasTheName) {
  wire::GetClusterResponse cluster;
  AddNode(&cluster, "a", "kitchen");
  AddNode(&cluster, "b", "kitchen");
  AddNode(&cluster, "c", "attic");
  EXPECT_EQ(DistinctName(cluster, cluster.nodes(0).record()), "kitchen-61");
  EXPECT_EQ(DistinctName(cluster, cluster.nodes(1).record()), "kitchen-62");
  EXPECT_EQ(DistinctName(cluster, cluster.nodes(2).record()), "attic");
}

}  // namespace
}  // namespace strata
