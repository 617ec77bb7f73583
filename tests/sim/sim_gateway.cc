#include "tests/sim/sim_gateway.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace strata {
namespace {

constexpr int64_t kTickUs = absl::ToInt64Microseconds(kRequestTick);
constexpr int64_t kLocalCallUs = 1'000;   // until a call that was not made has ended
constexpr int64_t kFinishUs = 5'000'000;  // as in node/gateway/gateway.cc
constexpr size_t kDoubledOf = 24;         // one message of so many
constexpr size_t kLateUsMax = 3'000'000;  // for a second message

// A client whose gateway breaks the protocol.
class BrokenListener final : public GenerationListener {
 public:
  BrokenListener(std::shared_ptr<GenerationListener> to, bool doubles_tokens, bool ends_twice)
      : to_(std::move(to)), doubles_tokens_(doubles_tokens), ends_twice_(ends_twice) {}

  void OnStarted(const std::vector<int32_t>& prompt) override { to_->OnStarted(prompt); }
  void OnToken(const wire::SampledToken& token) override {
    to_->OnToken(token);
    if (doubles_tokens_) to_->OnToken(token);
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    to_->OnEnd(status, reason, usage);
    if (ends_twice_) to_->OnEnd(status, reason, usage);
  }

 private:
  const std::shared_ptr<GenerationListener> to_;  // the client
  const bool doubles_tokens_, ends_twice_;
};

}  // namespace

// The handle of a request that another node runs.
class SimGateway::RemoteGeneration final : public GenerationHandle {
 public:
  RemoteGeneration(SimGateway* gateway, size_t node, std::weak_ptr<RequestAttempt> attempt)
      : gateway_(gateway), node_(node), attempt_(std::move(attempt)) {}

  void SetConnection(ConnectionPtr connection) { connection_ = std::move(connection); }
  void Started(uint64_t number) { number_ = number; }

  void Cancel() override {
    const auto attempt = attempt_.lock();  // the connection may hold it alone
    if (connection_ != nullptr) connection_->Close(0);
    if (attempt == nullptr) return;
    gateway_->options_.processes->After(gateway_->options_.node, kLocalCallUs, [attempt] {
      attempt->OnBroken(absl::CancelledError("cancelled"));
    });
  }
  void Finish() override {
    if (number_ == 0) return Cancel();
    const auto finish = [node = node_, number = number_,
                         gateway_of = gateway_->options_.gateway_of] {
      if (SimGateway* const there = gateway_of(node)) there->active_.Finish(number);
    };
    SimCall(
        gateway_->options_.processes, gateway_->options_.node, node_, kFinishUs,
        [finish](const SimReply& reply) {
          finish();
          reply([] {});
        },
        [connection = connection_, attempt = attempt_](bool finished) {
          const auto still = attempt.lock();
          if (finished || still == nullptr) return;
          connection->Close(0);
          still->OnBroken(absl::CancelledError("cancelled"));
        });
    // Whichever process runs there by then.
    ClusterSim& cluster = gateway_->cluster();
    if (gateway_->IsDoubled()) {
      cluster.At(cluster.now_us() + static_cast<int64_t>(cluster.Random(kLateUsMax)), finish);
    }
  }

 private:
  SimGateway* const gateway_;  // of the client's process, which this does not outlive
  const size_t node_;
  const std::weak_ptr<RequestAttempt> attempt_;
  ConnectionPtr connection_;  // null: that node does not run
  uint64_t number_ = 0;       // 0: not known
};

// Sends a request's events from the node that runs it to the node of its client.
class SimGateway::Events final : public GenerationListener {
 public:
  Events(SimGateway* here, size_t client_node, ConnectionPtr connection,
         std::shared_ptr<RequestAttempt> attempt, std::shared_ptr<RemoteGeneration> remote)
      : here_(here),
        client_node_(client_node),
        connection_(std::move(connection)),
        attempt_(std::move(attempt)),
        remote_(std::move(remote)) {}

  void Open(uint64_t number) { number_ = number; }

  void OnStarted(const std::vector<int32_t>& prompt) override {
    Send([attempt = attempt_, remote = remote_, number = number_, prompt] {
      remote->Started(number);
      attempt->OnStarted(prompt);
    });
  }
  void OnProgress(const PromptProgress& progress) override {
    Send([attempt = attempt_, progress] { attempt->OnProgress(progress); });
  }
  void OnToken(const wire::SampledToken& token) override {
    Send([attempt = attempt_, token] { attempt->OnToken(token); });
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    here_->active_.Close(number_);
    Send([attempt = attempt_, connection = connection_, status, reason, usage] {
      connection->Close(0);
      attempt->OnEnd(status, reason, usage);
    });
  }

 private:
  void Send(std::function<void()> event) {
    if (!here_->IsDoubled()) return connection_->Send(1, std::move(event));
    const auto late_us = static_cast<int64_t>(here_->cluster().Random(kLateUsMax));
    connection_->Send(1, [event = std::move(event), late_us, node = client_node_,
                          processes = here_->options_.processes] {
      event();
      processes->After(node, late_us, event);
    });
  }

  SimGateway* const here_;  // its generations end with it
  const size_t client_node_;
  const ConnectionPtr connection_;
  const std::shared_ptr<RequestAttempt> attempt_;   // of the client's gateway
  const std::shared_ptr<RemoteGeneration> remote_;  // the same
  uint64_t number_ = 0;
};

SimGateway::SimGateway(Options options)
    : options_(std::move(options)),
      router_(this, {.now =
                         [this] {
                           return SteadyTime() +
                                  absl::Microseconds(cluster().LocalUs(options_.node));
                         }}),
      active_(cluster().Random(size_t{1} << 62)) {}

SimGateway::~SimGateway() {
  for (const auto& call : forgotten_) call->Refuse(absl::CancelledError("the process has ended"));
}

std::shared_ptr<GenerationHandle> SimGateway::Generate(const wire::GenerateRequest& request,
                                                       std::shared_ptr<GenerationListener> client) {
  if (options_.doubles_tokens || options_.ends_twice) {
    client = std::make_shared<BrokenListener>(std::move(client), options_.doubles_tokens,
                                              options_.ends_twice);
  }
  return router_.Generate(request, std::move(client), /*pass_on=*/true);
}

SimGateway::Leader SimGateway::FindLeader(const std::string&) {
  const ClusterView& view = cluster().View(options_.node);
  Leader leader;
  if (view.is_coordinator) {
    leader.place = Leader::Place::kHere;
    leader.may_reload = options_.coordinator->MayReload();
    leader.status = options_.coordinator->Answers();
  } else if (!view.coordinator.is_nobody()) {
    leader.place = Leader::Place::kElsewhere;
    leader.address = absl::StrCat(cluster().NumberOf(view.coordinator));
  }
  return leader;
}

bool SimGateway::IsDoubled() {
  if (cluster().Random(kDoubledOf) != 0) return false;
  ++doubled_;
  return true;
}

void SimGateway::RunHere(const wire::GenerateRequest& request,
                         std::shared_ptr<GenerationCall> call) {
  const bool is_resumed = !request.generated().empty();
  if (is_resumed) ++resumed_;
  if (is_resumed && options_.forgets_requests) {
    forgotten_.push_back(std::move(call));
  } else {
    options_.coordinator->Generate(request, std::move(call));
  }
}

void SimGateway::RunElsewhere(const std::string& address, std::shared_ptr<RequestAttempt> attempt) {
  if (!attempt->request().generated().empty()) ++resumed_;
  size_t node = 0;
  if (!absl::SimpleAtoi(address, &node)) return;
  const auto remote =
      std::make_shared<RemoteGeneration>(this, node, attempt);  // shared with the client
  if (!cluster().running(node)) {
    attempt->SetSource(remote);
    options_.processes->After(options_.node, kLocalCallUs, [attempt] {
      attempt->OnBroken(absl::UnavailableError("the coordinator does not answer"));
    });
    return;
  }
  const auto there = std::make_shared<HandlePtr>();  // shared with the other end
  const ConnectionPtr connection = SimConnection::Open(
      options_.processes,
      {options_.node, [attempt] { attempt->OnBroken(absl::UnavailableError("the call broke")); }},
      {node, [there] {
         if (*there != nullptr) (*there)->Cancel();
       }});
  remote->SetConnection(connection);
  // This node may be gone when it arrives.
  connection->Send(0, [node, there, connection, attempt, remote, from = options_.node,
                       request = attempt->request(), gateway_of = options_.gateway_of] {
    SimGateway* const gateway = gateway_of(node);
    *there = gateway->Serve(request,
                            std::make_shared<Events>(gateway, from, connection, attempt, remote));
  });
  attempt->SetSource(remote);
}

SimGateway::HandlePtr SimGateway::Serve(const wire::GenerateRequest& request,
                                        std::shared_ptr<Events> events) {
  const uint64_t number = active_.Open();
  events->Open(number);
  const HandlePtr handle = router_.Generate(request, std::move(events), /*pass_on=*/false);
  active_.SetControl(number, handle);
  return handle;
}

void SimGateway::DispatchSoon() {
  options_.processes->After(options_.node, 0, [this] { router_.Dispatch(); });
}

void SimGateway::TickSoon() {
  options_.processes->After(options_.node, kTickUs, [this] { router_.Tick(); });
}

}  // namespace strata
