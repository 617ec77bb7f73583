// Calls of a worker's service and links into its stages: a worker in this process that holds a tiny
// model as one stage, and the second half of it as another. libllama itself is not the target, but
// a peer's data is checked as when no model is loaded.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "llama.h"
#include "proto/frame.pb.h"
#include "proto/node.grpc.pb.h"
#include "shard/model/model_file.h"
#include "shard/worker/worker_service.h"
#include "tests/fuzz/service_calls.h"
#include "tests/support/gguf_builder.h"
#include "transport/base/clock.h"
#include "transport/base/version.h"
#include "transport/link/frame.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

// The names that the corpus has for the model's file and its id.
constexpr absl::string_view kModel = "/model.gguf";
constexpr absl::string_view kModelId = "model";
constexpr uint32_t kLayers = 2;
// The memory that a stage may take, as a node tells its worker.
constexpr uint64_t kStageBytesMax = 64u << 20;

std::string ModelPath() { return absl::StrCat(fuzz::FuzzFolder(), kModel); }

class FuzzedWorker {
 public:
  FuzzedWorker() {
    testing::WriteFile(ModelPath(), testing::TinyLlama({.n_layer = kLayers}).Build());
    const auto model = ModelFile::Open(ModelPath());
    CHECK_OK(model);
    model_id_ = (*model)->id();
    auto server = WorkerServer::Start({}, Clock::Real());
    CHECK_OK(server);
    server_ = *std::move(server);
    stub_ = wire::Worker::NewStub(MakeChannel(server_->address()));
    caller_ = std::make_unique<fuzz::ServiceCaller>(server_->address());
    Load(1);
    Load(2);
  }

  void Stop() { server_.reset(); }

  std::string address() const { return server_->address(); }
  const std::string& model_id() const { return model_id_; }
  fuzz::ServiceCaller* caller() { return caller_.get(); }

  // Restores the two stages, anew where a link may have fed them, and unloads all others.
  void Reset() {
    grpc::ClientContext context;
    wire::PingResponse ping;
    CHECK(stub_->Ping(&context, {}, &ping).ok());
    std::set<uint64_t> there;
    for (const wire::StageWork& stage : ping.stages()) {
      const uint64_t epoch = stage.epoch().counter();
      const bool ours = stage.epoch().coordinator_id() == "c" && (epoch == 1 || epoch == 2) &&
                        stage.stage() == epoch - 1;
      if (ours && !fed_.contains(epoch)) {
        there.insert(epoch);
      } else {
        Unload(stage);
      }
    }
    for (const uint64_t epoch : {1, 2}) {
      if (!there.contains(epoch)) Load(epoch);
    }
    fed_.clear();
  }
  // Notes that a link into the stage of this epoch is opened.
  void Feed(uint64_t epoch) { fed_.insert(epoch); }

 private:
  void Load(uint64_t epoch) {
    wire::LoadStageRequest request;
    wire::StageSpec* spec = request.mutable_spec();
    spec->set_model_id(model_id_);
    spec->mutable_epoch()->set_counter(epoch);
    spec->mutable_epoch()->set_coordinator_id("c");
    spec->set_stage(static_cast<uint32_t>(epoch - 1));
    spec->set_n_stages(static_cast<uint32_t>(epoch));
    spec->set_model_path(ModelPath());
    spec->mutable_layers()->set_begin(static_cast<uint32_t>(epoch - 1));
    spec->mutable_layers()->set_end(kLayers);
    spec->set_n_ctx(32);
    spec->set_n_seq_max(2);
    spec->set_n_batch(8);
    grpc::ClientContext context;
    const auto reader = stub_->LoadStage(&context, request);
    wire::LoadStageEvent event;
    while (reader->Read(&event)) {
    }
    const grpc::Status status = reader->Finish();
    CHECK(status.ok()) << status.error_message();
  }

  void Unload(const wire::StageWork& stage) {
    wire::UnloadStageRequest request;
    *request.mutable_epoch() = stage.epoch();
    request.set_stage(stage.stage());
    grpc::ClientContext context;
    wire::UnloadStageResponse response;
    CHECK(stub_->UnloadStage(&context, request, &response).ok());
  }

  std::string model_id_;
  std::set<uint64_t> fed_;  // epochs
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<wire::Worker::Stub> stub_;
  std::unique_ptr<fuzz::ServiceCaller> caller_;
};

FuzzedWorker* TheWorker() {
  static FuzzedWorker* const worker = [] {
    fuzz::BeQuiet();
    (void)fuzz::FuzzFolder();  // destroyed after the worker
    auto* started = new FuzzedWorker;
    // After the engine has set its own.
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    std::atexit([] { TheWorker()->Stop(); });
    return started;
  }();
  return worker;
}

std::string IdOf(const std::string& id) { return id == kModelId ? TheWorker()->model_id() : id; }

void Tame(wire::LoadStageRequest* request) {
  wire::StageSpec* spec = request->mutable_spec();
  if (spec->model_path() == kModel) spec->set_model_path(ModelPath());
  spec->set_model_id(IdOf(spec->model_id()));
  for (auto limit :
       {&wire::StageSpec::set_memory_bytes_max, &wire::StageSpec::set_host_bytes_max}) {
    (spec->*limit)(kStageBytesMax);
  }
}

void Tame(wire::ConnectStageRequest* request) {
  if (!request->next_address().empty()) request->set_next_address(fuzz::kNowhere);
}

// Caches come from the worker itself, or from nobody.
void Tame(wire::MoveCachesRequest* request) {
  for (wire::CacheSource& from : *request->mutable_from()) {
    from.set_address(from.address().size() % 2 == 0 ? TheWorker()->address() : fuzz::kNowhere);
  }
}

// Frames: the type, a byte with the payload's size, two bytes with the header's size, the header.
std::vector<std::string> Frames(absl::string_view bytes) {
  std::vector<std::string> frames;
  while (bytes.size() >= 4) {
    Frame frame;
    frame.type = static_cast<FrameType>(bytes[0]);
    const std::string payload(static_cast<unsigned char>(bytes[1]), '\1');
    bytes.remove_prefix(2);
    const size_t size = fuzz::TakeSize(&bytes);
    frame.header = std::string(bytes.substr(0, size));
    bytes.remove_prefix(frame.header.size());
    if (wire::Hello hello; frame.type == FrameType::kHello && hello.ParseFromString(frame.header)) {
      hello.set_model_id(IdOf(hello.model_id()));
      if (hello.versions().protocol() == 1) *hello.mutable_versions() = LocalVersions();
      frame.header = hello.SerializeAsString();
      TheWorker()->Feed(hello.epoch().counter());
    }
    if (wire::Step step; frame.type == FrameType::kStep && step.ParseFromString(frame.header)) {
      step.set_model_id(IdOf(step.model_id()));
      frame.header = step.SerializeAsString();
    }
    frame.payload = Payload::Own(payload);
    frames.push_back(absl::StrCat(EncodeFramePrefixAndHeader(frame), payload));
  }
  return frames;
}

const std::vector<fuzz::Method>& Methods() {
  using fuzz::Parses, fuzz::ParsesTamed;
  static const auto* const methods = new std::vector<fuzz::Method>{
      {"/strata.wire.Worker/Ping", Parses<wire::PingRequest>},
      {"/strata.wire.Worker/LoadStage", ParsesTamed<wire::LoadStageRequest, Tame>},
      {"/strata.wire.Worker/ConnectStage", ParsesTamed<wire::ConnectStageRequest, Tame>},
      {"/strata.wire.Worker/UnloadStage", Parses<wire::UnloadStageRequest>},
      {"/strata.wire.Worker/Tokenize", Parses<wire::TokenizeRequest>},
      {"/strata.wire.Worker/Detokenize", Parses<wire::DetokenizeRequest>},
      {"/strata.wire.Worker/OfferLink", Parses<wire::OfferLinkRequest>},
      {"/strata.wire.Link/Stream", nullptr, /*answers_max=*/0, Frames},
      {"/strata.wire.Worker/MoveCaches", ParsesTamed<wire::MoveCachesRequest, Tame>},
      {"/strata.wire.Worker/ReadCaches", Parses<wire::ReadCachesRequest>},
  };
  return *methods;
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using strata::TheWorker;
  TheWorker()->caller()->CallAll(strata::Methods(),
                                 absl::string_view(reinterpret_cast<const char*>(data), size));
  TheWorker()->Reset();
  return 0;
}
