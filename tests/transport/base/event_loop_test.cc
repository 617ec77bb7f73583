#include "transport/base/event_loop.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "transport/base/clock.h"

namespace strata {
namespace {

TEST(EventLoop, PostsRunInTheOrderPosted) {
  auto loop = EventLoop::Create();
  std::vector<int> ran;
  for (int i = 0; i < 10; ++i) loop->Post([&ran, i] { ran.push_back(i); });
  loop->Post([&] { loop->Stop(); });
  loop->Run();
  EXPECT_EQ(ran, std::vector<int>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(EventLoop, PostsOfManyThreadsAllRunEachInItsOrder) {
  auto loop = EventLoop::Create();
  constexpr int kThreads = 4, kPosts = 1000;
  int next[kThreads] = {};
  int wrong = 0, ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPosts; ++i) {
        loop->Post([&, t, i] {
          if (next[t]++ != i) ++wrong;
          if (++ran == kThreads * kPosts) loop->Stop();
        });
      }
    });
  }
  loop->Run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kPosts);
  EXPECT_EQ(wrong, 0);
}

TEST(EventLoop, PostsBeforeStopRun) {
  auto loop = EventLoop::Create();
  bool ran = false;
  loop->Post([&] {
    loop->Post([&] { ran = true; });
    loop->Stop();
  });
  loop->Run();
  EXPECT_TRUE(ran);
}

TEST(EventLoop, APostAfterRunReturnedIsDestroyedNotRun) {
  auto loop = EventLoop::Create();
  loop->Stop();
  loop->Run();
  bool ran = false;
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> weak = held;
  loop->Post([&ran, held = std::move(held)] { ran = true; });
  EXPECT_TRUE(weak.expired());
  loop.reset();
  EXPECT_FALSE(ran);
}

TEST(EventLoop, ALoopThatNeverRanDestroysItsPosts) {
  auto loop = EventLoop::Create();
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> weak = held;
  bool ran = false;
  loop->Post([&ran, held = std::move(held)] { ran = true; });
  loop.reset();
  EXPECT_TRUE(weak.expired());
  EXPECT_FALSE(ran);
}

TEST(EventLoop, StopFromAnotherThreadEndsRun) {
  auto loop = EventLoop::Create();
  std::thread other([&] { loop->Stop(); });
  loop->Run();
  other.join();
  loop->Stop();
}

TEST(EventLoop, TheLoopThreadIsTheOneInRun) {
  auto loop = EventLoop::Create();
  EXPECT_FALSE(loop->InLoopThread());
  bool inside = false, outside = true;
  loop->Post([&] {
    inside = loop->InLoopThread();
    std::thread([&] { outside = loop->InLoopThread(); }).join();
    loop->Stop();
  });
  loop->Run();
  EXPECT_TRUE(inside);
  EXPECT_FALSE(outside);
}

TEST(EventLoop, TimersFireInTheOrderOfTheirDelays) {
  auto loop = EventLoop::Create();
  std::vector<int> fired;
  auto late = loop->StartTimer({.delay_ms = 30}, [&] {
    fired.push_back(2);
    loop->Stop();
  });
  auto early = loop->StartTimer({.delay_ms = 1}, [&] { fired.push_back(1); });
  loop->Run();
  EXPECT_EQ(fired, std::vector<int>({1, 2}));
}

TEST(EventLoop, ATimerFiresNotBeforeItsDelay) {
  auto loop = EventLoop::Create();
  const int64_t start_us = Clock::Real()->NowUs();
  auto timer = loop->StartTimer({.delay_ms = 20}, [&] { loop->Stop(); });
  loop->Run();
  EXPECT_GE(Clock::Real()->NowUs() - start_us, 19'000);
}

TEST(EventLoop, ARepeatedTimerFiresUntilDestroyed) {
  auto loop = EventLoop::Create();
  int fired = 0;
  std::unique_ptr<EventLoop::Handle> timer, end;
  timer = loop->StartTimer({.delay_ms = 1, .repeat_ms = 1}, [&] {
    if (++fired < 5) return;
    timer.reset();  // from its own callback
    end = loop->StartTimer({.delay_ms = 20}, [&] { loop->Stop(); });
  });
  loop->Run();
  EXPECT_EQ(fired, 5);
}

TEST(EventLoop, ACancelledTimerDoesNotFireAndDestroysItsCallback) {
  auto loop = EventLoop::Create();
  bool fired = false;
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> weak = held;
  auto timer =
      loop->StartTimer({.delay_ms = 1}, [&fired, held = std::move(held)] { fired = true; });
  auto end = loop->StartTimer({.delay_ms = 30}, [&] { loop->Stop(); });
  timer.reset();
  EXPECT_TRUE(weak.expired());
  loop->Run();
  EXPECT_FALSE(fired);
}

TEST(EventLoop, ATimerMayCancelAnotherThatIsDueInTheSameTurn) {
  auto loop = EventLoop::Create();
  int fired = 0;
  std::unique_ptr<EventLoop::Handle> a, b;
  a = loop->StartTimer({.delay_ms = 1}, [&] {
    ++fired;
    b.reset();
  });
  b = loop->StartTimer({.delay_ms = 1}, [&] {
    ++fired;
    a.reset();
  });
  auto end = loop->StartTimer({.delay_ms = 30}, [&] { loop->Stop(); });
  loop->Run();
  EXPECT_EQ(fired, 1);
}

TEST(EventLoop, HandlesMayOutliveRunButNotTheLoop) {
  auto loop = EventLoop::Create();
  auto timer = loop->StartTimer({.delay_ms = 100'000}, [] {});
  loop->Stop();
  loop->Run();
  timer.reset();
  loop.reset();
}

TEST(EventLoop, SignalsReachEachWatch) {
  auto loop = EventLoop::Create();
  int a = 0, b = 0;
  auto watch_a = loop->OnSignal(SIGUSR1, [&] { ++a; });
  auto watch_b = loop->OnSignal(SIGUSR1, [&] {
    if (++b == 2)
      loop->Stop();
    else
      raise(SIGUSR1);
  });
  loop->Post([] { raise(SIGUSR1); });
  loop->Run();
  EXPECT_EQ(b, 2);
  EXPECT_GE(a, 1);
}

// Two ends of a socket pair, closed at the end.
struct Pair {
  Pair() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (const int fd : fds) EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  }
  ~Pair() {
    for (int fd : fds) close(fd);
  }
  int fds[2] = {-1, -1};
};

TEST(EventLoop, ADescriptorIsReportedWhileItIsReady) {
  auto loop = EventLoop::Create();
  const Pair pair;
  ASSERT_EQ(write(pair.fds[1], "ab", 2), 2);
  std::string read_bytes;
  auto watch = loop->WatchFd(pair.fds[0], {.readable = true}, [&](EventLoop::FdEvents events) {
    EXPECT_TRUE(events.readable);
    EXPECT_FALSE(events.writable);
    char byte = 0;
    ASSERT_EQ(read(pair.fds[0], &byte, 1), 1);
    read_bytes += byte;
    if (byte == 'a') {
      ASSERT_EQ(write(pair.fds[1], "c", 1), 1);
    }
    if (byte == 'c') loop->Stop();
  });
  loop->Run();
  EXPECT_EQ(read_bytes, "abc");
}

TEST(EventLoop, AWatchOfADescriptorIsReplacedFromItsOwnCallback) {
  auto loop = EventLoop::Create();
  const Pair pair;
  ASSERT_EQ(write(pair.fds[1], "a", 1), 1);
  std::unique_ptr<EventLoop::Handle> watch;
  int writable = 0;
  watch = loop->WatchFd(pair.fds[0], {.readable = true}, [&](EventLoop::FdEvents) {
    watch.reset();
    watch = loop->WatchFd(pair.fds[0], {.writable = true}, [&](EventLoop::FdEvents events) {
      EXPECT_TRUE(events.writable);
      EXPECT_FALSE(events.readable) << "nobody wants it any more";
      ++writable;
      watch.reset();
      loop->Stop();
    });
  });
  loop->Run();
  EXPECT_EQ(writable, 1);
}

TEST(EventLoop, TheEndOfAPeerIsReadable) {
  auto loop = EventLoop::Create();
  Pair pair;
  close(std::exchange(pair.fds[1], -1));
  auto watch = loop->WatchFd(pair.fds[0], {.readable = true}, [&](EventLoop::FdEvents events) {
    char byte = 0;
    EXPECT_TRUE(events.readable);
    EXPECT_EQ(read(pair.fds[0], &byte, 1), 0);
    loop->Stop();
  });
  loop->Run();
}

TEST(EventLoop, APostThatPostsDoesNotStarveTimers) {
  auto loop = EventLoop::Create();
  std::atomic<bool> stopped = false;
  auto timer = loop->StartTimer({.delay_ms = 5}, [&] {
    stopped = true;
    loop->Stop();
  });
  std::function<void()> again = [&] {
    if (!stopped) loop->Post([&] { again(); });
  };
  loop->Post([&] { again(); });
  loop->Run();
  EXPECT_TRUE(stopped);
}

TEST(EventLoopDeathTest, TimersOfAnotherThreadAreABug) {
  auto loop = EventLoop::Create();
  EXPECT_DEATH(
      {
        loop->Post([&] { std::thread([&] { loop->StartTimer({}, [] {}); }).join(); });
        loop->Run();
      },
      "only the loop thread");
}

TEST(Clock, TheRealClockNeverGoesBack) {
  int64_t last_us = Clock::Real()->NowUs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now_us = Clock::Real()->NowUs();
    EXPECT_GE(now_us, last_us);
    last_us = now_us;
  }
}

}  // namespace
}  // namespace strata
