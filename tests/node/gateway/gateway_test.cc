// A node's gateway and API while no node coordinates.
#include "node/gateway/gateway.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/http_api.h"
#include "node/api/openai/openai_error.h"
#include "node/api/openai/openai_routes.h"
#include "node/gateway/generation_proto.h"
#include "node/rpc/coordinator_service.h"
#include "shard/weights/weight_fetcher.h"
#include "transport/rpc/forwarding.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

class Listener final : public GenerationListener {
 public:
  void OnStarted(const std::vector<int32_t>&) override { ADD_FAILURE() << "it started"; }
  void OnToken(const wire::SampledToken&) override {}
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    end = std::move(status);
    ended.Notify();
  }
  absl::Status End() {
    ended.WaitForNotification();
    return end;
  }
  absl::Status end;
  absl::Notification ended;
};

class RecordingResponder final : public HttpResponder {
 public:
  void Answer(HttpResponse answer) override {
    response = std::move(answer);
    answered.Notify();
  }
  void Begin(HttpResponse) override {}
  void Write(absl::string_view) override {}
  void End() override {}
  void OnGone(absl::AnyInvocable<void() &&>) override {}
  void Run(absl::AnyInvocable<void() &&> fn) override { std::move(fn)(); }
  std::string Header(absl::string_view name) const {
    for (const auto& [key, value] : response.headers) {
      if (key == name) return value;
    }
    return "";
  }
  HttpResponse response;
  absl::Notification answered;
};

// A node that is not part of a cluster yet.
class GatewayTest : public ::testing::Test {
 protected:
  void Start(absl::Duration waits, std::vector<std::string> peers = {}) {
    ClusterRuntime::Options options;
    options.self.id = *NodeId::FromHex(std::string(32, 'a'));
    options.self.boot = 1000;
    options.self.name = "attic";
    options.discovery = nullptr;
    options.peers = std::move(peers);
    cluster_ = std::make_unique<ClusterRuntime>(loop_.get(), SleeplessClock(), std::move(options),
                                                PeerTransport::Grpc(loop_.get()));
    fetcher_ = std::make_unique<WeightFetcher>(nullptr);
    coordinator_ = std::make_unique<Coordinator>(
        loop_.get(), cluster_.get(), fetcher_.get(),
        Coordinator::Options{.node_id = std::string(32, 'a'), .listen_host = "127.0.0.1"});
    gateway_ = std::make_unique<Gateway>(
        loop_.get(), cluster_.get(), coordinator_.get(),
        Gateway::Options{.leadership_time = waits, .requests = {.begin_time = waits}});
    backend_ = std::make_unique<ApiBackend>(gateway_.get(), TemplatePool::Options());
    api_ = std::make_unique<HttpApi>(backend_.get(), coordinator_.get(),
                                     HttpApi::Options{.node_id = "aa",
                                                      .node_name = "attic",
                                                      .open = {.chat = true, .view = true},
                                                      .error_form = OpenAiError},
                                     OpenAiRoutes(backend_.get()),
                                     [](HttpApi::OnStages then) { std::move(then)({}); });
    thread_ = std::thread([this] { loop_->Run(); });
  }
  // Serves calls of other nodes and of the command line.
  void Serve() {
    service_ = std::make_unique<CoordinatorService>(
        coordinator_.get(), gateway_.get(),
        CoordinatorService::Options{.node_id = "aa", .leadership_time = absl::Milliseconds(1)});
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = wire::Coordinator::NewStub(server_->InProcessChannel({}));
  }
  // The node coordinates, and has no models.
  void Coordinate() {
    const auto listener = std::make_shared<Listener>();
    gateway_->Generate({}, listener, {});
    loop_->Post([this] { cluster_->Start({.address = {"127.0.0.1", 9}}); });
    listener->ended.WaitForNotification();
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
    server_.reset();
    service_.reset();
    gateway_->Stop();
    coordinator_->StopCalls();
    loop_->Stop();
    thread_.join();
    api_.reset();
    backend_.reset();
    gateway_.reset();
    coordinator_.reset();
    cluster_.reset();
  }
  std::shared_ptr<RecordingResponder> Get(const std::string& path) {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    auto responder = std::make_shared<RecordingResponder>();
    api_->Handle(std::move(request), responder);
    responder->answered.WaitForNotification();
    return responder;
  }

  std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  std::unique_ptr<ClusterRuntime> cluster_;
  std::unique_ptr<WeightFetcher> fetcher_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<ApiBackend> backend_;
  std::unique_ptr<HttpApi> api_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<wire::Coordinator::Stub> stub_;
  std::thread thread_;
};

TEST_F(GatewayTest, ARequestThatTimesOutSaysWhenToTryAgain) {
  Start(absl::Milliseconds(1));
  const auto listener = std::make_shared<Listener>();
  gateway_->Generate({}, listener, {});
  EXPECT_THAT(listener->End(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_GT(RetryAfterMs(listener->end).value_or(0), 0);
}

TEST_F(GatewayTest, ARequestRunsAsSoonAsANodeCoordinates) {
  Start(absl::InfiniteDuration());
  const auto listener = std::make_shared<Listener>();
  gateway_->Generate({}, listener, {});
  EXPECT_FALSE(listener->ended.HasBeenNotified());
  loop_->Post([this] { cluster_->Start({.address = {"127.0.0.1", 9}}); });
  // The new coordinator knows no models.
  EXPECT_THAT(listener->End(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(GatewayTest, ANodeThatReachesNoOtherDoesNotSayThatAModelDoesNotExist) {
  Start(absl::InfiniteDuration(), {"127.0.0.1:1"});
  const auto listener = std::make_shared<Listener>();
  wire::GenerateRequest request;
  request.set_model("there");
  gateway_->Generate(request, listener, {});
  loop_->Post([this] { cluster_->Start({.address = {"127.0.0.1", 9}}); });
  EXPECT_THAT(listener->End(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not reach 127.0.0.1:1")));
  EXPECT_GT(RetryAfterMs(listener->end).value_or(0), 0);
  for (const char* path : {"/v1/models", "/v1/models/there"}) {
    const auto answer = Get(path);
    EXPECT_EQ(answer->response.status, 503) << path;
    EXPECT_NE(answer->Header("Retry-After"), "") << path;
    EXPECT_THAT(answer->response.body, HasSubstr("does not reach 127.0.0.1:1"));
  }
  EXPECT_THAT(Get("/health")->response.body, HasSubstr("does not reach 127.0.0.1:1"));
}

TEST_F(GatewayTest, AWaitingRequestMayBeCancelled) {
  Start(absl::InfiniteDuration());
  const auto listener = std::make_shared<Listener>();
  const auto control = gateway_->Generate({}, listener, {});
  control->Cancel();
  EXPECT_THAT(listener->End(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(GatewayTest, StopFailsWaitingAndFutureRequests) {
  Start(absl::InfiniteDuration());
  const auto before = std::make_shared<Listener>();
  const auto after = std::make_shared<Listener>();
  gateway_->Generate({}, before, {});
  gateway_->Stop();
  gateway_->Generate({}, after, {});
  EXPECT_THAT(before->End(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(after->End(), StatusIs(absl::StatusCode::kUnavailable));
}

// So `strata run` waits, and a request that names its model in that moment does not fail.
TEST_F(GatewayTest, ListModelsSaysWhenToTryAgain) {
  Start(absl::Milliseconds(1));
  Serve();
  grpc::ClientContext context;
  wire::ListModelsResponse response;
  const absl::Status status =
      RequestStatusFromGrpc(stub_->ListModels(&context, wire::ListModelsRequest(), &response));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_GT(RetryAfterMs(status).value_or(0), 0);
}

// Groups merge, and two nodes disagree on the leader for a moment.
TEST_F(GatewayTest, ACallForwardedToANonLeaderReportsALeaderChange) {
  Start(absl::Milliseconds(1));
  Serve();
  for (const bool forwarded : {false, true}) {
    grpc::ClientContext context;
    if (forwarded) context.AddMetadata(kForwardedKey, "1");
    wire::UnloadModelResponse response;
    const absl::Status status =
        RequestStatusFromGrpc(stub_->UnloadModel(&context, wire::UnloadModelRequest(), &response));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(IsLeaderChanged(status), forwarded) << status;
  }
}

TEST_F(GatewayTest, HealthSaysThatNoNodeCoordinates) {
  Start(absl::Milliseconds(1));
  auto health = Get("/health");
  EXPECT_EQ(health->response.status, 503);
  EXPECT_EQ(health->Header("Retry-After"), "1");
  auto json = nlohmann::json::parse(health->response.body, nullptr, false);
  EXPECT_EQ(json["status"], "unavailable");
  EXPECT_EQ(json["reason"], "no node coordinates at present");
  EXPECT_EQ(json["node"]["name"], "attic");

  const auto models = Get("/v1/models");
  EXPECT_EQ(models->response.status, 503);
  EXPECT_NE(models->Header("Retry-After"), "");
}

TEST_F(GatewayTest, HealthIsWellOnceANodeCoordinates) {
  Start(absl::InfiniteDuration());
  Coordinate();
  const auto health = Get("/health");
  EXPECT_EQ(health->response.status, 200);
  EXPECT_EQ(nlohmann::json::parse(health->response.body, nullptr, false)["coordinates"], true);
}

// So a caller does not take the end of a lease for an answer.
TEST_F(GatewayTest, ANodeThatStopsDoesNotCoordinate) {
  Start(absl::InfiniteDuration());
  Coordinate();
  EXPECT_EQ(coordinator_->CheckLeadership(), absl::OkStatus());
  coordinator_->StopCalls();
  EXPECT_THAT(coordinator_->CheckLeadership(), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace strata
