#include "coordinator/generation/self_tests.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kBegin = 4;
constexpr int kRows = 3;

// The result of a stage with layers 4-5. The second layer's is off by `off` of its size in
// `off_rows` rows.
wire::SelfTest Result(const std::string& node, double off = 0, int off_rows = kRows) {
  wire::SelfTest test;
  test.set_version(1);
  test.set_model_id("the model");
  test.mutable_layers()->set_begin(kBegin);
  test.mutable_layers()->set_end(kBegin + 2);
  test.set_setting("as usual");
  test.set_device_kind("CPU");
  test.set_node_id(node + "'s id");
  test.set_node_name(node);
  test.set_device("CPU");
  for (uint32_t layer = kBegin; layer < kBegin + 2; ++layer) {
    wire::SelfTestPoint* const point = test.add_points();
    point->mutable_layers()->set_begin(layer);
    point->mutable_layers()->set_end(layer + 1);
    const bool is_off = off != 0 && layer > kBegin;
    point->set_hash(is_off ? node : "right");
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < 4; ++i) {
        point->add_sketch(static_cast<float>(10 * i + (is_off && row < off_rows ? 50 * off : 0)));
      }
      point->add_norm(50);
    }
  }
  return test;
}

wire::SelfTest OfKind(const std::string& kind, wire::SelfTest test) {
  test.set_device_kind(kind);
  return test;
}

TEST(ShareApart, IsOfTheWorstRowOrTheMedianOne) {
  const wire::SelfTestPoint right = Result("a").points(1);
  EXPECT_EQ(ShareApart(right, Result("b").points(1), true), 0);
  const wire::SelfTestPoint one = Result("b", 0.5, 1).points(1);
  EXPECT_NEAR(ShareApart(right, one, true).value_or(-1), 0.5, 1e-6);
  EXPECT_EQ(ShareApart(right, one, false), 0);
  EXPECT_NEAR(ShareApart(right, Result("b", 0.5, 2).points(1), false).value_or(-1), 0.5, 1e-6);
  EXPECT_FALSE(ShareApart(right, Result("b").points(0), true).has_value());
}

TEST(CheckSelfTest, LastBitsMayDiffer) {
  EXPECT_THAT(CheckSelfTest(Result("a"), {Result("b", kSelfTestToleranceSameKind / 2)}), IsOk());
  EXPECT_THAT(CheckSelfTest(Result("a"), {Result("b", kSelfTestToleranceSameKind * 2)}),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(CheckSelfTest, DevicesOfAnotherKindMayDifferMoreAndInAFewRowsAltogether) {
  const wire::SelfTest fresh = Result("a");
  const double much = kSelfTestToleranceOtherKind;
  EXPECT_THAT(CheckSelfTest(fresh, {OfKind("Vulkan", Result("b", much / 2))}), IsOk());
  EXPECT_THAT(CheckSelfTest(fresh, {OfKind("Vulkan", Result("b", much * 2))}), Not(IsOk()));
  EXPECT_THAT(CheckSelfTest(fresh, {OfKind("Vulkan", Result("b", 1, 1))}), IsOk());
  EXPECT_THAT(CheckSelfTest(fresh, {Result("b", 1, 1)}), Not(IsOk()));
  wire::SelfTest of_another_library = Result("b", much / 2);
  of_another_library.set_ggml("another");
  EXPECT_THAT(CheckSelfTest(fresh, {of_another_library}), IsOk());
}

TEST(CheckSelfTest, LayersCountWhateverStageTheyWereIn) {
  wire::SelfTest other = Result("b", 0.5);
  other.mutable_layers()->set_begin(0);
  other.mutable_layers()->set_end(9);
  EXPECT_THAT(CheckSelfTest(Result("a"), {other}), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(CheckSelfTest, ResultsOfAnythingElseAreNotCompared) {
  for (const auto& change : std::vector<void (*)(wire::SelfTest*)>{
           [](wire::SelfTest* test) { test->set_version(2); },
           [](wire::SelfTest* test) { test->set_model_id("another"); },
           [](wire::SelfTest* test) { test->set_setting("k=q8_0"); },
           [](wire::SelfTest* test) { test->clear_points(); },
           [](wire::SelfTest* test) { test->mutable_points(1)->mutable_layers()->set_end(9); },
           [](wire::SelfTest* test) { test->mutable_points(1)->set_logits(true); },
           [](wire::SelfTest* test) { test->mutable_points(1)->add_norm(1); },
           [](wire::SelfTest* test) { test->mutable_points(1)->clear_sketch(); }}) {
    wire::SelfTest other = Result("b", 0.5);
    change(&other);
    EXPECT_THAT(CheckSelfTest(Result("a"), {other}), IsOk());
  }
}

TEST(CheckSelfTest, TheFirstResultIsAccepted) {
  EXPECT_THAT(CheckSelfTest(Result("a"), {}), IsOk());
  EXPECT_THAT(CheckSelfTest(wire::SelfTest(), {Result("a")}), IsOk());
}

TEST(CheckSelfTest, OfTwoThatDisagreeBothAreNamed) {
  const absl::Status status = CheckSelfTest(Result("a", 0.5), {Result("b")});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                               AllOf(HasSubstr("layer 5 gives"), HasSubstr("0.5 times"),
                                     HasSubstr("b/CPU"), HasSubstr("third"), HasSubstr("memory"))));
  EXPECT_TRUE(HasWrongNumbers(status));
}

TEST(CheckSelfTest, AnEarlierResultOfItsOwnCountsLikeAnother) {
  EXPECT_THAT(CheckSelfTest(Result("a", 0.5), {Result("a")}),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(CheckSelfTest, TheMajorityIsRight) {
  const wire::SelfTest right = Result("b"), wrong = Result("c", 0.5);
  EXPECT_THAT(CheckSelfTest(Result("a"), {right, wrong}), IsOk());
  EXPECT_THAT(CheckSelfTest(Result("a", 0.7), {right, wrong}),
              StatusIs(absl::StatusCode::kDataLoss, Not(HasSubstr("third"))));
  EXPECT_THAT(CheckSelfTest(Result("a"), {wrong, Result("d", 0.5)}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("c/CPU (")));
}

TEST(CheckSelfTest, TheMajorityIsOfEachLayer) {
  // A result of the first layer only.
  wire::SelfTest half = Result("c");
  half.mutable_points()->RemoveLast();
  EXPECT_THAT(CheckSelfTest(Result("a", 0.5), {half, Result("b")}),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(CheckSelfTest, TheLaterResultOfADeviceCounts) {
  wire::SelfTest earlier = Result("b", 0.5), later = Result("b");
  earlier.set_unix_s(1);
  later.set_unix_s(2);
  EXPECT_THAT(CheckSelfTest(Result("a"), {later, earlier}), IsOk());
  // Reported by two nodes.
  EXPECT_THAT(CheckSelfTest(Result("a"), {earlier, earlier, Result("c")}), IsOk());
}

TEST(CheckSelfTest, AResultWithoutNumbersIsRefusedAtOnce) {
  wire::SelfTest test = Result("a");
  test.set_fault("the logits are not all numbers");
  EXPECT_THAT(CheckSelfTest(test, {}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the logits are not all numbers")));
}

TEST(CheckSelfTest, NaNsOfAPeerDisagree) {
  wire::SelfTest odd = Result("b", 0.5);
  for (auto& point : *odd.mutable_points()) {
    point.set_sketch(0, std::numeric_limits<float>::quiet_NaN());
    point.set_norm(0, 0);
  }
  EXPECT_THAT(CheckSelfTest(Result("a"), {odd}), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace strata
