#include "coordinator/cluster/peer_paths.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr char kA[] = "10.0.0.1:7";
constexpr char kB[] = "10.1.0.1:7";
constexpr int64_t kMs = 1000;

class PeerPathsTest : public testing::Test {
 protected:
  // Sends the probes that are due, once, and answers those with a time.
  void Probe(const std::vector<std::pair<std::string, int64_t>>& times_us) {
    const int64_t sent_us = now_us_;
    for (const std::string& address : paths_.TakeProbes(sent_us)) {
      bool answered = false;
      for (const auto& [each, time_us] : times_us) {
        if (each != address) continue;
        paths_.Answered(address, sent_us, sent_us + time_us);
        answered = true;
      }
      if (!answered) paths_.Failed(address, sent_us, sent_us + kMs);
    }
    now_us_ += 10 * kMs;
  }

  int64_t now_us_ = 1'000'000;
  PeerPaths paths_{PeerPaths::Options()};
};

TEST_F(PeerPathsTest, NoPathWorksBeforeAnAnswer) {
  paths_.SetAnnounced({kA});
  EXPECT_EQ(paths_.TakeBest(now_us_), "");
  EXPECT_THAT(paths_.TakeProbes(now_us_), ElementsAre(kA));
  EXPECT_THAT(paths_.TakeProbes(now_us_), IsEmpty()) << "one probe at a time";
  paths_.Answered(kA, now_us_, now_us_ + 5 * kMs);
  EXPECT_EQ(paths_.TakeBest(now_us_ + 5 * kMs), kA);
}

TEST_F(PeerPathsTest, TheFastestWorkingPathIsKept) {
  paths_.SetAnnounced({kA, kB, "10.2.0.1:7"});
  Probe({{kA, 9 * kMs}, {kB, 9 * kMs}});  // includes connecting: not timed
  EXPECT_EQ(paths_.round_trip_us(), 0);
  Probe({{kA, 900}, {kB, 300}});
  EXPECT_EQ(paths_.best(), kB);
  EXPECT_EQ(paths_.round_trip_us(), 300);
}

TEST_F(PeerPathsTest, TwoEqualPathsDoNotAlternate) {
  paths_.SetAnnounced({kA, kB});
  Probe({{kA, kMs}, {kB, kMs}});
  Probe({{kA, 300}, {kB, 310}});
  EXPECT_EQ(paths_.best(), kA);
  for (int i = 0; i < 20; ++i) {
    now_us_ += 6'000 * kMs;
    const int64_t sent_us = now_us_;
    EXPECT_EQ(paths_.TakeBest(sent_us), kA);
    paths_.Answered(kA, sent_us, sent_us + (i % 2 == 0 ? 290 : 330));
    Probe({{kB, 300}});
  }
  EXPECT_EQ(paths_.best(), kA);
}

TEST_F(PeerPathsTest, APathThatFailsIsReplacedAtOnceAndRetriedLater) {
  paths_.SetAnnounced({kA, kB});
  Probe({{kA, kMs}, {kB, kMs}});
  Probe({{kA, 100}, {kB, 300}});
  const int64_t sent_us = now_us_;
  ASSERT_EQ(paths_.TakeBest(sent_us), kA);
  paths_.Failed(kA, sent_us, sent_us + kMs);
  EXPECT_EQ(paths_.best(), kB);
  now_us_ += 600 * kMs;
  Probe({{kA, kMs}});
  EXPECT_EQ(paths_.best(), kB) << "it was not timed yet";
  Probe({{kA, 100}});
  EXPECT_EQ(paths_.best(), kA);
}

TEST_F(PeerPathsTest, ASilentPathIsBypassedBeforeItFails) {
  paths_.SetAnnounced({kA, kB});
  Probe({{kA, kMs}, {kB, kMs}});
  Probe({{kA, 100}, {kB, 300}});
  ASSERT_EQ(paths_.TakeBest(now_us_), kA);
  EXPECT_EQ(paths_.TakeBest(now_us_ + 250 * kMs), kA);
  EXPECT_EQ(paths_.TakeBest(now_us_ + 500 * kMs), kB);
  paths_.Answered(kA, now_us_, now_us_ + 600 * kMs);
  EXPECT_EQ(paths_.TakeBest(now_us_ + 700 * kMs), kA) << "it was only slow once";
}

TEST_F(PeerPathsTest, AFailureOlderThanAnAnswerIsIgnored) {
  paths_.SetAnnounced({kA});
  Probe({{kA, kMs}});
  const int64_t lost_us = now_us_, kept_us = now_us_ + 250 * kMs;
  paths_.TakeBest(lost_us);
  paths_.TakeBest(kept_us);
  paths_.Answered(kA, kept_us, kept_us + kMs);
  paths_.Failed(kA, lost_us, lost_us + 1'000 * kMs);
  EXPECT_EQ(paths_.best(), kA);
}

TEST_F(PeerPathsTest, AnAddressOfAnotherNodeIsNotUsed) {
  paths_.SetAnnounced({kA});
  paths_.Observe(kB);
  EXPECT_THAT(paths_.TakeProbes(now_us_), UnorderedElementsAre(kA, kB));
  paths_.Wrong(kA, now_us_);
  paths_.Wrong(kB, now_us_);
  EXPECT_EQ(paths_.best(), "");
  EXPECT_THAT(paths_.addresses(), ElementsAre(kA)) << "what is announced may become right";
  EXPECT_THAT(paths_.TakeProbes(now_us_ + 5'000 * kMs), IsEmpty());
  EXPECT_THAT(paths_.TakeProbes(now_us_ + 11'000 * kMs), ElementsAre(kA));
}

TEST_F(PeerPathsTest, ProbesOfAnAddressThatDoesNotAnswerBackOffUntilThereIsNews) {
  paths_.SetAnnounced({kA});
  int probes = 0;
  for (int ms = 0; ms < 20'000; ms += 100) {
    for (const std::string& address : paths_.TakeProbes(now_us_ + ms * kMs)) {
      ++probes;
      paths_.Failed(address, now_us_ + ms * kMs, now_us_ + ms * kMs);
    }
  }
  EXPECT_LE(probes, 13);
  EXPECT_GE(probes, 8);
  now_us_ += 20'000 * kMs;
  paths_.TakeProbes(now_us_);
  paths_.Failed(kA, now_us_, now_us_);
  EXPECT_THAT(paths_.TakeProbes(now_us_ + kMs), IsEmpty());
  paths_.TryAgain();
  EXPECT_THAT(paths_.TakeProbes(now_us_ + kMs), ElementsAre(kA));
}

TEST_F(PeerPathsTest, AnAddressNoLongerAnnouncedIsForgotten) {
  paths_.SetAnnounced({kA, kB});
  Probe({{kA, kMs}, {kB, kMs}});
  Probe({{kA, 100}, {kB, 300}});
  paths_.SetAnnounced({kB});
  EXPECT_EQ(paths_.best(), kB);
  paths_.Answered(kA, now_us_, now_us_ + kMs);  // still in flight
  EXPECT_THAT(paths_.addresses(), ElementsAre(kB));
}

TEST_F(PeerPathsTest, ObservedAddressesYieldToAnnouncedOnes) {
  PeerPaths paths({.addresses_max = 3});
  paths.Observe("o1:1");
  paths.Observe("o2:1");
  paths.SetAnnounced({kA, kB});
  EXPECT_THAT(paths.addresses(), UnorderedElementsAre(kA, kB, "o2:1"));
  paths.SetAnnounced({"a:1", "b:1", "c:1", "d:1", "e:1"});
  EXPECT_EQ(paths.addresses().size(), 3u);
}

}  // namespace
}  // namespace strata
