// Runtimes of several nodes in one thread, under a fake clock, on a network of addresses that the
// test cuts and slows.
#include "coordinator/cluster/cluster_runtime.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_event_loop.h"
#include "tests/support/log_capture.h"
#include "transport/base/version.h"

namespace strata {
namespace {

class FakeNetwork {
 public:
  explicit FakeNetwork(EventLoop* loop) : loop_(loop) {}

  struct Route {
    ClusterRuntime* node = nullptr;
    int64_t one_way_ms = 1;
    bool silent = false;  // takes requests and never answers
  };
  // By address; an address without a route refuses.
  std::map<std::string, Route> routes;
  size_t calls = 0;  // so far

  std::unique_ptr<PeerTransport> Transport() { return std::make_unique<FakeTransport>(this); }

  // The process there has ended: its machine closes its connections, and refuses new ones.
  void Kill(const std::string& address) {
    routes.erase(address);
    for (const auto& [transport, fn] : broken_) {
      if (fn) fn(address);
    }
  }

 private:
  class FakeTransport final : public PeerTransport {
   public:
    explicit FakeTransport(FakeNetwork* network) : network_(network) {}
    ~FakeTransport() override { network_->broken_.erase(this); }
    void OnBroken(std::function<void(const std::string& address)> fn) override {
      network_->broken_[this] = std::move(fn);
    }
    void Exchange(const std::string& address, const wire::Heartbeat& request, int64_t timeout_ms,
                  Done<wire::Heartbeat> done) override {
      network_->Call<wire::Heartbeat>(
          address, timeout_ms,
          [request](ClusterRuntime* node) { return node->Exchange(request, ""); }, std::move(done));
    }
    void Identify(const std::string& address, int64_t timeout_ms,
                  Done<wire::IdentifyResponse> done) override {
      network_->Call<wire::IdentifyResponse>(
          address, timeout_ms,
          [](ClusterRuntime* node) -> absl::StatusOr<wire::IdentifyResponse> {
            return node->Identify();
          },
          std::move(done));
    }
    void IsRefused(const std::string& address, int64_t timeout_ms,
                   absl::AnyInvocable<void(bool) &&> done) override {
      const auto it = network_->routes.find(address);
      const bool refused = it == network_->routes.end();
      const bool silent = !refused && it->second.silent;
      network_->After(silent ? timeout_ms : 1,
                      [refused, done = std::move(done)]() mutable { std::move(done)(refused); });
    }
    void Forget(const std::string&) override {}

   private:
    FakeNetwork* const network_;
  };

  void After(int64_t ms, absl::AnyInvocable<void()> fn) {
    timers_.push_back(loop_->StartTimer({.delay_ms = static_cast<uint64_t>(ms)}, std::move(fn)));
  }

  template <typename Response>
  void Call(const std::string& address, int64_t timeout_ms,
            std::function<absl::StatusOr<Response>(ClusterRuntime*)> serve,
            PeerTransport::Done<Response> done) {
    ++calls;
    const auto it = routes.find(address);
    if (it == routes.end()) {
      After(1, [done = std::move(done)]() mutable {
        std::move(done)(absl::UnavailableError("refused"));
      });
      return;
    }
    if (it->second.silent) {
      After(timeout_ms, [done = std::move(done)]() mutable {
        std::move(done)(absl::DeadlineExceededError("no answer"));
      });
      return;
    }
    const Route route = it->second;
    After(route.one_way_ms,
          [this, route, serve = std::move(serve), done = std::move(done)]() mutable {
            auto answer = std::make_shared<absl::StatusOr<Response>>(serve(route.node));
            After(route.one_way_ms, [answer, done = std::move(done)]() mutable {
              std::move(done)(std::move(*answer));
            });
          });
  }

  EventLoop* const loop_;
  std::vector<std::unique_ptr<EventLoop::Handle>> timers_;
  std::map<PeerTransport*, std::function<void(const std::string& address)>> broken_;
};

// One network's mDNS: each announcement is passed to all others, as avahi does.
class FakeMdns final : public Discovery {
 public:
  static absl::StatusOr<std::unique_ptr<Discovery>> Start(EventLoop*, Options options,
                                                          Listener* listener) {
    return std::make_unique<FakeMdns>(std::move(options), listener);
  }
  FakeMdns(Options options, Listener* listener)
      : options_(std::move(options)), listener_(listener) {
    All().insert(this);
  }
  ~FakeMdns() override { All().erase(this); }
  void Announce(const std::vector<InterfaceAddress>&) override {}

  // A round of announcements, each with the address that `address_of` gives for its nonce.
  static void AnnounceAll(const std::function<std::string(uint64_t nonce)>& address_of) {
    for (FakeMdns* from : All()) {
      DiscoveryRecord record = from->options_.self;
      record.addresses = {address_of(record.nonce)};
      for (FakeMdns* to : All()) {
        if (to != from) to->listener_->OnFound(record);
      }
    }
  }

 private:
  static std::set<FakeMdns*>& All() {
    static auto* const all = new std::set<FakeMdns*>;
    return *all;
  }

  const Options options_;
  Listener* const listener_;
};

// The addresses of names. A look-up takes 10 ms.
std::map<std::string, HostAddresses>& Names() {
  static auto* const names = new std::map<std::string, HostAddresses>;
  return *names;
}
std::unique_ptr<EventLoop::Handle> LookUpName(EventLoop* loop, const std::string& host,
                                              absl::AnyInvocable<void(HostAddresses) &&> done) {
  return loop->StartTimer({.delay_ms = 10}, [host, done = std::move(done)]() mutable {
    std::move(done)(Names().at(host));
  });
}

class ClusterRuntimeTest : public ::testing::Test {
 protected:
  // Node `n` listens at 10.0.0.<n>:7 and announces that.
  struct Kind {
    std::string cluster = "home";
    uint32_t protocol = kProtocolVersion;
    std::vector<std::string> addresses = {};  // announced instead
    int id = 0;                               // not n, if not 0
    Discovery::Starter discovery = nullptr;
    std::string key_id = "";
  };
  ClusterRuntime* Add(int n, std::vector<std::string> peers) {
    return Add(n, std::move(peers), {});
  }
  ClusterRuntime* Add(int n, std::vector<std::string> peers, const Kind& kind) {
    ClusterRuntime::Options options;
    const int id = kind.id == 0 ? n : kind.id;
    options.self = {.id = {.high = 0, .low = static_cast<uint64_t>(id)},
                    .boot = 1000,
                    .name = PrintableText::From(absl::StrCat("node-", n)),
                    .cluster = PrintableText::From(kind.cluster),
                    .protocol = kind.protocol,
                    .nonce = nodes_.size() + 1};
    options.peers = std::move(peers);
    options.discovery = kind.discovery;
    options.look_up = &LookUpName;
    options.key_id = kind.key_id;
    nodes_.push_back(std::make_unique<ClusterRuntime>(&loop_, &clock_, std::move(options),
                                                      network_.Transport()));
    ClusterRuntime* node = nodes_.back().get();
    const std::string host = absl::StrCat("10.0.0.", n);
    network_.routes[host + ":7"] = {.node = node};
    node->Start({.address = {.host = host, .port = 7}, .advertise = kind.addresses});
    return node;
  }

  static std::string StateOf(ClusterRuntime* at, ClusterRuntime* of) {
    const ClusterView::Node* node = at->view().Find(of->id());
    return node == nullptr ? "unknown" : StateName(node->state);
  }

  FakeClock clock_;
  FakeEventLoop loop_{&clock_};
  FakeNetwork network_{&loop_};
  std::vector<std::unique_ptr<ClusterRuntime>> nodes_;
};

TEST_F(ClusterRuntimeTest, APeerIsEnoughForBothToKnowEachOther) {
  ClusterRuntime* a = Add(1, {});
  ClusterRuntime* b = Add(2, {"10.0.0.1:7"});
  clock_.AdvanceMs(1000);
  EXPECT_EQ(StateOf(a, b), "alive");
  EXPECT_EQ(StateOf(b, a), "alive");
  EXPECT_EQ(a->AddressOf(b->id()), "10.0.0.2:7");
}

// As a headless service of Kubernetes': one name for all nodes, which changes as they come and go.
TEST_F(ClusterRuntimeTest, ANameOfAPeerStandsForAllItsAddressesAndIsLookedUpAgain) {
  Names()["strata"] = absl::NotFoundError("strata: Name or service not known");
  strata::testing::LogCapture log;
  ClusterRuntime* a = Add(1, {"strata:7"});
  ClusterRuntime* b = Add(2, {"strata:7"});
  clock_.AdvanceMs(11'000);
  EXPECT_EQ(StateOf(a, b), "unknown");
  EXPECT_EQ(log.Lines("--peer strata:7: strata: Name or service not known").size(), 2u)
      << "once each";
  Names()["strata"] = std::vector<std::string>{"10.0.0.1", "10.0.0.9", "10.0.0.2"};
  clock_.AdvanceMs(6'000);
  EXPECT_EQ(StateOf(a, b), "alive");
  EXPECT_EQ(StateOf(b, a), "alive");
  EXPECT_EQ(log.Lines("the sender itself").size(), 0u) << "its own address is among them";

  // Both machines are replaced by others, at other addresses.
  Names()["strata"] = std::vector<std::string>{"10.0.0.3", "10.0.0.4"};
  clock_.AdvanceMs(6'000);
  ClusterRuntime* c = Add(3, {"strata:7"});
  ClusterRuntime* d = Add(4, {});
  clock_.AdvanceMs(3'000);
  EXPECT_EQ(StateOf(c, d), "alive");
  EXPECT_EQ(StateOf(a, d), "alive");
}

TEST_F(ClusterRuntimeTest, AnAddressThatAPeersNameHasNoMoreIsNotTried) {
  Names()["strata"] = std::vector<std::string>{"10.0.0.9"};
  Add(1, {"strata:7"});
  clock_.AdvanceMs(5'000);
  const size_t tried = network_.calls;
  EXPECT_GE(tried, 4u);
  Names()["strata"] = absl::UnavailableError("strata: Temporary failure in name resolution");
  clock_.AdvanceMs(10'000);
  EXPECT_GE(network_.calls, tried + 8) << "the last known address is kept where nobody answers";
  Names()["strata"] = std::vector<std::string>{"10.0.0.1"};
  clock_.AdvanceMs(6'000);
  const size_t before = network_.calls;
  clock_.AdvanceMs(10'000);
  EXPECT_EQ(network_.calls, before);
}

TEST_F(ClusterRuntimeTest, PeersTellEachOtherOfTheNodesTheyKnow) {
  ClusterRuntime* a = Add(1, {});
  ClusterRuntime* b = Add(2, {"10.0.0.1:7"});
  ClusterRuntime* c = Add(3, {"10.0.0.1:7"});
  clock_.AdvanceMs(2000);
  EXPECT_EQ(StateOf(b, c), "alive");
  EXPECT_EQ(StateOf(c, b), "alive");
  clock_.AdvanceMs(8000);
  EXPECT_FALSE(a->view().coordinator.is_nobody());
  EXPECT_EQ(a->view().coordinator, b->view().coordinator);
  EXPECT_EQ(a->view().coordinator, c->view().coordinator);
}

TEST_F(ClusterRuntimeTest, TheFasterAddressIsUsedAndTheOtherWhenItBreaks) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7", "10.9.0.2:7"});
  ClusterRuntime* b = Add(2, {});
  network_.routes["10.0.0.2:7"].one_way_ms = 20;
  network_.routes["10.9.0.2:7"] = {.node = b, .one_way_ms = 2};
  clock_.AdvanceMs(3000);
  EXPECT_EQ(a->AddressOf(b->id()), "10.9.0.2:7");
  network_.routes["10.9.0.2:7"].silent = true;
  for (int i = 0; i < 30; ++i) {
    clock_.AdvanceMs(100);
    EXPECT_EQ(StateOf(a, b), "alive")
        << "it switched to the other address before a peer could notice";
  }
  EXPECT_EQ(a->AddressOf(b->id()), "10.0.0.2:7");
  network_.routes["10.9.0.2:7"].silent = false;
  clock_.AdvanceMs(10'000);
  EXPECT_EQ(a->AddressOf(b->id()), "10.9.0.2:7");
}

TEST_F(ClusterRuntimeTest, AnAddressWhereAnotherNodeAnswersIsNotUsed) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {}, {.addresses = {"10.0.0.2:7", "10.0.0.4:7"}});
  ClusterRuntime* c = Add(3, {});
  network_.routes["10.0.0.4:7"] = {.node = b, .one_way_ms = 20};
  clock_.AdvanceMs(1000);
  ASSERT_EQ(a->AddressOf(b->id()), "10.0.0.2:7");
  network_.routes["10.0.0.2:7"].node = c;
  clock_.AdvanceMs(1000);
  EXPECT_EQ(a->AddressOf(b->id()), "10.0.0.4:7");
  EXPECT_EQ(StateOf(a, b), "alive");
}

TEST_F(ClusterRuntimeTest, TwoClustersDoNotMix) {
  ClusterRuntime* a = Add(1, {}, {.cluster = "red"});
  ClusterRuntime* b = Add(2, {"10.0.0.1:7"}, {.cluster = "blue"});
  clock_.AdvanceMs(5000);
  EXPECT_EQ(StateOf(a, b), "unknown");
  EXPECT_EQ(StateOf(b, a), "unknown");
}

TEST_F(ClusterRuntimeTest, AnotherProtocolVersionIsShownAndNotUsed) {
  ClusterRuntime* a = Add(1, {});
  ClusterRuntime* b = Add(2, {"10.0.0.1:7"}, {.protocol = kProtocolVersion + 1});
  clock_.AdvanceMs(5000);
  EXPECT_EQ(StateOf(a, b), "other version");
  EXPECT_EQ(StateOf(b, a), "other version");
  EXPECT_EQ(a->view().members.size(), 1u);
}

TEST_F(ClusterRuntimeTest, ASilentNodeIsGoneAndItsReturnIsSeen) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {});
  clock_.AdvanceMs(1000);
  ASSERT_EQ(StateOf(a, b), "alive");
  network_.routes["10.0.0.1:7"].silent = true;
  network_.routes["10.0.0.2:7"].silent = true;
  clock_.AdvanceMs(60'000);
  EXPECT_EQ(StateOf(a, b), "gone");
  network_.routes["10.0.0.1:7"].silent = false;
  network_.routes["10.0.0.2:7"].silent = false;
  clock_.AdvanceMs(3'500);
  EXPECT_EQ(StateOf(a, b), "alive");
  EXPECT_EQ(StateOf(b, a), "alive");
}

TEST_F(ClusterRuntimeTest, AKilledNodeIsGoneSoonerThanASilentOne) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {});
  const NodeId killed = b->id();
  clock_.AdvanceMs(5000);
  nodes_.pop_back();
  network_.Kill("10.0.0.2:7");
  clock_.AdvanceMs(400);
  EXPECT_EQ(a->view().Find(killed)->state, ClusterView::State::kAlive);
  clock_.AdvanceMs(500);
  EXPECT_EQ(a->view().Find(killed)->state, ClusterView::State::kGone);
  EXPECT_TRUE(a->view().is_coordinator);
}

// Calm nodes send few messages, so the broken connection is noticed first.
TEST_F(ClusterRuntimeTest, ACalmNodeThatIsKilledIsGoneSoonerThanASilentOne) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {});
  const NodeId killed = b->id();
  clock_.AdvanceMs(20'000);
  nodes_.pop_back();
  network_.Kill("10.0.0.2:7");
  clock_.AdvanceMs(600);
  EXPECT_NE(a->view().Find(killed)->state, ClusterView::State::kGone);
  clock_.AdvanceMs(1'200);
  EXPECT_EQ(a->view().Find(killed)->state, ClusterView::State::kGone);
}

TEST_F(ClusterRuntimeTest, AConnectionThatBreaksAloneChangesNothing) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {});
  clock_.AdvanceMs(20'000);
  const auto route = network_.routes["10.0.0.2:7"];
  network_.Kill("10.0.0.2:7");
  network_.routes["10.0.0.2:7"] = route;
  for (int i = 0; i < 30; ++i) {
    clock_.AdvanceMs(100);
    ASSERT_EQ(StateOf(a, b), "alive");
    ASSERT_EQ(a->view().members.size(), 2u);
  }
}

TEST_F(ClusterRuntimeTest, CalmNodesDoLittle) {
  for (int n = 1; n <= 3; ++n) Add(n, {"10.0.0.1:7"});
  clock_.AdvanceMs(20'000);
  ASSERT_EQ(nodes_[2]->view().members.size(), 3u);
  const size_t before = loop_.timer_calls();
  clock_.AdvanceMs(60'000);
  // Half of them are the fake network's, two for each message.
  EXPECT_LE(loop_.timer_calls() - before, 3u * 60 * 12);
}

TEST_F(ClusterRuntimeTest, RequestsOfANodeInASecondGrowAtMostWithTheNodes) {
  const auto calls_of_each_to_each = [&](int nodes) {
    while (nodes_.size() < static_cast<size_t>(nodes)) {
      Add(static_cast<int>(nodes_.size()) + 1, {"10.0.0.1:7"});
    }
    clock_.AdvanceMs(60'000);
    EXPECT_EQ(nodes_[0]->view().members.size(), nodes_.size());
    const size_t before = network_.calls;
    clock_.AdvanceMs(30'000);
    return static_cast<double>(network_.calls - before) / nodes / (nodes - 1);
  };
  const double few = calls_of_each_to_each(5);
  EXPECT_GT(few, 0);
  EXPECT_LE(calls_of_each_to_each(12), 1.05 * few);
}

TEST_F(ClusterRuntimeTest, ANodeThatRefusesAtOneAddressIsThereAtAnother) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7", "10.9.0.2:7"});
  ClusterRuntime* b = Add(2, {}, {.addresses = {"10.0.0.2:7", "10.9.0.2:7"}});
  network_.routes["10.9.0.2:7"] = {.node = b, .one_way_ms = 20};
  clock_.AdvanceMs(8000);
  network_.routes.erase("10.0.0.2:7");
  for (int i = 0; i < 30; ++i) {
    clock_.AdvanceMs(100);
    ASSERT_EQ(StateOf(a, b), "alive");
  }
}

TEST_F(ClusterRuntimeTest, ANodeThatRefusesAndIsHeardLives) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {"10.0.0.1:7"});
  clock_.AdvanceMs(8000);
  network_.routes.erase("10.0.0.2:7");
  for (int i = 0; i < 30; ++i) {
    clock_.AdvanceMs(100);
    ASSERT_EQ(StateOf(a, b), "alive");
  }
}

TEST_F(ClusterRuntimeTest, ANodeThatLeavesIsGoneAtOnceAndSaysWhenItIsDone) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {});
  clock_.AdvanceMs(5000);
  bool left = false;
  b->Leave([&] { left = true; });
  clock_.AdvanceMs(50);
  EXPECT_TRUE(left);
  EXPECT_EQ(StateOf(a, b), "gone");
}

TEST_F(ClusterRuntimeTest, ANodeThatIsAloneMissesSilentNodesButNotEndedOnes) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  clock_.AdvanceMs(1000);
  EXPECT_EQ(a->MissedNodes(), "10.0.0.2:7");
  ClusterRuntime* b = Add(2, {});
  clock_.AdvanceMs(8000);
  EXPECT_EQ(a->MissedNodes(), "");
  network_.routes["10.0.0.1:7"].silent = network_.routes["10.0.0.2:7"].silent = true;
  clock_.AdvanceMs(60'000);
  EXPECT_EQ(a->MissedNodes(), "node-2");
  network_.routes["10.0.0.1:7"].silent = network_.routes["10.0.0.2:7"].silent = false;
  clock_.AdvanceMs(8000);
  EXPECT_EQ(a->MissedNodes(), "");
  b->Leave([] {});
  clock_.AdvanceMs(50);
  EXPECT_EQ(a->MissedNodes(), "");
}

TEST_F(ClusterRuntimeTest, ARemovedNodeIsGoneAtOnceWhateverItSays) {
  ClusterRuntime* a = Add(1, {"10.0.0.3:7"});
  ClusterRuntime* b = Add(2, {"10.0.0.1:7"});
  ClusterRuntime* c = Add(3, {"10.0.0.1:7", "10.0.0.2:7"});
  clock_.AdvanceMs(8000);
  ASSERT_EQ(a->view().members.size(), 3u);
  a->Remove(c->id());
  b->Remove(c->id());
  b->Remove(b->id());  // a node does not remove itself
  clock_.AdvanceMs(50);
  EXPECT_EQ(StateOf(a, c), "gone");
  EXPECT_EQ(StateOf(b, c), "gone");
  for (int i = 0; i < 600; ++i) {
    clock_.AdvanceMs(100);
    ASSERT_EQ(StateOf(a, c), "gone");
    ASSERT_EQ(StateOf(b, c), "gone");
  }
  EXPECT_EQ(a->view().members.size(), 2u);
  EXPECT_EQ(a->view().coordinator, b->view().coordinator);
  // From now on a node that gets through to them has the new key.
  a->LetRemovedReturn();
  b->LetRemovedReturn();
  clock_.AdvanceMs(kReturnMs - 100);
  EXPECT_EQ(StateOf(a, c), "gone");
  clock_.AdvanceMs(8000);
  EXPECT_EQ(a->view().members.size(), 3u);
}

TEST_F(ClusterRuntimeTest, ACloneIsRefusedUntilTheOneThatWasThereIsGone) {
  ClusterRuntime* a = Add(1, {});
  ClusterRuntime* b = Add(2, {"10.0.0.1:7"});
  clock_.AdvanceMs(8000);
  ASSERT_EQ(a->view().members.size(), 2u);
  const NodeId coordinator = a->view().coordinator;
  ClusterRuntime* clone = Add(9, {"10.0.0.1:7", "10.0.0.2:7"}, {.id = 2});
  for (int i = 0; i < 200; ++i) {
    clock_.AdvanceMs(100);
    ASSERT_EQ(a->view().coordinator, coordinator);
    ASSERT_EQ(b->view().coordinator, coordinator);
    ASSERT_TRUE(clone->view().coordinator.is_nobody());
    ASSERT_EQ(a->AddressOf(b->id()), "10.0.0.2:7");
  }
  EXPECT_THAT(clone->WhyRefused(),
              ::testing::HasSubstr("10.0.0.2:7 is taken, 10.0.0.9:7 is refused"));
  EXPECT_EQ(b->WhyRefused(), "");
  for (ClusterRuntime* node : {a, b}) {
    const wire::GetClusterResponse described = node->Describe();
    ASSERT_EQ(described.shared_ids_size(), 1);
    EXPECT_EQ(described.shared_ids(0).name(), "node-2");
    EXPECT_EQ(described.shared_ids(0).taken_address(), "10.0.0.2:7");
    EXPECT_EQ(described.shared_ids(0).refused_address(), "10.0.0.9:7");
    EXPECT_FALSE(described.shared_ids(0).asked_is_refused());
  }
  bool left = false;
  b->Leave([&] { left = true; });
  clock_.AdvanceMs(500);
  EXPECT_TRUE(left);
  network_.routes.erase("10.0.0.2:7");
  clock_.AdvanceMs(10'000);
  EXPECT_EQ(clone->WhyRefused(), "");
  EXPECT_EQ(a->AddressOf(clone->id()), "10.0.0.9:7");
  EXPECT_EQ(a->view().coordinator, clone->view().coordinator);
  EXPECT_EQ(a->Describe().shared_ids_size(), 0);
}

TEST_F(ClusterRuntimeTest, ACloneKnowsAtOnceFromTheOtherOneAlone) {
  ClusterRuntime* a = Add(1, {});
  clock_.AdvanceMs(5000);
  ClusterRuntime* clone = Add(9, {"10.0.0.1:7"}, {.id = 1});
  clock_.AdvanceMs(100);
  EXPECT_NE(clone->WhyRefused(), "");
  clock_.AdvanceMs(20'000);
  EXPECT_NE(clone->WhyRefused(), "");
  EXPECT_TRUE(a->view().is_coordinator);
  ASSERT_EQ(a->Describe().shared_ids_size(), 1);
  EXPECT_EQ(a->Describe().shared_ids(0).refused_address(), "10.0.0.9:7");
}

TEST_F(ClusterRuntimeTest, ClonesThatKnowOfEachOtherByMdnsOnlyAreReported) {
  ClusterRuntime* a = Add(1, {}, {.discovery = &FakeMdns::Start});
  clock_.AdvanceMs(5000);
  ClusterRuntime* clone = Add(9, {}, {.id = 1, .discovery = &FakeMdns::Start});
  FakeMdns::AnnounceAll([](uint64_t nonce) { return nonce == 1 ? "10.0.0.1:7" : "10.0.0.9:7"; });
  clock_.AdvanceMs(3000);
  EXPECT_TRUE(a->view().is_coordinator);
  EXPECT_THAT(clone->WhyRefused(),
              ::testing::HasSubstr("10.0.0.1:7 is taken, 10.0.0.9:7 is refused"));
  ASSERT_EQ(a->Describe().shared_ids_size(), 1);
  EXPECT_EQ(a->Describe().shared_ids(0).refused_address(), "10.0.0.9:7");
}

TEST_F(ClusterRuntimeTest, ANodeWithAnotherKeyIsLeftOutAndBothLogsSayWhatToDo) {
  strata::testing::LogCapture log;
  ClusterRuntime* a = Add(1, {}, {.discovery = &FakeMdns::Start, .key_id = "new"});
  ClusterRuntime* restored = Add(2, {}, {.discovery = &FakeMdns::Start, .key_id = "old"});
  for (int i = 0; i < 3; ++i) {
    FakeMdns::AnnounceAll([](uint64_t nonce) { return absl::StrCat("10.0.0.", nonce, ":7"); });
    clock_.AdvanceMs(2000);
  }
  EXPECT_EQ(StateOf(a, restored), "unknown");
  EXPECT_EQ(StateOf(restored, a), "unknown");
  for (const char* name : {"node-1", "node-2"}) {
    EXPECT_THAT(log.Lines(absl::StrCat(name, " has another key than this node")),
                ::testing::ElementsAre(::testing::HasSubstr("move away the file cluster_key")));
  }
}

TEST_F(ClusterRuntimeTest, AnAddressWhereACloneAnswersIsNotUsed) {
  ClusterRuntime* a = Add(1, {"10.0.0.2:7"});
  ClusterRuntime* b = Add(2, {}, {.addresses = {"10.0.0.2:7", "10.0.0.9:7"}});
  ClusterRuntime* clone = Add(9, {}, {.id = 2});
  network_.routes["10.0.0.2:7"].one_way_ms = 20;
  clock_.AdvanceMs(15'000);
  EXPECT_EQ(a->AddressOf(b->id()), "10.0.0.2:7");
  EXPECT_EQ(a->view().members.size(), 2u);
  ASSERT_EQ(a->Describe().shared_ids_size(), 1);
  EXPECT_EQ(a->Describe().shared_ids(0).refused_address(), "10.0.0.9:7");
  EXPECT_TRUE(clone->view().refused || clone->view().is_coordinator);
  EXPECT_FALSE(b->view().refused);
}

TEST_F(ClusterRuntimeTest, ANodeThatIsStartedAgainHasItsPlaceAndIsNoClone) {
  ClusterRuntime* a = Add(1, {});
  Add(2, {"10.0.0.1:7"});
  clock_.AdvanceMs(8000);
  nodes_.pop_back();  // the kernel has not noticed yet that no process listens
  network_.routes.erase("10.0.0.2:7");
  clock_.AdvanceMs(100);
  ClusterRuntime* again = Add(3, {"10.0.0.1:7"}, {.addresses = {"10.0.0.2:7"}, .id = 2});
  network_.routes["10.0.0.2:7"] = network_.routes["10.0.0.3:7"];
  for (int i = 0; i < 60; ++i) {
    clock_.AdvanceMs(100);
    ASSERT_EQ(a->Describe().shared_ids_size(), 0);
    ASSERT_EQ(again->WhyRefused(), "");
  }
  EXPECT_EQ(a->view().members.size(), 2u);
  EXPECT_EQ(a->AddressOf(again->id()), "10.0.0.2:7");
}

TEST_F(ClusterRuntimeTest, ChangesAreReportedOnceEach) {
  ClusterRuntime* a = Add(1, {});
  int changes = 0;
  a->OnChange([&] { ++changes; });
  Add(2, {"10.0.0.1:7"});
  clock_.AdvanceMs(10'000);
  const int before = changes;
  EXPECT_GT(before, 0);
  clock_.AdvanceMs(10'000);
  EXPECT_EQ(changes, before) << "nothing changed";
}

TEST_F(ClusterRuntimeTest, DescribesTheClusterAsItSeesIt) {
  ClusterRuntime* a = Add(1, {});
  Add(2, {"10.0.0.1:7"});
  clock_.AdvanceMs(5000);
  const wire::GetClusterResponse described = a->Describe();
  EXPECT_EQ(described.cluster(), "home");
  ASSERT_EQ(described.nodes_size(), 2);
  EXPECT_EQ(described.nodes(0).record().name(), "node-1");
  EXPECT_EQ(described.nodes(1).state(), "alive");
  EXPECT_EQ(described.nodes(1).address(), "10.0.0.2:7");
  EXPECT_EQ(described.nodes(1).round_trip_us(), 2000);
  EXPECT_TRUE(described.nodes(1).reachable());
  EXPECT_LT(described.nodes(1).last_heard_ms(), 500);
}

}  // namespace
}  // namespace strata
