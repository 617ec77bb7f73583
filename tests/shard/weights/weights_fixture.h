// Transfers of weights over a real gRPC server: a node that has a model's file, one that has not,
// and the expected results.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "ggml.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "shard/weights/weight_cache.h"
#include "shard/weights/weight_fetcher.h"
#include "shard/weights/weight_service.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"

namespace strata::testing {

using Model = std::shared_ptr<const ModelFile>;
using Fetched = WeightFetcher::Fetched;

// Too large for everything between two disks: queues, gRPC's windows, the kernel's buffers.
inline std::string WriteLarge() {
  GgufBuilder builder = TinyLlama({.n_layer = 2});
  for (int i = 0; i < 6; ++i) {
    builder.TensorOfType(absl::StrCat("blk.", i % 2, ".extra", i, ".weight"), {4096, 4096},
                         GGML_TYPE_F16);
  }
  const std::string path = MakeTestFolder() + "/large.gguf";
  WriteFile(path, builder.Build());
  return path;
}

inline std::string Write(const GgufBuilder& builder) {
  const std::string path = MakeTestFolder() + "/model.gguf";
  WriteFile(path, builder.Build());
  return path;
}

inline Model Opened(const std::string& path) {
  auto model = ModelFile::Open(path);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

inline std::string BytesOfSlice(const std::string& path, LayerRange layers) {
  auto slice = Slice::Make(Opened(path), layers, {});
  EXPECT_TRUE(slice.ok()) << slice.status();
  std::string bytes(slice->file_bytes(), '\0');
  EXPECT_TRUE(slice->ReadAt(0, bytes.data(), bytes.size()).ok());
  return bytes;
}

inline uint64_t SourceBytes(const std::string& path, LayerRange layers) {
  const Model model = Opened(path);
  auto slice = Slice::Make(model, layers, {});
  EXPECT_TRUE(slice.ok()) << slice.status();
  uint64_t bytes = 0;
  for (const size_t tensor : slice->source_tensors()) {
    bytes += model->header().tensors[tensor].bytes;
  }
  return bytes;
}

// The node that has the file, or another's cache.
class Source {
 public:
  explicit Source(const std::string& hashes_folder = "",
                  std::shared_ptr<WeightCache> cache = nullptr,
                  WeightService::ServerOf server_of = nullptr)
      : service_(hashes_folder, std::move(cache), std::move(server_of)) {
    stub_ = wire::Weights::NewStub(MakeChannel(address_));
  }
  void Stop() { server_.Stop(); }

  const std::string& address() const { return address_; }
  wire::Weights::Stub* stub() { return stub_.get(); }
  const WeightService& service() const { return service_; }

  // Returns its id.
  absl::StatusOr<std::string> Share(const std::string& path) {
    grpc::ClientContext context;
    wire::ShareModelRequest request;
    request.set_path(path);
    wire::ShareModelResponse response;
    absl::Status status = FromGrpc(stub_->ShareModel(&context, request, &response));
    if (!status.ok()) return status;
    return response.model_id();
  }

  // `bytes`: of whole blocks.
  absl::Status Read(const wire::BlocksRequest& request, uint64_t* bytes = nullptr) {
    grpc::ClientContext context;
    const auto reader = stub_->ReadBlocks(&context, request);
    wire::BlockChunk chunk;
    while (reader->Read(&chunk)) {
      if (bytes != nullptr && !chunk.hash().empty()) *bytes += chunk.offset() + chunk.data().size();
    }
    return FromGrpc(reader->Finish());
  }

 private:
  WeightService service_;
  ServiceServer server_{{.service = &service_}};
  const std::string address_ = server_.address();
  std::unique_ptr<wire::Weights::Stub> stub_;
};

// A node without the file.
class Receiver {
 public:
  explicit Receiver(const std::string& folder = MakeTestFolder(), uint64_t bytes_max = 0,
                    TokenOf token_of = nullptr)
      : folder_(folder),
        cache_(*WeightCache::Open({.folder = folder, .bytes_max = bytes_max})),
        fetcher_(cache_, std::move(token_of)) {}

  using Progress = std::function<void(uint64_t done, uint64_t total)>;

  // Waits. `progress` comes on the fetcher's threads.
  absl::StatusOr<Fetched> Fetch(
      const std::string& id, const std::string& address, LayerRange layers,
      Progress progress = [](uint64_t, uint64_t) {}, const std::string& path = "") {
    return Fetch({.model_id = id, .path = path, .address = address, .layers = layers},
                 std::move(progress));
  }
  absl::StatusOr<Fetched> Fetch(
      WeightFetcher::Request request, Progress progress = [](uint64_t, uint64_t) {}) {
    absl::Notification done;
    absl::StatusOr<Fetched> outcome;
    WeightFetcher::Callbacks callbacks;
    callbacks.progress = std::move(progress);
    callbacks.done = [&](absl::StatusOr<Fetched> fetched) {
      outcome = std::move(fetched);
      done.Notify();
    };
    {
      absl::MutexLock lock(mu_);
      job_ = fetcher_.Start(std::move(request), std::move(callbacks));
    }
    started_.store(true);
    done.WaitForNotification();
    started_.store(false);
    return outcome;
  }

  // Any thread, of the fetch that runs.
  void Cancel() {
    while (!started_.load()) std::this_thread::yield();
    absl::MutexLock lock(mu_);
    WeightFetcher::Cancel(job_.get());
  }

  const std::shared_ptr<WeightCache>& cache() { return cache_; }
  std::shared_ptr<WeightSource> ServerOf(const std::string& id) { return fetcher_.ServerOf(id); }
  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_;
  const std::shared_ptr<WeightCache> cache_;
  absl::Mutex mu_;
  std::shared_ptr<WeightFetcher::Job> job_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> started_{false};
  WeightFetcher fetcher_;
};

}  // namespace strata::testing
