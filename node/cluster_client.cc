#include "node/cluster_client.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "node/data_dir.h"
#include "node/discovery.h"
#include "node/peer_addresses.h"
#include "proto/cluster.grpc.pb.h"
#include "transport/event_loop.h"
#include "transport/grpc_deadline.h"
#include "transport/grpc_link.h"
#include "transport/grpc_status.h"
#include "transport/printable_message.h"
#include "transport/process_security.h"
#include "transport/status_details.h"
#include "transport/steady_time.h"
#include "transport/tls_look.h"
#include "transport/wall_clock.h"

namespace strata {
namespace {

// For one of several addresses that may lead nowhere.
constexpr int64_t kTryMs = 1'000;
// Nodes show certificates of a new key a second after it is in its file.
constexpr absl::Duration kKeyChangeTime = absl::Seconds(4);
constexpr absl::Duration kKeyChangePoll = absl::Milliseconds(250);

class ClusterClientImpl final : public ClusterClient {
 public:
  ClusterClientImpl(std::string address, int64_t timeout_ms)
      : address_(std::move(address)),
        timeout_ms_(timeout_ms),
        stub_(wire::Cluster::NewStub(MakeChannel(address_, kPatientTimeoutMs))) {}

  const std::string& address() const override { return address_; }

  absl::StatusOr<wire::GetClusterResponse> GetCluster() override {
    wire::GetClusterResponse response;
    if (absl::Status status = Ask(timeout_ms_, &response); !status.ok()) return status;
    return response;
  }

  absl::StatusOr<wire::Epoch> NextEpoch() override {
    grpc::ClientContext context;
    SetDeadline(timeout_ms_, &context);
    wire::Epoch epoch;
    if (auto s = Explain(stub_->NextEpoch(&context, wire::NextEpochRequest(), &epoch)); !s.ok()) {
      return s;
    }
    return epoch;
  }

  absl::Status Ask(int64_t timeout_ms, wire::GetClusterResponse* response) {
    grpc::ClientContext context;
    SetDeadline(timeout_ms, &context);
    const absl::Status status =
        Explain(stub_->GetCluster(&context, wire::GetClusterRequest(), response));
    MakePrintable(response);
    return status;
  }

 private:
  static void SetDeadline(int64_t timeout_ms, grpc::ClientContext* context) {
    context->set_deadline(DeadlineIn(absl::Milliseconds(timeout_ms)));
  }

  absl::Status Explain(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
        status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(absl::StrCat("no node answers at ", address_));
    }
    if (IsUnknownCall(status)) {
      return absl::FailedPreconditionError(
          absl::StrCat("what answers at ", address_, " is no node, or another version of one"));
    }
    return Prefixed(address_, FromGrpc(status));
  }

  const std::string address_;
  const int64_t timeout_ms_;
  const std::unique_ptr<wire::Cluster::Stub> stub_;
};

// The addresses of the first node that is found on the network, best guess first.
class FirstFound final : public Discovery::Listener {
 public:
  FirstFound(EventLoop* loop, std::string cluster) : loop_(loop), cluster_(std::move(cluster)) {}
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
  std::vector<std::string> has_other_key;  // the addresses of one that is not of this cluster

 private:
  EventLoop* const loop_;
  const std::string cluster_;
};

// Whether it is for the key that what listens at `address` did not answer. `is_ours`, if it is not
// null: it would answer now, as far as the key is concerned.
absl::Status RefusedForKey(const std::string& address, bool* is_ours = nullptr) {
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
                     " does not prove that it is of this cluster: if it is a node that "
                     "runs with --open, say --open here, too"));
  }
  return absl::OkStatus();
}

// kUnauthenticated: there are nodes, and none of them with the key that is here.
absl::StatusOr<std::vector<std::string>> Look(const ClusterClient::Options& options) {
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  FirstFound found(loop.get(), options.cluster);
  absl::StatusOr<std::unique_ptr<Discovery>> discovery =
      Discovery::StartMdns(loop.get(), {.self = {.node_id = NewNodeId()}}, &found);
  if (!discovery.ok()) return std::vector<std::string>();
  const auto timer = loop->StartTimer({.delay_ms = static_cast<uint64_t>(options.look_ms)},
                                      [&loop] { loop->Stop(); });
  loop->Run();
  if (found.addresses.empty()) {
    for (const std::string& address : found.has_other_key) {
      if (absl::Status refused = RefusedForKey(address); !refused.ok()) return refused;
    }
  }
  return std::move(found.addresses);
}

absl::StatusOr<std::unique_ptr<ClusterClient>> ConnectNow(const ClusterClient::Options& options) {
  wire::GetClusterResponse response;
  if (!options.node.empty()) {
    if (absl::StatusOr<HostPort> parsed = ParseHostPort(options.node); !parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--node ", parsed.status().message()));
    }
    auto client = std::make_unique<ClusterClientImpl>(options.node, options.timeout_ms);
    if (absl::Status status = client->Ask(options.timeout_ms, &response); !status.ok()) {
      bool is_ours = false;
      absl::Status refused = RefusedForKey(options.node, &is_ours);
      if (!refused.ok()) return refused;
      if (!is_ours) return status;
      // Its key may have changed between the two.
      client = std::make_unique<ClusterClientImpl>(options.node, options.timeout_ms);
      if (!client->Ask(options.timeout_ms, &response).ok()) return status;
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
  for (const bool look : {false, true}) {
    if (look) {
      auto found = Look(options);
      if (!found.ok()) {
        refused = found.status();
        break;
      }
      addresses = *std::move(found);
    }
    for (const std::string& address : addresses) {
      auto client = std::make_unique<ClusterClientImpl>(address, options.timeout_ms);
      if (client->Ask(kTryMs, &response).ok()) return client;
      if (refused.ok()) refused = RefusedForKey(address);
    }
  }
  if (!refused.ok()) return refused;
  return absl::UnavailableError(
      "no node is running here, and none was found on the network: start one with 'strata node', "
      "or name one with --node host:port");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterClient>> ClusterClient::Connect(const Options& options) {
  if (absl::Status status = SecureClient(options.key, options.data_dir); !status.ok()) {
    return status;
  }
  auto client = ConnectNow(options);
  // While the cluster's key changes.
  for (const SteadyTime until = SteadyTime::Now() + kKeyChangeTime;
       absl::IsUnauthenticated(client.status()) && SteadyTime::Now() < until &&
       SecureClientAnew(options.key, options.data_dir);) {
    absl::SleepFor(kKeyChangePoll);
    client = ConnectNow(options);
  }
  return client;
}

std::unique_ptr<ClusterClient> ClusterClient::At(const std::string& address, int64_t timeout_ms) {
  return std::make_unique<ClusterClientImpl>(address, timeout_ms);
}

}  // namespace strata
