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

TEST(ActiveGenerations, FinishesTheOneThatIsMeant) {
  ActiveGenerations texts;
  const auto one = std::make_shared<Control>(), other = std::make_shared<Control>();
  const uint64_t number = texts.Open();
  texts.SetControl(number, one);
  texts.SetControl(texts.Open(), other);
  EXPECT_NE(number, 0u);
  texts.Finish(number);
  EXPECT_EQ(one->finished, 1);
  EXPECT_EQ(one->cancelled, 0);
  EXPECT_EQ(other->finished, 0);
}

TEST(ActiveGenerations, OneThatIsFinishedBeforeItHasItsControlIsFinishedThen) {
  ActiveGenerations texts;
  const auto control = std::make_shared<Control>();
  const uint64_t number = texts.Open();
  texts.Finish(number);
  texts.SetControl(number, control);
  EXPECT_EQ(control->finished, 1);
}

TEST(ActiveGenerations, WhatIsClosedOrNeverWasIsLeftAlone) {
  ActiveGenerations texts;
  const auto control = std::make_shared<Control>();
  const uint64_t number = texts.Open();
  texts.SetControl(number, control);
  texts.Close(number);
  texts.Finish(number);
  texts.Finish(number + 1);
  texts.Finish(0);
  EXPECT_EQ(control->finished, 0);
  const uint64_t ended = texts.Open();
  texts.Close(ended);
  texts.SetControl(ended, control);  // it has ended before its control came
  EXPECT_EQ(control.use_count(), 1);
}

TEST(ActiveGenerations, NumbersAreNotThoseOfANodeBefore) {
  EXPECT_NE(ActiveGenerations().Open(), ActiveGenerations().Open());
}

}  // namespace
}  // namespace strata
