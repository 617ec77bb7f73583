// mDNS between discoveries of one process, in a network namespace that has only the loopback.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/base/node_id.h"
#include "transport/discovery/discovery.h"

namespace strata {
namespace {

using testing::AnyOf;
using testing::Each;

constexpr uint64_t kPatienceMs = 20'000;

// Moves this process into an empty network namespace; false where the system does not allow it.
// REQUIRES: no other thread has started.
bool EnterOwnNetwork() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request = {};
  strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING | IFF_MULTICAST;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return up;
}

class Seen : public Discovery::Listener {
 public:
  explicit Seen(std::function<void()> changed) : changed_(std::move(changed)) {}
  void OnFound(const DiscoveryRecord& record) override {
    records[record.node_id] = record;
    changed_();
  }
  void OnLost(const std::string& node_id) override {
    EXPECT_EQ(records.erase(node_id), 1u) << "lost, but never found";
    changed_();
  }
  std::map<std::string, DiscoveryRecord> records;

 private:
  const std::function<void()> changed_;
};

class MdnsDiscovery : public testing::Test {
 protected:
  struct Peer {
    explicit Peer(std::function<void()> changed) : seen(std::move(changed)) {}
    DiscoveryRecord self;
    Seen seen;
    std::unique_ptr<Discovery> discovery;
  };

  void SetUp() override {
    if (!EnterOwnNetwork()) GTEST_SKIP() << "no network namespaces here: " << strerror(errno);
    loop_ = EventLoop::Create();
  }

  std::unique_ptr<Peer> Start(const std::string& name, uint16_t port) {
    auto peer = std::make_unique<Peer>([this] { Check(); });
    peer->self = {.node_id = NewNodeId(),
                  .name = PrintableText::From(name),
                  .cluster = "home",
                  .protocol = 1};
    auto discovery =
        Discovery::StartMdns(loop_.get(), {.self = peer->self, .port = port}, &peer->seen);
    EXPECT_TRUE(discovery.ok()) << discovery.status();
    if (!discovery.ok()) return nullptr;
    peer->discovery = *std::move(discovery);
    peer->discovery->Announce(ReadInterfaceAddresses());
    return peer;
  }

  void Check() {
    loop_->Post([this] {
      if (done_ && done_()) loop_->Stop();
    });
  }
  // Runs the loop, once, until `done` returns true, which is called after each change.
  void Run(std::function<bool()> done) {
    done_ = std::move(done);
    auto patience = loop_->StartTimer({.delay_ms = kPatienceMs}, [this] {
      ADD_FAILURE() << "nothing comes any more";
      loop_->Stop();
    });
    loop_->Run();
  }

  std::unique_ptr<EventLoop> loop_;
  std::function<bool()> done_;
};

TEST_F(MdnsDiscovery, NodesOfOneMachineSeeEachOtherAndNotThemselves) {
  auto kitchen = Start("kitchen", 7401);
  auto attic = Start("attic", 7402);
  auto watcher = Start("watcher", 0);  // announces nothing
  ASSERT_TRUE(kitchen != nullptr && attic != nullptr && watcher != nullptr);
  Run([&] {
    return kitchen->seen.records.size() == 1 && attic->seen.records.size() == 1 &&
           watcher->seen.records.size() == 2;
  });
  ASSERT_EQ(kitchen->seen.records.count(attic->self.node_id), 1u);
  const DiscoveryRecord& record = kitchen->seen.records[attic->self.node_id];
  EXPECT_EQ(record.name, "attic");
  EXPECT_EQ(record.cluster, "home");
  EXPECT_EQ(record.protocol, 1u);
  EXPECT_THAT(record.addresses, Each(AnyOf("127.0.0.1:7402", "[::1]:7402")));
  EXPECT_EQ(watcher->seen.records.count(watcher->self.node_id), 0u);
}

TEST_F(MdnsDiscovery, ANodeThatLeavesIsLost) {
  auto kitchen = Start("kitchen", 7401);
  auto attic = Start("attic", 7402);
  ASSERT_TRUE(kitchen != nullptr && attic != nullptr);
  bool found = false;
  Run([&] {
    if (!found && !kitchen->seen.records.empty()) {
      found = true;
      attic->discovery.reset();
    }
    return found && kitchen->seen.records.empty();
  });
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace strata
