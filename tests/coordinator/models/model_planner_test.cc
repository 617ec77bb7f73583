// The benefit of a better plan, and the capacity limit that a failed load shows.
#include "coordinator/models/model_planner.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

Plan PlanOf(Objective objective, double step_s, double slowest_s) {
  Plan plan;
  plan.objective = objective;
  plan.times.front().step_s = step_s;
  plan.times.back().slowest_s = slowest_s;
  return plan;
}

TEST(GainOf, IsOfAStepsTimeOrOfItsSlowestStage) {
  EXPECT_DOUBLE_EQ(GainOf(PlanOf(Objective::kLatency, 4, 1), PlanOf(Objective::kLatency, 3, 1)),
                   0.25);
  EXPECT_DOUBLE_EQ(
      GainOf(PlanOf(Objective::kThroughput, 4, 2), PlanOf(Objective::kThroughput, 4, 3)), -0.5);
}

TEST(BenefitOf, RequestsPauseOnlyForMuch) {
  EXPECT_EQ(BenefitOf(0.2, false), MoveBenefit::kMoving);
  EXPECT_EQ(BenefitOf(0.19, false), MoveBenefit::kMovingIdle);
  EXPECT_EQ(BenefitOf(0.19, true), MoveBenefit::kMovingIdle);
}

TEST(BenefitOf, AnIdleModelMovesForLittleOrForFewerStages) {
  EXPECT_EQ(BenefitOf(0.03, false), MoveBenefit::kMovingIdle);
  EXPECT_EQ(BenefitOf(0.02, false), MoveBenefit::kNothing);
  EXPECT_EQ(BenefitOf(0.001, true), MoveBenefit::kMovingIdle);
  EXPECT_EQ(BenefitOf(0, true), MoveBenefit::kNothing);
  EXPECT_EQ(BenefitOf(-0.1, false), MoveBenefit::kNothing);
}

// The node with the file is `states[i]` in the i-th report, and in the last one from then on.
absl::Status PlanWhereTheSourceIs(const std::vector<std::string>& states, bool since_requests_wait,
                                  std::vector<std::string>* notes, size_t* reports) {
  const std::string id(16, 'a');
  PlanningOptions options;
  options.skip_measurement_wait = since_requests_wait;
  options.collect = [&] {
    ClusterSnapshot report;
    NodeReport& node = report.nodes.emplace_back();
    node.seen.mutable_record()->set_name("attic");
    node.seen.mutable_record()->set_node_id(id);
    node.seen.set_state(states[std::min((*reports)++, states.size() - 1)]);
    node.status = absl::UnavailableError(absl::StrCat("it is ", node.seen.state()));
    return report;
  };
  options.note = [&](const std::string& note) {
    notes->push_back(note);
    return true;
  };
  options.should_continue = [] { return true; };
  options.pause = [](absl::Duration) {};
  wire::ModelSource source;
  source.set_node(absl::BytesToHexString(id));
  source.set_path("/model.gguf");
  return PlanModel(options, source, {}).status();
}

TEST(PlanModel, ASuspectedNodeIsWaitedForUntilItIsHeardOrGone) {
  std::vector<std::string> notes;
  size_t reports = 0;
  EXPECT_THAT(PlanWhereTheSourceIs({"suspected", "suspected", "gone"}, false, &notes, &reports),
              StatusIs(absl::StatusCode::kUnavailable,
                       "attic, which has the model's file, does not answer: it is gone"));
  EXPECT_EQ(reports, 3);
  EXPECT_THAT(notes, ::testing::ElementsAre("Waiting for attic to answer…"));
}

TEST(PlanModel, NothingIsWaitedForWhileRequestsWait) {
  std::vector<std::string> notes;
  size_t reports = 0;
  EXPECT_THAT(PlanWhereTheSourceIs({"suspected", "gone"}, true, &notes, &reports),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it is suspected")));
  EXPECT_EQ(reports, 1);
  EXPECT_THAT(notes, ::testing::IsEmpty());
}

// Two nodes of one name, and one of another.
class NamePlaceTest : public ::testing::Test {
 protected:
  NamePlaceTest() {
    for (const auto& [name, id, plan_name] :
         {std::tuple("kitchen", "6b697463686500aa", "kitchen-6b697463"),
          std::tuple("kitchen", "7b697463686500aa", "kitchen-7b697463"),
          std::tuple("attic", "8b697463686500aa", "attic")}) {
      NodeReport& node = planned_.report.nodes.emplace_back();
      node.seen.mutable_record()->set_name(name);
      node.info.set_node_id(id);
      planned_.inputs.places.push_back(planned_.inputs.places.size());
      planned_.inputs.request.nodes.emplace_back().name = plan_name;
    }
  }

  std::string Named(std::string place) const {
    const absl::Status status = NamePlace(planned_, "--exclude", false, &place);
    return status.ok() ? place : std::string(status.message());
  }

  PlannedModel planned_;
};

TEST_F(NamePlaceTest, OfSeveralNodesOfOneNameTheIdsAreListed) {
  for (const std::string place : {"kitchen", "Kitchen", "kitchen/CUDA0"}) {
    EXPECT_EQ(Named(place), "--exclude " + place +
                                " means several nodes; say which by the first digits of its id: "
                                "6b697463 (kitchen), 7b697463 (kitchen)");
  }
}

TEST_F(NamePlaceTest, AnIdOrTheNameWithTheIdIsOne) {
  EXPECT_EQ(Named("7b69"), "kitchen-7b697463");
  EXPECT_EQ(Named("7b697463/CUDA0"), "kitchen-7b697463/CUDA0");
  EXPECT_EQ(Named("kitchen-6b697463"), "kitchen-6b697463");
  EXPECT_EQ(Named("kitchen-6b69/CPU"), "kitchen-6b697463/CPU");
}

TEST_F(NamePlaceTest, AClearOrUnknownNameStays) {
  EXPECT_EQ(Named("attic"), "attic");
  EXPECT_EQ(Named("ATTIC/CPU"), "attic/CPU");
  EXPECT_EQ(Named("cellar/CPU"), "cellar/CPU");
  EXPECT_EQ(Named(""), "");
}

TEST_F(NamePlaceTest, AModelThatIsLoadedAgainGoesByTheFirst) {
  std::string place = "kitchen/CPU";
  EXPECT_THAT(NamePlace(planned_, "--assign", true, &place), IsOk());
  EXPECT_EQ(place, "kitchen-6b697463/CPU");
}

// A node with a CPU and two cards; on each card a stage of 10 and 20 MiB, whose experts, 28 and
// 14 MiB, are the CPU's.
constexpr uint64_t kMiB = 1 << 20;
class CapacityLimitTest : public ::testing::Test {
 protected:
  CapacityLimitTest() {
    planned_.report.nodes.resize(1);
    planned_.report.nodes[0].info.set_node_id("kitchen's id");
    planned_.inputs.places = {0};
    planned_.inputs.request.nodes.resize(1);
    for (const char* name : {"CPU", "CUDA0", "CUDA1"}) {
      PlanDevice device;
      device.name = name;
      device.is_cpu = device.name == "CPU";
      planned_.inputs.request.devices.push_back(device);
    }
    planned_.plan.stages = {{.device = 1, .weight_bytes = 10 * kMiB, .host_bytes = 28 * kMiB},
                            {.device = 2, .weight_bytes = 20 * kMiB, .host_bytes = 14 * kMiB}};
  }

  std::optional<CapacityLimit> LimitOf(uint32_t stage, const MemoryShortage& shortage) const {
    return CapacityLimitOf(
        planned_,
        WithStage(WithShortage(absl::ResourceExhaustedError("too little"), shortage), stage));
  }

  PlannedModel planned_;
};

TEST_F(CapacityLimitTest, IsLessThanWasPlannedByWhatIsMissing) {
  const auto limit = LimitOf(1, {.needed_bytes = 20 * kMiB, .free_bytes = 17 * kMiB});
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->node_id, "kitchen's id");
  EXPECT_EQ(limit->device, "CUDA1");
  EXPECT_EQ(limit->bytes, 17 * kMiB);
}

TEST_F(CapacityLimitTest, IsAQuarterLessWhereNothingIsKnown) {
  const auto limit = LimitOf(1, {});
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->device, "CUDA1");
  EXPECT_EQ(limit->bytes, 15 * kMiB);
}

// The CPU has the experts of both.
TEST_F(CapacityLimitTest, OfTheCpuIsOfAllExpertsThere) {
  auto limit = LimitOf(1, {.needed_bytes = 14 * kMiB, .free_bytes = 11 * kMiB, .on_host = true});
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->device, "CPU");
  EXPECT_EQ(limit->bytes, (28 + 14 - 3) * kMiB);
  limit = LimitOf(0, {.on_host = true});
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->device, "CPU");
  EXPECT_EQ(limit->bytes, (28 + 14 - 7) * kMiB);
}

TEST_F(CapacityLimitTest, IsOfTheDeviceWhereTheCpuHasNothingOfTheStage) {
  planned_.plan.stages[0].host_bytes = 0;
  const auto limit = LimitOf(0, {.on_host = true});
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->device, "CUDA0");
}

// Of the devices CPU, CUDA0 and CUDA1.
TEST_F(CapacityLimitTest, WhatGoesBesideTakesExpertsOfTheCpu) {
  EXPECT_THAT(FitsBeside({.devices = {42 * kMiB, 10 * kMiB, 20 * kMiB}}, planned_), IsOk());
  EXPECT_THAT(FitsBeside({.devices = {41 * kMiB, 99 * kMiB, 99 * kMiB}}, planned_),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the experts of"), HasSubstr("/CPU beside"))));
  EXPECT_THAT(FitsBeside({.devices = {99 * kMiB, 10 * kMiB, 19 * kMiB}}, planned_),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("/CUDA1 beside")));
  // Stages that are kept are loaded already.
  planned_.kept = {std::nullopt, wire::KeptStage()};
  EXPECT_THAT(FitsBeside({.devices = {28 * kMiB, 10 * kMiB, 0}}, planned_), IsOk());
}

TEST_F(CapacityLimitTest, ADeviceThatComputesWrongNumbersGetsNothing) {
  const auto limit =
      CapacityLimitOf(planned_, WithStage(WithWrongNumbers(absl::DataLossError("no numbers")), 1));
  ASSERT_TRUE(limit.has_value());
  EXPECT_TRUE(limit->wrong_numbers);
  EXPECT_EQ(limit->node_id, "kitchen's id");
  EXPECT_EQ(limit->device, "CUDA1");
  EXPECT_EQ(limit->bytes, 0u);
  // Of weights that are damaged, for example, wherever they are had from.
  EXPECT_FALSE(CapacityLimitOf(planned_, WithStage(absl::DataLossError("no"), 1)).has_value());
}

TEST_F(CapacityLimitTest, IsNoneForAnotherFailure) {
  EXPECT_FALSE(CapacityLimitOf(planned_, WithStage(absl::InternalError("no"), 0)).has_value());
  EXPECT_FALSE(
      CapacityLimitOf(planned_, WithStage(absl::ResourceExhaustedError("no"), 0)).has_value());
  EXPECT_FALSE(LimitOf(2, {}).has_value());
}

}  // namespace
}  // namespace strata
