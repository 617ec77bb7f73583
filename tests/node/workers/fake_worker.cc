// Stands in for `strata worker` in the tests of the node: loads nothing, and misbehaves on demand.
// The spec's model_path says how a stage behaves while loading, the text to tokenize how it behaves
// in Tokenize.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "node/workers/parent_watch.h"
#include "proto/node.grpc.pb.h"
#include "transport/base/epoch.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr uint64_t kFakeResidentBytes = 123'456;

std::atomic<uint32_t> busy_ms{0};

void Misbehave(const std::string& how) {
  if (how == "abort") {
    fprintf(stderr, "FAKE_ASSERT(%s) failed\n", "n_head > 0");
    abort();
  }
  if (how == "bad_alloc") {
    fprintf(stderr, "terminate called after throwing an instance of 'std::bad_alloc'\n");
    abort();
  }
  if (how == "ggml_malloc") {
    fprintf(stderr, "ggml_aligned_malloc: insufficient memory (attempted to allocate 19 MB)\n");
    abort();
  }
  if (how == "segv") {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would report it and exit
    raise(SIGSEGV);
  }
  if (how == "kill") raise(SIGKILL);
  if (how == "stop") raise(SIGSTOP);
  if (how == "exit") _exit(7);
  if (how == "busy") busy_ms = 200'000;
  if (how == "stuck") busy_ms = 1'000'000'000;
}

class FakeWorker final : public wire::Worker::Service {
 public:
  explicit FakeWorker(int* port) : port_(port) {}

  grpc::Status Ping(grpc::ServerContext*, const wire::PingRequest*,
                    wire::PingResponse* response) override {
    response->set_resident_bytes(kFakeResidentBytes);
    response->set_busy_ms(busy_ms);
    absl::MutexLock lock(mu_);
    for (const wire::StageSpec& spec : loaded_) {
      wire::StageWork* work = response->add_stages();
      *work->mutable_epoch() = spec.epoch();
      work->set_stage(spec.stage());
      work->set_busy_ms(busy_ms);
      work->set_steps_done(spec.stage() + 100);
      response->set_steps_done(response->steps_done() + work->steps_done());
    }
    return grpc::Status::OK;
  }

  grpc::Status LoadStage(grpc::ServerContext* context, const wire::LoadStageRequest* request,
                         grpc::ServerWriter<wire::LoadStageEvent>* writer) override {
    const wire::StageSpec& spec = request->spec();
    wire::LoadStageEvent event;
    event.mutable_progress()->set_bytes_done(1);
    event.mutable_progress()->set_bytes_total(2);
    writer->Write(event);
    Misbehave(spec.model_path());
    // The model is in the node's cache.
    const bool is_cached = !request->block_hashes().empty();
    if (is_cached && (spec.origin() == "damaged" ||
                      (spec.origin() == "damaged once" && !damaged_once_.exchange(true)))) {
      return grpc::Status(grpc::StatusCode::DATA_LOSS, "block 7 is damaged");
    }
    if (spec.model_path() == "refuse") {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "tensor blk.0.x is cut short");
    }
    if (spec.model_path() == "room") {
      return ToGrpc(WithShortage(absl::ResourceExhaustedError("too little"),
                                 {.needed_bytes = 1 << 20, .free_bytes = spec.memory_bytes_max()}));
    }
    if (spec.model_path() == "full") {
      fprintf(stderr, "cudaMalloc failed: out of memory\n");
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the card is full");
    }
    if (spec.model_path() == "unavailable") {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the disk is gone");
    }
    if (spec.model_path() == "silent") return grpc::Status::OK;
    const bool late = spec.model_path() == "late";  // ignores its cancellation
    if (spec.model_path() == "endless" || late) {
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
      if (!late) return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
    }
    if (spec.model_path() == "unload hangs") unload_hangs_ = true;
    wire::StageInfo* info = event.mutable_loaded();
    info->set_stage(spec.stage());
    *info->mutable_layers() = spec.layers();
    info->set_worker_pid(getpid());
    info->set_slice_bytes(1000);
    info->set_host_bytes(200);
    info->set_device_bytes(900);  // includes a copy of tensors that both have
    info->set_kv_bytes(100);
    info->set_compute_bytes(10);
    info->set_link_address("127.0.0.1:" + std::to_string(*port_));
    wire::SelfTest* const test = info->mutable_self_test();
    test->set_model_id(spec.model_id());
    *test->mutable_layers() = spec.layers();
    *test->add_points()->mutable_layers() = spec.layers();
    writer->Write(event);
    absl::MutexLock lock(mu_);
    loaded_.push_back(spec);
    return grpc::Status::OK;
  }

  grpc::Status ConnectStage(grpc::ServerContext*, const wire::ConnectStageRequest* request,
                            wire::ConnectStageResponse*) override {
    if (request->next_address() == "nowhere") {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "nobody listens there");
    }
    return grpc::Status::OK;
  }

  grpc::Status UnloadStage(grpc::ServerContext* context, const wire::UnloadStageRequest* request,
                           wire::UnloadStageResponse*) override {
    if (unload_hangs_.exchange(false)) {
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
      return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
    }
    absl::MutexLock lock(mu_);
    unloaded_ += std::erase_if(loaded_, [request](const wire::StageSpec& spec) {
      return spec.stage() == request->stage() && CompareEpochs(spec.epoch(), request->epoch()) == 0;
    });
    return grpc::Status::OK;
  }

  grpc::Status Tokenize(grpc::ServerContext* context, const wire::TokenizeRequest* request,
                        wire::TokenizeResponse* response) override {
    Misbehave(request->text());
    while (request->text() == "endless" && !context->IsCancelled()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    if (request->text() == "how many were unloaded") {
      absl::MutexLock lock(mu_);
      response->add_tokens(static_cast<int32_t>(unloaded_));
      return grpc::Status::OK;
    }
    response->add_tokens(static_cast<int32_t>(request->text().size()));
    return grpc::Status::OK;
  }

 private:
  int* const port_;
  std::atomic<bool> damaged_once_{false};
  std::atomic<bool> unload_hangs_{false};  // the next unload does not end by itself
  absl::Mutex mu_;
  std::vector<wire::StageSpec> loaded_ ABSL_GUARDED_BY(mu_);
  size_t unloaded_ ABSL_GUARDED_BY(mu_) = 0;
};

int Run() {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const char* start = getenv("FAKE_WORKER_START");
  const std::string how = start == nullptr ? "" : start;
  if (how == "never") {
    auto watch = ParentWatch::Start({.on_gone = [] { _exit(0); }});
    while (true) pause();
  }
  Misbehave(how);
  int port = 0;
  FakeWorker service(&port);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  printf("library chatter\n{\"worker\":{\"address\":\"127.0.0.1:%d\",\"pid\":%d}}\n", port,
         getpid());
  fflush(stdout);
  auto watch = ParentWatch::Start({.on_gone = [] { _exit(0); }});
  server->Wait();
  return 0;
}

}  // namespace
}  // namespace strata

int main() { return strata::Run(); }
