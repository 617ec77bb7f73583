#include "node/client/cluster_client.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "node/base/data_dir.h"
#include "transport/base/event_loop.h"
#include "transport/base/node_id.h"
#include "transport/base/peer_addresses.h"
#include "transport/base/steady_time.h"
#include "transport/base/wall_clock.h"
#include "transport/discovery/discovery.h"
#include "transport/rpc/process_security.h"
#include "transport/security/tls_look.h"

namespace strata {
namespace {

// Time limit of a call to one of several addresses that may not be reachable.
constexpr int64_t kTryMs = 1'000;
// Nodes show certificates of a new key a second after it is in its file.
constexpr absl::Duration kKeyChangeTime = absl::Seconds(4);
constexpr absl::Duration kKeyChangePoll = absl::Milliseconds(250);

// The addresses of the first node that is found on the network, best guess first.
class FirstNodeListener final : public Discovery::Listener {
 public:
  FirstNodeListener(EventLoop* loop, std::string cluster)
      : loop_(loop), cluster_(std::move(cluster)) {}
  void OnFound(const DiscoveryRecord& record) override {
    if (!cluster_.empty() && record.cluster != cluster_) return;
    if (record.waits) return;
    if (record.key_id != ProcessClusterId()) {
      has_other_key = record.addresses;
      return;
    }
    addresses = record.addresses;
    loop_->Stop();
  }
  void OnLost(const std::string&) override {}

  std::vector<std::string> addresses;
  std::vector<std::string> has_other_key;  // the addresses of a node of another cluster

 private:
  EventLoop* const loop_;
  const std::string cluster_;
};

// kUnauthenticated: the node at `address` did not answer because of the key. `is_ours`, if it is
// not null, is set when the key is right, so that a retry may succeed.
absl::Status CheckKey(const std::string& address, bool* is_ours = nullptr) {
  const auto shown = LookAtCertificate(address, absl::Milliseconds(kTryMs));
  const std::string own = ProcessClusterId();
  if (shown.ok() && !own.empty()) {
    const std::string why = WhyRefused(*shown, own, WallNow());
    if (!why.empty()) return absl::UnauthenticatedError(absl::StrCat(address, ": ", why));
    if (is_ours != nullptr) *is_ours = true;
    return absl::OkStatus();
  }
  if (shown.ok()) {
    return absl::UnauthenticatedError(
        absl::StrCat("the node at ", address,
                     " wants its cluster's key, which is not here: run a node here and admit it "
                     "there with 'strata approve', or name the key's file with --key-file"));
  }
  if (absl::IsFailedPrecondition(shown.status()) && !own.empty()) {
    return absl::UnauthenticatedError(
        absl::StrCat(address,
                     " does not prove that it belongs to this cluster: if that node runs "
                     "with --open, use --open here, too"));
  }
  return absl::OkStatus();
}

// kUnauthenticated: nodes were found, and none of them has this machine's key.
absl::StatusOr<std::vector<std::string>> Discover(const ClientOptions& options) {
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  FirstNodeListener found(loop.get(), options.cluster);
  absl::StatusOr<std::unique_ptr<Discovery>> discovery =
      Discovery::StartMdns(loop.get(), {.self = {.node_id = NewNodeId()}}, &found);
  if (!discovery.ok()) return std::vector<std::string>();
  const auto timer = loop->StartTimer({.delay_ms = static_cast<uint64_t>(options.look_ms)},
                                      [&loop] { loop->Stop(); });
  loop->Run();
  if (found.addresses.empty()) {
    for (const std::string& address : found.has_other_key) {
      if (absl::Status refused = CheckKey(address); !refused.ok()) return refused;
    }
  }
  return std::move(found.addresses);
}

absl::StatusOr<std::unique_ptr<ClusterStub>> ConnectNow(const ClientOptions& options) {
  if (!options.node.empty()) {
    if (absl::StatusOr<HostPort> parsed = ParseHostPort(options.node); !parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--node ", parsed.status().message()));
    }
    auto client = std::make_unique<ClusterStub>(options.node, options.timeout_ms);
    if (absl::Status status = client->GetCluster().status(); !status.ok()) {
      bool is_ours = false;
      absl::Status refused = CheckKey(options.node, &is_ours);
      if (!refused.ok()) return refused;
      if (!is_ours) return status;
      // The node's key may have changed between the two calls.
      client = std::make_unique<ClusterStub>(options.node, options.timeout_ms);
      if (!client->GetCluster().ok()) return status;
    }
    return client;
  }

  const absl::StatusOr<std::string> dir = DataDir::PathOf(options.data_dir);
  std::vector<std::string> addresses;
  absl::Status refused;
  if (dir.ok()) {
    if (absl::StatusOr<std::string> local = DataDir::ReadAddress(*dir); local.ok()) {
      addresses.push_back(*local);
    }
  }
  for (const bool discover : {false, true}) {
    if (discover) {
      auto found = Discover(options);
      if (!found.ok()) {
        refused = found.status();
        break;
      }
      addresses = *std::move(found);
    }
    for (const std::string& address : addresses) {
      auto client = std::make_unique<ClusterStub>(address, options.timeout_ms);
      if (client->GetCluster(kTryMs).ok()) return client;
      if (refused.ok()) refused = CheckKey(address);
    }
  }
  if (!refused.ok()) return refused;
  return absl::UnavailableError(
      "no node is running here, and none was found on the network: start one with 'strata node', "
      "or name one with --node host:port");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterStub>> ConnectToCluster(const ClientOptions& options) {
  if (absl::Status status = SecureClient(options.key, options.data_dir); !status.ok()) {
    return status;
  }
  auto client = ConnectNow(options);
  // Retries while the cluster's key may be changing.
  for (const SteadyTime until = SteadyTime::Now() + kKeyChangeTime;
       absl::IsUnauthenticated(client.status()) && SteadyTime::Now() < until &&
       SecureClientAnew(options.key, options.data_dir);) {
    absl::SleepFor(kKeyChangePoll);
    client = ConnectNow(options);
  }
  return client;
}

}  // namespace strata
