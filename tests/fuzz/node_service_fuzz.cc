// Calls of a node's services, Exchange of heartbeats apart (cluster_service_fuzz.cc): a node in
// this process, alone in its cluster, whose workers cannot start and which knows no other node.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "node/daemon/node.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/doctor.pb.h"
#include "proto/node.grpc.pb.h"
#include "proto/weights.grpc.pb.h"
#include "tests/fuzz/service_calls.h"
#include "tests/support/gguf_builder.h"
#include "transport/base/event_loop.h"
#include "transport/base/peer_addresses.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

// The names that the corpus has for the model's file and its id.
constexpr absl::string_view kModel = "/model.gguf";
constexpr absl::string_view kModelId = "model";
// A plan waits while the node measures: a call is cancelled after the events of that and of a plan.
constexpr int kPlanAnswersMax = 2;
// The output of this program when the node runs it to measure its devices.
constexpr char kDevices[] =
    R"({"name":"CPU","memoryTotal":"9000000000","memoryFree":"8000000000","sharesMachineMemory":true,)"
    R"("speed":{"memoryBytesPerS":1e10,"opS":1e-6,"types":[{"type":"f32","bytesPerS":[1e9,1e9,1e9,1e9,1e9]}]}})";

std::string ModelPath() { return absl::StrCat(fuzz::FuzzFolder(), kModel); }

class FuzzedNode {
 public:
  FuzzedNode() {
    testing::WriteFile(ModelPath(), testing::TinyLlama({.n_layer = 2}).Build());
    NodeOptions options;
    options.listen = "127.0.0.1:0";
    options.name = "fuzzed";
    options.cluster = absl::StrCat("fuzz-", getpid());
    options.mdns = false;
    options.n_threads = 1;
    options.ephemeral = true;
    options.cache_dir = fuzz::FuzzFolder() + "/weights";
    options.cache_bytes_max = 64u << 20;
    options.worker_program = fuzz::FuzzFolder() + "/no-worker";
    auto identity = Node::Identify(options);
    CHECK_OK(identity);
    auto node = Node::Start(loop_.get(), std::move(options), *std::move(identity),
                            /*security=*/nullptr);
    CHECK_OK(node);
    node_ = *std::move(node);
    thread_ = std::thread([this] { loop_->Run(); });
    const auto channel = MakeChannel(node_->address());
    stub_ = wire::Node::NewStub(channel);
    caller_ = std::make_unique<fuzz::ServiceCaller>(node_->address());
    // Plans wait for devices.
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (!HasDevices()) CHECK(absl::Now() < until);
    // From then on the node coordinates, and looks for no stages of another coordinator.
    const auto coordinator = wire::Coordinator::NewStub(channel);
    while (true) {
      grpc::ClientContext context;
      wire::ListModelsResponse models;
      if (coordinator->ListModels(&context, {}, &models).ok()) break;
      CHECK(absl::Now() < until);
    }
    grpc::ClientContext context;
    wire::ShareModelRequest share;
    share.set_path(ModelPath());
    wire::ShareModelResponse shared;
    CHECK(wire::Weights::NewStub(channel)->ShareModel(&context, share, &shared).ok());
    model_id_ = shared.model_id();
  }

  void Stop() {
    loop_->Post([this] { node_->Shutdown([this] { loop_->Stop(); }); });
    thread_.join();
    node_.reset();
  }

  const std::string& address() const { return node_->address(); }
  const std::string& model_id() const { return model_id_; }
  fuzz::ServiceCaller* caller() { return caller_.get(); }

  bool HasDevices() {
    grpc::ClientContext context;
    wire::GetInfoResponse info;
    CHECK(stub_->GetInfo(&context, {}, &info).ok());
    return info.devices_size() > 0 && !info.measuring();
  }

  // The number of a node's stages is bounded, failed ones included.
  void UnloadAll() {
    grpc::ClientContext context;
    wire::GetInfoResponse info;
    CHECK(stub_->GetInfo(&context, {}, &info).ok());
    for (const wire::StageStatus& stage : info.stages()) {
      grpc::ClientContext unload;
      wire::UnloadStageRequest request;
      *request.mutable_epoch() = stage.epoch();
      request.set_stage(stage.stage());
      wire::UnloadStageResponse response;
      stub_->UnloadStage(&unload, request, &response);
    }
  }

 private:
  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  std::unique_ptr<Node> node_;
  std::string model_id_;
  std::unique_ptr<wire::Node::Stub> stub_;
  std::unique_ptr<fuzz::ServiceCaller> caller_;
  std::thread thread_;
};

FuzzedNode* TheNode() {
  static FuzzedNode* const node = [] {
    fuzz::BeQuiet();
    (void)fuzz::FuzzFolder();  // destroyed after the node
    auto* started = new FuzzedNode;
    std::atexit([] { TheNode()->Stop(); });
    return started;
  }();
  return node;
}

std::string PathOf(const std::string& path) { return path == kModel ? ModelPath() : path; }
template <typename Request>
void TameId(Request* request) {
  if (request->model_id() == kModelId) request->set_model_id(TheNode()->model_id());
}

void Tame(wire::LoadStageRequest* request) {
  wire::StageSpec* spec = request->mutable_spec();
  TameId(spec);
  spec->set_model_path(PathOf(spec->model_path()));
  // Weights come from the node itself, or not at all.
  if (!spec->source_address().empty()) spec->set_source_address(TheNode()->address());
  for (wire::WeightPeer& peer : *spec->mutable_weight_peers()) {
    if (!peer.address().empty()) peer.set_address(TheNode()->address());
  }
  // Whether an epoch is old depends on earlier calls; all epochs of one coordinator are taken.
  if (spec->epoch().counter() != 0) spec->mutable_epoch()->set_coordinator_id("c");
}

void Tame(wire::ShareModelRequest* request) { request->set_path(PathOf(request->path())); }

template <typename Request>
void TameSource(Request* request) {
  if (!request->has_source()) return;
  request->mutable_source()->set_path(PathOf(request->source().path()));
}

// Without a node, the call would send to the network's multicast group.
void Tame(wire::ExamineRequest* request) {
  if (request->node().empty()) request->set_node(std::string(16, 'x'));
}

// Of loopback's addresses only the node's own and a closed port are dialled.
void Tame(wire::CheckReachRequest* request) {
  for (wire::ReachTarget& target : *request->mutable_targets()) {
    const auto address = ParseHostPort(target.address());
    if (!address.ok()) continue;
    if (address->host != "127.0.0.1") {
      target.set_address("203.0.113.7:80");  // nobody has it, and the node does not know it
    } else {
      target.set_address(address->port % 2 == 0 ? TheNode()->address() : fuzz::kNowhere);
    }
  }
}

const std::vector<fuzz::Method>& Methods() {
  using fuzz::Parses, fuzz::ParsesTamed;
  static const auto* const methods = new std::vector<fuzz::Method>{
      {"/strata.wire.Cluster/Identify", Parses<wire::IdentifyRequest>},
      {"/strata.wire.Cluster/GetCluster", Parses<wire::GetClusterRequest>},
      {"/strata.wire.Cluster/NextEpoch", Parses<wire::NextEpochRequest>},
      {"/strata.wire.Node/GetInfo", Parses<wire::GetInfoRequest>},
      {"/strata.wire.Node/Measure", Parses<wire::MeasureRequest>},
      {"/strata.wire.Node/LoadStage", ParsesTamed<wire::LoadStageRequest, Tame>},
      {"/strata.wire.Node/ConnectStage", Parses<wire::ConnectStageRequest>},
      {"/strata.wire.Node/UnloadStage", Parses<wire::UnloadStageRequest>},
      {"/strata.wire.Node/Tokenize", Parses<wire::TokenizeRequest>},
      {"/strata.wire.Node/Detokenize", Parses<wire::DetokenizeRequest>},
      {"/strata.wire.Node/SetDraining", Parses<wire::SetDrainingRequest>},
      {"/strata.wire.Weights/ShareModel", ParsesTamed<wire::ShareModelRequest, Tame>},
      {"/strata.wire.Weights/DescribeModel", ParsesTamed<wire::DescribeModelRequest, TameId>},
      {"/strata.wire.Weights/HashBlocks", ParsesTamed<wire::BlocksRequest, TameId>},
      {"/strata.wire.Weights/ReadBlocks", ParsesTamed<wire::BlocksRequest, TameId>},
      {"/strata.wire.Coordinator/PlanModel", ParsesTamed<wire::PlanModelRequest, TameSource>,
       kPlanAnswersMax},
      {"/strata.wire.Coordinator/LoadModel", ParsesTamed<wire::LoadModelRequest, TameSource>,
       kPlanAnswersMax},
      {"/strata.wire.Coordinator/UnloadModel", Parses<wire::UnloadModelRequest>},
      {"/strata.wire.Coordinator/ListModels", Parses<wire::ListModelsRequest>},
      {"/strata.wire.Coordinator/Generate", Parses<wire::GenerateRequest>},
      {"/strata.wire.Coordinator/FinishGeneration", Parses<wire::FinishGenerationRequest>},
      {"/strata.wire.Coordinator/DrainNode", Parses<wire::DrainNodeRequest>},
      {"/strata.wire.Coordinator/GetReport", Parses<wire::GetReportRequest>},
      {"/strata.wire.Coordinator/MeasureNode", Parses<wire::MeasureNodeRequest>},
      {"/strata.wire.Doctor/Examine", ParsesTamed<wire::ExamineRequest, Tame>},
      {"/strata.wire.Doctor/CheckReach", ParsesTamed<wire::CheckReachRequest, Tame>},
      {"/strata.wire.Doctor/ReadClock", Parses<wire::ReadClockRequest>},
      {"/strata.wire.Doctor/OpenDoor", Parses<wire::OpenDoorRequest>, /*answers_max=*/1},
      {"/strata.wire.LinkProbe/Echo", nullptr},
      {"/strata.wire.Node/MoveCaches", Parses<wire::MoveCachesRequest>},
      {"/strata.wire.Weights/ListBlocks", ParsesTamed<wire::ListBlocksRequest, TameId>},
  };
  return *methods;
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc < 2 || absl::string_view((*argv)[1]) != "probe") return 0;
  std::puts(strata::kDevices);
  std::fflush(stdout);
  std::_Exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using strata::TheNode;
  TheNode()->caller()->CallAll(strata::Methods(),
                               absl::string_view(reinterpret_cast<const char*>(data), size));
  TheNode()->UnloadAll();
  return 0;
}
