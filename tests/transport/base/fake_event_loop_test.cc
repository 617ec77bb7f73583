#include "tests/support/fake_event_loop.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace strata {
namespace {

TEST(FakeClock, StandsStillUntilMoved) {
  FakeClock clock;
  const int64_t start_us = clock.NowUs();
  EXPECT_EQ(clock.NowUs(), start_us);
  clock.AdvanceMs(5);
  EXPECT_EQ(clock.NowUs(), start_us + 5'000);
}

TEST(FakeEventLoop, NothingRunsUntilTheClockIsMoved) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  int ran = 0;
  loop.Post([&] { ++ran; });
  EXPECT_EQ(ran, 0);
  clock.RunDue();
  EXPECT_EQ(ran, 1);
}

TEST(FakeEventLoop, TimersFireAtTheirTimesInOrder) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  const int64_t start_us = clock.NowUs();
  std::vector<int64_t> at_ms;
  auto note = [&] { at_ms.push_back((clock.NowUs() - start_us) / 1000); };
  auto b = loop.StartTimer({.delay_ms = 20}, note);
  auto a = loop.StartTimer({.delay_ms = 10, .repeat_ms = 15}, note);
  clock.AdvanceMs(9);
  EXPECT_TRUE(at_ms.empty());
  clock.AdvanceMs(41);
  EXPECT_EQ(at_ms, std::vector<int64_t>({10, 20, 25, 40}));
}

TEST(FakeEventLoop, ATimerStartedByATimerFiresInTheSameAdvance) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  std::unique_ptr<EventLoop::Handle> first, second;
  const int64_t start_us = clock.NowUs();
  int64_t fired_us = 0;
  first = loop.StartTimer({.delay_ms = 10}, [&] {
    second = loop.StartTimer({.delay_ms = 10}, [&] { fired_us = clock.NowUs(); });
  });
  clock.AdvanceMs(100);
  EXPECT_EQ(fired_us, start_us + 20'000);
}

TEST(FakeEventLoop, ACancelledTimerDoesNotFireEvenFromItsOwnCallback) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  int fired = 0;
  std::unique_ptr<EventLoop::Handle> timer;
  timer = loop.StartTimer({.delay_ms = 1, .repeat_ms = 1}, [&] {
    if (++fired == 3) timer.reset();
  });
  clock.AdvanceMs(100);
  EXPECT_EQ(fired, 3);
  EXPECT_EQ(loop.watches(), 0u);
}

TEST(FakeEventLoop, LoopsOnOneClockTakeTurnsByTime) {
  FakeClock clock;
  FakeEventLoop a(&clock), b(&clock);
  std::vector<char> ran;
  auto ta = a.StartTimer({.delay_ms = 1, .repeat_ms = 2}, [&] { ran.push_back('a'); });
  auto tb = b.StartTimer({.delay_ms = 2, .repeat_ms = 2}, [&] {
    ran.push_back('b');
    a.Post([&] { ran.push_back('p'); });
  });
  clock.AdvanceMs(4);
  EXPECT_EQ(ran, std::vector<char>({'a', 'b', 'p', 'a', 'b', 'p'}));
}

TEST(FakeEventLoop, PostsOfOtherThreadsRunOnTheLoopThread) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  bool in_loop_thread = false;
  std::thread([&] {
    EXPECT_FALSE(loop.InLoopThread());
    loop.Post([&] { in_loop_thread = loop.InLoopThread(); });
  }).join();
  clock.RunDue();
  EXPECT_TRUE(in_loop_thread);
}

TEST(FakeEventLoop, RunServesPostsUntilStop) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  bool ran = false;
  std::thread other([&] {
    loop.Post([&] { ran = true; });
    loop.Stop();
  });
  loop.Run();
  other.join();
  EXPECT_TRUE(ran);
}

TEST(FakeEventLoop, APostAfterStopIsDestroyedNotRun) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  loop.Stop();
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> weak = held;
  loop.Post([held = std::move(held)] { FAIL(); });
  EXPECT_TRUE(weak.expired());
  clock.RunDue();
}

TEST(FakeEventLoop, SignalsAreRaisedByHand) {
  FakeClock clock;
  FakeEventLoop loop(&clock);
  int got = 0;
  auto watch = loop.OnSignal(15, [&] { ++got; });
  loop.Raise(15);
  loop.Raise(2);
  EXPECT_EQ(got, 1);
  watch.reset();
  loop.Raise(15);
  EXPECT_EQ(got, 1);
}

}  // namespace
}  // namespace strata
