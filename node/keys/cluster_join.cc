#include "node/keys/cluster_join.h"

#include <signal.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "node/base/process_setup.h"
#include "node/keys/key_file.h"
#include "node/workers/parent_watch.h"
#include "transport/base/clock.h"
#include "transport/base/event_loop.h"
#include "transport/pairing/pairing_service.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/listening_server.h"
#include "transport/security/tls_look.h"

namespace strata {
namespace {

constexpr uint64_t kTickMs = 1'000;
constexpr absl::Duration kPeerLook = absl::Seconds(2);
constexpr absl::Duration kAnswerGrace = absl::Milliseconds(1'000);

class ClusterJoin final : private Discovery::Listener {
 public:
  explicit ClusterJoin(const ClusterJoinOptions& options)
      : options_(options),
        guest_(Clock::Real(), {.on_code = [](const std::string& code,
                                             const std::string& name) { ShowCode(code, name); },
                               .on_ended = [](const absl::Status& why) { ShowEnd(why); },
                               .on_admitted =
                                   [this](ClusterKey key, const PairingIdentity& from) {
                                     return AcceptKey(std::move(key), from);
                                   }}) {}
  ~ClusterJoin() override {
    for (std::thread& look : looks_) look.join();
    if (server_ != nullptr) server_->Shutdown(DeadlineIn(kAnswerGrace));
  }

  absl::StatusOr<ClusterKey> Run() {
    if (absl::Status status = Listen(); !status.ok()) return status;
    if (options_.mdns) Announce();
    std::unique_ptr<ParentWatch> watch;
    if (options_.stop_with_parent) {
      watch = ParentWatch::Start({.on_gone = [this] { loop_->Post([this] { loop_->Stop(); }); }});
    }
    std::vector<std::unique_ptr<EventLoop::Handle>> signals;
    for (int signum : EndSignals()) {
      signals.push_back(loop_->OnSignal(signum, [this] { loop_->Stop(); }));
    }
    for (const std::string& peer : options_.peers) {
      looks_.emplace_back([this, peer] {
        const auto shown = LookAtCertificate(peer, kPeerLook);
        if (shown.ok() && !shown->cluster_id.empty()) {
          loop_->Post([this, id = shown->cluster_id] { OnCluster(id); });
        }
      });
    }
    const auto look = loop_->StartTimer(
        {.delay_ms = static_cast<uint64_t>(options_.look_ms), .repeat_ms = kTickMs},
        [this] { Decide(); });
    loop_->Run();
    if (key_.has_value()) return *std::move(key_);
    if (!failed_.ok()) return failed_;
    return absl::CancelledError("stopped while it waited for a key");
  }

 private:
  absl::Status Listen() {
    service_ = MakePairingService(&guest_);
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kPairingMessageBytesMax);
    builder.RegisterService(service_.get());
    // Without TLS, for the reason in pairing_service.h.
    auto server = ListeningServer::Start(
        {.address = JoinHostPort(ListenHost(options_.listen.host), options_.listen.port),
         .credentials = grpc::InsecureServerCredentials()},
        &builder);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    port_ = server_->port();
    return absl::OkStatus();
  }

  void Announce() {
    DiscoveryRecord self = options_.self;
    self.waits = true;
    auto discovery =
        Discovery::StartMdns(loop_.get(), {.self = std::move(self), .port = port_}, this);
    if (!discovery.ok()) {
      LOG(WARNING) << "cannot look for clusters on this network: " << discovery.status().message();
      return;
    }
    discovery_ = *std::move(discovery);
    discovery_->Announce(ReadInterfaceAddresses());
  }

  void OnFound(const DiscoveryRecord& record) override {
    if (record.cluster != options_.self.cluster) return;
    if (record.waits) {
      others_.insert(record.node_id);
    } else if (!record.key_id.empty()) {
      others_.erase(record.node_id);
      OnCluster(record.key_id.str());
    } else {
      Fail(absl::UnauthenticatedError(
          absl::StrCat("the nodes of cluster ", record.cluster,
                       " on this network have no key; to join them, start this node with --open")));
    }
  }
  void OnLost(const std::string& node_id) override { others_.erase(node_id); }

  void OnCluster(const std::string& id) {
    if (!std::exchange(cluster_seen_, id).empty()) return;
    AnnounceWaiting(absl::StrCat("a cluster is here (", id, ")"));
  }

  void Decide() {
    guest_.Tick();
    if (!cluster_seen_.empty() || key_.has_value()) return;
    if (!options_.peers.empty()) return AnnounceWaiting("it is to join the cluster of its peers");
    // Of the nodes that began together, the one with the lowest id founds the cluster.
    if (!others_.empty() && *others_.begin() < options_.self.node_id) return;
    absl::StatusOr<ClusterKey> key = ClusterKey::New();
    if (!key.ok()) return Fail(key.status());
    if (absl::Status status = StoreKey(*key); !status.ok()) return Fail(status);
    absl::FPrintF(stderr,
                  "No cluster is here: %s has founded one (%s). To add a machine: run 'strata "
                  "node' there, then 'strata approve' here.\n",
                  options_.self.name.str(), key->id());
    key_ = *std::move(key);
    loop_->Stop();
  }

  void AnnounceWaiting(const std::string& why) {
    if (std::exchange(announced_, true)) return;
    absl::FPrintF(stderr,
                  "%s has no key, and %s: it waits to be admitted. On a machine of the cluster, "
                  "run 'strata approve %s', or where that does not see it: 'strata approve "
                  "THIS-MACHINE:%d'.\n",
                  options_.self.name.str(), why, options_.self.name.str(), port_);
  }

  static void ShowCode(const std::string& code, const std::string& name) {
    absl::FPrintF(stderr,
                  "%s admits this node. The code is  %s  : say yes there if it is the same.\n",
                  name, code);
  }
  static void ShowEnd(const absl::Status& why) {
    absl::FPrintF(stderr, "That code is not valid any more: %s\n", why.message());
  }

  absl::Status StoreKey(const ClusterKey& key) const {
    return options_.key_path.empty() ? absl::OkStatus() : CreateKeyFile(options_.key_path, key);
  }

  // Runs on one of gRPC's threads.
  absl::Status AcceptKey(ClusterKey key, const PairingIdentity& from) {
    if (absl::Status status = StoreKey(key); !status.ok()) {
      LOG(ERROR) << "the key of cluster " << key.id() << " cannot be stored: " << status.message();
      return status;
    }
    absl::FPrintF(stderr, "%s has admitted this node to cluster %s.\n", from.name, key.id());
    auto accepted = std::make_shared<ClusterKey>(std::move(key));  // functions are copied
    loop_->Post([this, accepted] {
      key_ = std::move(*accepted);
      loop_->Stop();
    });
    return absl::OkStatus();
  }

  void Fail(absl::Status status) {
    failed_ = std::move(status);
    loop_->Stop();
  }

  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  const ClusterJoinOptions options_;
  PairingGuest guest_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<ListeningServer> server_;
  uint16_t port_ = 0;
  std::unique_ptr<Discovery> discovery_;
  std::vector<std::thread> looks_;  // at peers
  std::set<std::string> others_;    // that have no key either, by id
  std::string cluster_seen_;        // its key's id
  bool announced_ = false;
  std::optional<ClusterKey> key_;
  absl::Status failed_;
};

}  // namespace

absl::StatusOr<ClusterKey> AwaitKey(const ClusterJoinOptions& options) {
  return ClusterJoin(options).Run();
}

}  // namespace strata
