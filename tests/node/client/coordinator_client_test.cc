#include "node/client/coordinator_client.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

// A node whose loads end as the test's script says.
class ScriptedCoordinator final : public wire::Coordinator::Service, public wire::Cluster::Service {
 public:
  struct Load {
    bool begins = true;       // writes an event before the end
    grpc::Status end;         // OK: loaded
    bool unreadable = false;  // writes an event that is not UTF-8 before
  };

  explicit ScriptedCoordinator(std::vector<Load> loads) : loads_(std::move(loads)) {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", ProcessServerCredentials(), &port);
    builder.RegisterService(static_cast<wire::Coordinator::Service*>(this));
    builder.RegisterService(static_cast<wire::Cluster::Service*>(this));
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~ScriptedCoordinator() override {
    server_->Shutdown(DeadlineIn(absl::ZeroDuration()));
    server_->Wait();
  }

  grpc::Status GetCluster(grpc::ServerContext*, const wire::GetClusterRequest*,
                          wire::GetClusterResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status LoadModel(grpc::ServerContext*, const wire::LoadModelRequest*,
                         grpc::ServerWriter<wire::LoadModelEvent>* writer) override {
    const Load& load = loads_.at(calls_++);
    wire::LoadModelEvent event;
    event.set_note("measuring");
    if (load.begins) writer->Write(event);
    if (!load.end.ok()) return load.end;
    if (load.unreadable) {
      event.mutable_placed()->set_name("\xff");
      writer->Write(event);
    }
    event.mutable_loaded()->set_name("model\x1b[2J");
    writer->Write(event);
    return grpc::Status::OK;
  }
  grpc::Status ListModels(grpc::ServerContext*, const wire::ListModelsRequest*,
                          wire::ListModelsResponse* response) override {
    response->add_models()->set_name("Mod\xe8le");
    return grpc::Status::OK;
  }

  absl::StatusOr<CoordinatorClient::Loaded> LoadOnce() {
    const auto client = CoordinatorClient::Connect({.node = address_});
    EXPECT_THAT(client.status(), IsOk());
    return (*client)->LoadModel({}, [](const wire::LoadModelEvent&) {});
  }
  size_t calls() const { return calls_; }
  const std::string& address() const { return address_; }

 private:
  const std::vector<Load> loads_;
  std::atomic<size_t> calls_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// As gRPC reports it.
const grpc::Status kBroken(grpc::StatusCode::UNAVAILABLE, "Socket closed");

TEST(CoordinatorClient, ALoadWhoseConnectionBreaksIsRetried) {
  ScriptedCoordinator coordinator({{.end = kBroken}, {}});
  const auto loaded = coordinator.LoadOnce();
  ASSERT_THAT(loaded.status(), IsOk());
  EXPECT_EQ(loaded->model.name(), "model\\u001b[2J");
  EXPECT_EQ(coordinator.calls(), 2u);
}

// Seen in other projects: llama.cpp 11738, ramalama 752, ik_llama.cpp 775: bytes that are not UTF-8
// break more than their own field.
TEST(CoordinatorClient, AMessageThatCannotBeReadIsNeitherTheEndNorAnotherVersion) {
  ScriptedCoordinator coordinator({{.unreadable = true}});
  EXPECT_THAT(coordinator.LoadOnce().status(), IsOk());
  const auto client = CoordinatorClient::Connect({.node = coordinator.address()});
  ASSERT_THAT(client.status(), IsOk());
  EXPECT_THAT((*client)->ListModels(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("cannot be read")));
}

TEST(CoordinatorClient, ANodeWithoutTheCallIsOfAnotherVersion) {
  ScriptedCoordinator coordinator({});
  const auto client = CoordinatorClient::Connect({.node = coordinator.address()});
  ASSERT_THAT(client.status(), IsOk());
  EXPECT_THAT((*client)->UnloadModel("model"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another version")));
}

TEST(CoordinatorClient, ALoadIsRetriedOnceAtMost) {
  ScriptedCoordinator coordinator({{.end = kBroken}, {.end = kBroken}});
  EXPECT_THAT(coordinator.LoadOnce(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no node answers")));
  EXPECT_EQ(coordinator.calls(), 2u);
}

TEST(CoordinatorClient, AnErrorOfTheNodeItselfIsNotRetried) {
  ScriptedCoordinator coordinator({{.end = ToGrpc(absl::UnavailableError("host-3 has gone"))}});
  EXPECT_THAT(coordinator.LoadOnce(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("host-3 has gone")));
  EXPECT_EQ(coordinator.calls(), 1u);
}

TEST(CoordinatorClient, ALoadThatNeverBeganIsNotRetried) {
  ScriptedCoordinator coordinator({{.begins = false, .end = kBroken}});
  EXPECT_THAT(coordinator.LoadOnce(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(coordinator.calls(), 1u);
}

}  // namespace
}  // namespace strata
