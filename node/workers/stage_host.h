// The stages of this node: which worker holds which, and what became of it. Requests of the
// coordinator come in from node_service.h; each is passed on to the worker of the stage's device,
// after the weights that are not on this machine have been fetched (weight_fetcher.h). When a
// worker dies, its stages fail with its last words, and the next LoadStage starts a fresh one.
//
// Loop thread only, but for what is said otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/models/self_test_file.h"
#include "grpcpp/client_context.h"
#include "node/workers/device_limits.h"
#include "node/workers/worker_process.h"
#include "proto/node.grpc.pb.h"
#include "shard/weights/weight_fetcher.h"
#include "shard/worker/load_stream.h"
#include "transport/base/callback_gate.h"
#include "transport/base/epoch.h"
#include "transport/base/event_loop.h"
#include "transport/base/printable_text.h"
#include "transport/base/rate_window.h"

namespace strata {

// Stages that a node keeps, and devices that it runs workers for, at most.
inline constexpr size_t kStagesMax = 64;
inline constexpr size_t kDevicesMax = 16;

class StageHost {
 public:
  struct Options {
    std::string node_name;
    // For a device's worker: the program and its arguments.
    std::string worker_program;
    std::vector<std::string> worker_args;
    WorkerTimeouts timeouts;
    bool echo_stderr = false;
    WeightFetcher* fetcher = nullptr;  // outlives the host; null: models are on this machine
    // Of a file that this node shares, by its path: its ModelFile::file_key(); else "". Does not
    // block. May be null.
    std::function<std::string(const std::string& path)> file_key;
    DeviceLimits offer;
    std::string node_id;
    SelfTestFile* self_tests = nullptr;  // outlives the host; null: they are not kept
  };
  // The call to the worker that carries a request on, made before the request's own call can end.
  using Context = std::shared_ptr<grpc::ClientContext>;  // shared with the call under way
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // `loop` outlives the host.
  StageHost(EventLoop* loop, Options options);
  // After the loop has run. Stops the workers: blocks for at most their stop_ms.
  ~StageHost();

  // Ends `stream` with the loaded stage or with why not. kAborted: an older epoch; kAlreadyExists:
  // the stage is here; kResourceExhausted: too many stages; kUnavailable: the node is stopping;
  // kFailedPrecondition: the device is not offered; else what the worker says, or how it died. A
  // stage that `spec` keeps is this one from now on, whatever comes of it.
  void Load(const wire::StageSpec& spec, Context context, LoadStream* stream);

  // What the worker of the stage answers, or how it died. kNotFound: no such stage. `request` and
  // `response` stay until `done` is called.
  void Connect(const wire::ConnectStageRequest* request, wire::ConnectStageResponse* response,
               const Context& context, Done done);
  void MoveCaches(const wire::MoveCachesRequest* request, wire::MoveCachesResponse* response,
                  const Context& context, Done done);
  void Tokenize(const wire::TokenizeRequest* request, wire::TokenizeResponse* response,
                const Context& context, Done done);
  // Also forgets a stage that failed. OK when there is no such stage.
  void Unload(const wire::UnloadStageRequest* request, wire::UnloadStageResponse* response,
              const Context& context, Done done);

  std::vector<wire::StageStatus> Stages() const;
  // What the stages on a device take of its memory, as their workers told when they had loaded.
  uint64_t BytesOn(const std::string& device) const;
  // Of what is offered of it, 1 or more; 0: all that is free.
  uint64_t LeftOf(const std::string& device) const;
  // Whether a worker computes or loads.
  bool Busy() const;
  // Workers that had nothing to do may have something soon.
  void WatchWorkers();

  // From now on loads are refused, those under way end, and the workers are asked to stop.
  void StartShutdown();

 private:
  enum class State { kFetching, kWaiting, kLoading, kServing, kUnloading, kFailed };

  class Device;
  class LoadReader;
  struct FetchProgress;

  // A stage from its LoadStage on, until it is unloaded or replaced.
  struct Stage {
    uint64_t id = 0;  // of this load; the same stage may come again
    wire::StageSpec spec;
    PrintableText model_name;  // for people
    Device* device = nullptr;  // from kWaiting on
    State state = State::kWaiting;
    Context context;               // kFetching, kWaiting, kLoading
    LoadStream* stream = nullptr;  // kFetching, kWaiting, kLoading
    // kFetching; shared with the fetcher.
    std::shared_ptr<WeightFetcher::Job> fetch;
    std::shared_ptr<FetchProgress> fetch_progress;
    uint64_t bytes_before = 0;             // checked and fetched before kWaiting, for the progress
    wire::LoadProgress progress;           // kLoading: as told to `stream`
    std::shared_ptr<WeightLease> weights;  // when the model is in the cache; shared with nobody
    std::string block_hashes;              // of those
    bool fetched_again = false;            // since the worker found that they were damaged
    bool loaded = false;
    wire::StageInfo info;  // when loaded
    int32_t worker_pid = 0;
    // kServing: what its worker told last, and how fast that grows.
    wire::StageWork work;
    std::optional<RateWindow> busy_us, rows;
    absl::Status status;  // kFailed: why
  };

  // A request on its way to a worker.
  struct Call {
    uint64_t stage_id = 0;
    StageKey stage;
    Done done;
  };

  template <typename Request, typename Response>
  using Method = void (wire::Worker::StubInterface::async_interface::*)(
      grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>);
  // `ended` is called on the loop.
  template <typename Request, typename Response>
  void Send(WorkerProcess* worker, const Request* request, Response* response,
            const Context& context, Method<Request, Response> method, Done ended);
  template <typename Request, typename Response>
  void Forward(const StageKey& key, const Request* request, Response* response,
               const Context& context, Method<Request, Response> method, Done done);
  void Settle(const std::shared_ptr<Call>& call, const absl::Status& status);

  Stage* FindById(const StageKey& key, uint64_t id);
  void Tell(const Stage& stage, wire::StageStatus* status) const;
  std::string Where(const Stage& stage) const;
  absl::Status At(const Stage& stage, const absl::Status& status) const;
  // Remembers the newest epoch seen. kAborted: an older one of another coordinator. One coordinator
  // has a plan of its own for each model, the older ones among them.
  absl::Status Newest(const wire::Epoch& epoch);

  absl::StatusOr<Device*> DeviceFor(const std::string& name);
  absl::Status StartWorker(Device* device);
  absl::Status FindWorker(Stage* stage);  // fills in its device
  void StopWorkerIfIdle(Device* device);
  void UpdateLoading(Device* device);

  // What the stage keeps of an earlier plan's, which is forgotten then; false: there is none such.
  bool TakeKept(Stage* stage);
  void BeginFetch(Stage* stage);
  void WatchFetches();
  void OnFetched(const StageKey& key, uint64_t id, absl::StatusOr<WeightFetcher::Fetched> fetched);
  void LetGo(std::shared_ptr<WeightLease> weights);  // off the loop: it waits for the disk
  void Forget(const StageKey& key);

  void BeginLoad(Stage* stage);
  void BeginWaiting();
  // Another stage is being loaded that may take of the same limit (--memory).
  bool IsCrowded(const Stage& stage) const;
  void OnLoadEvent(const StageKey& key, uint64_t id, wire::LoadStageEvent event);
  void OnLoadEnd(const StageKey& key, uint64_t id, const absl::Status& status);
  // What the worker read of the cache is damaged: once, it is fetched and loaded again.
  void FetchAgain(Stage* stage, const absl::Status& why);
  void EndLoad(Stage* stage, const absl::Status& status);

  void OnWorkerReady(Device* device);
  void OnWorkerDied(Device* device, const WorkerDeath& death);
  void OnWorkerTold(Device* device);
  // A load that was given up, or ended before it began, may leave its worker a stage that nobody
  // else knows of.
  void UnloadForgotten(Device* device);

  EventLoop* const loop_;
  const Options options_;

  bool stopping_ = false;
  wire::Epoch newest_epoch_;
  uint64_t next_id_ = 1;
  std::map<StageKey, Stage> stages_;
  std::map<std::string, std::unique_ptr<Device>> devices_;  // by name
  std::map<uint64_t, Context> calls_;                       // to workers, under way
  std::set<StageKey> forgotten_;                            // being unloaded by UnloadForgotten()
  CallbackGate gate_;                                       // for their callbacks
  std::unique_ptr<EventLoop::Handle> fetch_timer_;          // while there are fetches
  size_t fetches_ = 0;                                      // whose end has not come
};

}  // namespace strata
