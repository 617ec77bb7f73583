#include "coordinator/models/replica_targets.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/planner.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/planner_instance.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/unreachable_node.h"

namespace strata {
namespace {

using ::strata::testing::Opened;
using ::strata::testing::RequestFor;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;

constexpr uint64_t kGiB = 1ull << 30;
constexpr uint32_t kLayers = 8;

// Nodes n0, n1… with so many bytes free, beside what their stages take of a model of 2 GiB.
class ReplicaTargets : public ::testing::Test {
 protected:
  void Plan(const std::vector<uint64_t>& free_bytes, const std::vector<PlannedStage>& stages) {
    planned_.model = Opened(Write(TinyLlama({.n_layer = kLayers})));
    planned_.costs = testing::EqualLayers(kLayers, kGiB / 4);
    std::vector<testing::NodeShape> machines;
    for (const uint64_t bytes : free_bytes) machines.push_back({bytes, 50e9});
    planned_.inputs.request = RequestFor(planned_.costs, machines);
    planned_.report.nodes.resize(free_bytes.size());
    for (size_t i = 0; i < free_bytes.size(); ++i) {
      planned_.inputs.places.push_back(i);
      NodeReport& node = planned_.report.nodes[i];
      node.seen.mutable_record()->set_name(absl::StrCat("n", i));
      node.info.set_node_id(absl::StrCat("id of n", i));
      node.client = std::make_unique<testing::UnreachableNode>(absl::StrCat("address of n", i));
    }
    planned_.plan.stages = stages;
  }
  // "n1 3-7": of each stage.
  std::vector<std::string> Targets() const {
    std::vector<std::string> lines;
    for (const auto& targets : ReplicaTargetsOf(planned_, [] { return true; })) {
      std::string& text = lines.emplace_back();
      for (const wire::ReplicaTarget& target : targets) {
        absl::StrAppend(&text, text.empty() ? "" : ", ",
                        target.why_none().empty()
                            ? absl::StrCat(target.node_name(), " ", target.layers().begin(), "-",
                                           target.layers().end() - 1)
                            : target.why_none());
      }
    }
    return lines;
  }
  void Holds(size_t node, LayerRange layers, const std::string& model_id = "") {
    wire::HeldReplica* const held = planned_.report.nodes[node].info.add_replicas();
    held->set_model_id(model_id.empty() ? planned_.model->id() : model_id);
    held->set_device("CPU");
    held->mutable_layers()->set_begin(layers.begin);
    held->mutable_layers()->set_end(layers.end);
  }
  using Lines = std::vector<std::string>;

  PlannedModel planned_;
};

TEST_F(ReplicaTargets, AreWhereRecoveryWouldPlaceTheLayers) {
  // n2 has room for a stage, n0 and n1 have none for another.
  Plan({kGiB + kGiB / 4, kGiB + kGiB / 4, 3 * kGiB},
       {{.device = 0, .layers = {0, 4}}, {.device = 1, .layers = {4, 8}}});
  EXPECT_EQ(Targets(), (Lines{"n2 0-3", "n2 4-7"}));
  const wire::ReplicaTarget target = ReplicaTargetsOf(planned_, [] { return true; })[0].at(0);
  EXPECT_EQ(target.node(), "id of n2");
  EXPECT_EQ(target.address(), "address of n2");
  EXPECT_EQ(target.device(), "CPU");
}

TEST_F(ReplicaTargets, HaveTheLayersOfEachStageApart) {
  // One node has two stages: without it, all layers are one stage.
  Plan({8 * kGiB, 8 * kGiB}, {{.device = 0, .layers = {0, 3}}, {.device = 0, .layers = {3, 8}}});
  EXPECT_EQ(Targets(), (Lines{"n1 0-2", "n1 3-7"}));
}

TEST_F(ReplicaTargets, AreSeveralWhereOneHasNoRoom) {
  Plan({kGiB, 2 * kGiB, kGiB, kGiB},
       {{.device = 0, .layers = {0, 2}}, {.device = 1, .layers = {2, 8}}});
  const Lines targets = Targets();
  ASSERT_EQ(targets.size(), 2u);
  EXPECT_NE(targets[1].find(", "), std::string::npos) << targets[1];
}

TEST_F(ReplicaTargets, SayWhyThereAreNone) {
  Plan({kGiB + kGiB / 4, kGiB + kGiB / 4},
       {{.device = 0, .layers = {0, 4}}, {.device = 1, .layers = {4, 8}}});
  const std::string why = "its layers find no room around the other nodes' stages";
  EXPECT_EQ(Targets(), (Lines{why, why}));
}

TEST_F(ReplicaTargets, OfAnotherLibllamaAreOfNoUse) {
  Plan({8 * kGiB, 8 * kGiB}, {{.device = 0, .layers = {0, 8}}});
  planned_.report.nodes[1].info.mutable_versions()->set_llama("b1");
  EXPECT_EQ(Targets(), Lines{"n1, which would get its layers, has another version of libllama"});
}

TEST_F(ReplicaTargets, ANodeAloneHasNone) {
  Plan({8 * kGiB}, {{.device = 0, .layers = {0, 8}}});
  EXPECT_EQ(Targets(), Lines{""});
}

TEST_F(ReplicaTargets, RecoveryGivesLayersToTheNodeWithCopies) {
  Plan({8 * kGiB, 8 * kGiB, 8 * kGiB}, {});
  const std::vector<KeptStage> kept = {{.device = 0, .layers = {0, 4}}};
  const auto placed = [&] {
    auto plan = MakePlanAround(planned_.inputs.request, kept);
    EXPECT_TRUE(plan.ok()) << plan.status();
    const strata::Plan preferred =
        PreferReplicas(planned_.inputs.request, kept, HeldReplicas(planned_), *std::move(plan));
    std::string text;
    for (const PlannedStage& stage : preferred.stages) {
      absl::StrAppend(&text, text.empty() ? "" : " ", stage.device, "=", stage.layers.begin, "-",
                      stage.layers.end - 1);
    }
    return text;
  };
  const std::string without = placed();
  Holds(1, {4, 8}, "another model");
  Holds(1, {0, 4});  // of a stage that is there
  Holds(1, {4, 9});  // not of this model's layers
  EXPECT_EQ(placed(), without);
  Holds(2, {4, 6});
  Holds(2, {6, 8});
  EXPECT_EQ(placed(), "0=0-3 2=4-5 2=6-7");
  // A step would take far longer there.
  planned_.inputs.request.devices[2].speed = testing::SpeedOf(5e9);
  EXPECT_EQ(placed(), without);
}

}  // namespace
}  // namespace strata
