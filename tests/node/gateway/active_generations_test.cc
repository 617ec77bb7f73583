#include "node/gateway/active_generations.h"

#include <memory>

#include "gtest/gtest.h"

namespace strata {
namespace {

class Control final : public GenerationHandle {
 public:
  void Cancel() override { ++cancelled; }
  void Finish() override { ++finished; }
  int cancelled = 0, finished = 0;
};

TEST(ActiveGenerations, FinishesOnlyTheNamedRequest) {
  ActiveGenerations active;
  const auto one = std::make_shared<Control>(), other = std::make_shared<Control>();
  const uint64_t number = active.Open();
  active.SetControl(number, one);
  active.SetControl(active.Open(), other);
  EXPECT_NE(number, 0u);
  active.Finish(number);
  EXPECT_EQ(one->finished, 1);
  EXPECT_EQ(one->cancelled, 0);
  EXPECT_EQ(other->finished, 0);
}

TEST(ActiveGenerations, FinishBeforeTheControlIsSetAppliesToTheControl) {
  ActiveGenerations active;
  const auto control = std::make_shared<Control>();
  const uint64_t number = active.Open();
  active.Finish(number);
  active.SetControl(number, control);
  EXPECT_EQ(control->finished, 1);
}

TEST(ActiveGenerations, IgnoresClosedAndUnknownNumbers) {
  ActiveGenerations active;
  const auto control = std::make_shared<Control>();
  const uint64_t number = active.Open();
  active.SetControl(number, control);
  active.Close(number);
  active.Finish(number);
  active.Finish(number + 1);
  active.Finish(0);
  EXPECT_EQ(control->finished, 0);
  const uint64_t ended = active.Open();
  active.Close(ended);
  active.SetControl(ended, control);  // the request has ended before its control came
  EXPECT_EQ(control.use_count(), 1);
}

TEST(ActiveGenerations, NumbersDifferFromThoseOfAnEarlierProcess) {
  EXPECT_NE(ActiveGenerations().Open(), ActiveGenerations().Open());
}

}  // namespace
}  // namespace strata
