// The stages of this node: the worker that holds each, and its state. Calls of the coordinator come
// in from node_service.h; each is passed on to the worker of the stage's device, after the weights
// that are not on this machine have been fetched (weight_fetcher.h). When a worker dies, its stages
// fail with its last words, and the next LoadStage starts a fresh worker.
//
// Loop thread only, unless a function says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
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
#include "transport/base/steady_time.h"

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
    // Returns the ModelFile::file_key() of a file that this node shares, by its path; else "". Does
    // not block. May be null.
    std::function<std::string(const std::string& path)> file_key;
    DeviceLimits limits;
    std::string node_id;
    SelfTestFile* self_tests = nullptr;  // outlives the host; null: results are not stored
    // Where stages keep KV blocks, and the most bytes of all of them together; 0: they keep none.
    std::string kv_folder;
    uint64_t kv_bytes_max = 0;
    bool standby = false;  // weights are fetched ahead
    // A stage's load begins, or has ended: in between its worker opens KV blocks. Does not block.
    // May be null.
    std::function<void(const wire::StageSpec& spec, bool begins)> on_load;
  };
  // Of the forwarded call to the worker; made before the coordinator's call can end.
  using Context = std::shared_ptr<grpc::ClientContext>;  // shared with the call in flight
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // `loop` outlives the host.
  StageHost(EventLoop* loop, Options options);
  // REQUIRES: the loop has ended. Stops the workers: blocks for at most their stop_ms.
  ~StageHost();

  // Ends `stream` with the loaded stage or with an error. kAborted: an older epoch; kAlreadyExists:
  // the stage is here; kResourceExhausted: too many stages; kUnavailable: the node is stopping;
  // kFailedPrecondition: the device is not offered; else the worker's own error, or its death. The
  // stage that `spec` keeps becomes this one, even if the load fails.
  void Load(const wire::StageSpec& spec, Context context, LoadStream* stream);

  // Fetches the weights of a stage that this node would get if another one were lost, in the
  // background, once. kFailedPrecondition: it is not standby, or has no place for them.
  absl::Status FetchAhead(const wire::StageSpec& spec);

  // `done` gets the answer of the stage's worker, or its death. kNotFound: no such stage. `request`
  // and `response` must live until `done` is called.
  void Connect(const wire::ConnectStageRequest* request, wire::ConnectStageResponse* response,
               const Context& context, Done done);
  void MoveCaches(const wire::MoveCachesRequest* request, wire::MoveCachesResponse* response,
                  const Context& context, Done done);
  void SetReplicaTargets(const wire::SetReplicaTargetsRequest* request,
                         wire::SetReplicaTargetsResponse* response, const Context& context,
                         Done done);
  void Tokenize(const wire::TokenizeRequest* request, wire::TokenizeResponse* response,
                const Context& context, Done done);
  void Detokenize(const wire::DetokenizeRequest* request, wire::DetokenizeResponse* response,
                  const Context& context, Done done);
  // Also forgets a stage that failed. OK when there is no such stage.
  void Unload(const wire::UnloadStageRequest* request, wire::UnloadStageResponse* response,
              const Context& context, Done done);

  std::vector<wire::StageStatus> Stages() const;
  // Bytes that the stages on a device take of its memory, as their workers reported after the load.
  uint64_t BytesOn(const std::string& device) const;
  // Bytes that are left of the device's limit, 1 or more; 0: no limit, all that is free.
  uint64_t MemoryLeftOn(const std::string& device) const;
  // True while a worker computes or loads.
  bool Busy() const;
  // Pings idle workers at the usual rate again: they may have work soon.
  void WatchWorkers();

  // Refuses loads from now on, ends those in progress, and asks the workers to stop.
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
    wire::LoadProgress progress;           // kLoading: as written to `stream`
    std::shared_ptr<WeightLease> weights;  // when the model is in the cache; shared with nobody
    std::string block_hashes;              // of those
    bool fetched_again = false;            // since the worker found the weights damaged
    uint64_t kv_bytes_max = 0;             // its share of Options::kv_bytes_max, from kLoading on
    bool loaded = false;
    wire::StageInfo info;  // when loaded
    int32_t worker_pid = 0;
    // kServing: the last report of its worker, and the rates of its counters.
    wire::StageWork work;
    std::optional<RateWindow> busy_us, rows;
    absl::Status status;  // kFailed: why
  };

  // A call that is being forwarded to a worker.
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
  void FinishCall(const std::shared_ptr<Call>& call, const absl::Status& status);

  Stage* FindById(const StageKey& key, uint64_t id);
  void FillStatus(const Stage& stage, wire::StageStatus* status) const;
  std::string Where(const Stage& stage) const;
  absl::Status At(const Stage& stage, const absl::Status& status) const;
  // Remembers the newest epoch seen. kAborted: an older one of another coordinator. Older epochs of
  // the same coordinator are accepted: it has one plan for each model.
  absl::Status Newest(const wire::Epoch& epoch);

  absl::StatusOr<Device*> DeviceFor(const std::string& name);
  absl::Status StartWorker(Device* device);
  absl::Status FindWorker(Stage* stage);  // fills in its device
  void StopWorkerIfIdle(Device* device);
  void UpdateLoading(Device* device);

  // Moves the stage of the earlier plan that `stage` keeps into it; false: there is none such.
  bool TakeKept(Stage* stage);
  static WeightFetcher::Request FetchRequestOf(const wire::StageSpec& spec);
  void BeginFetch(Stage* stage);
  void WatchFetches();
  void OnFetched(const StageKey& key, uint64_t id, absl::StatusOr<WeightFetcher::Fetched> fetched);
  void ReleaseWeights(std::shared_ptr<WeightLease> weights);  // off the loop: waits for the disk
  void Forget(const StageKey& key);

  void BeginLoad(Stage* stage);
  void BeginWaiting();
  // Options::kv_bytes_max without what the stages have.
  uint64_t KvBytesLeft() const;
  // Another stage is being loaded that may take of the same limit (--memory).
  bool IsCrowded(const Stage& stage) const;
  void OnLoadEvent(const StageKey& key, uint64_t id, wire::LoadStageEvent event);
  void OnLoadEnd(const StageKey& key, uint64_t id, const absl::Status& status);
  // After the worker found damage in the cache: checks, fetches and loads the stage again, once.
  void FetchAgain(Stage* stage, const absl::Status& why);
  void EndLoad(Stage* stage, const absl::Status& status);

  void OnWorkerReady(Device* device);
  void OnWorkerDied(Device* device, const WorkerDeath& death);
  void OnWorkerReport(Device* device);
  // Unloads stages that only the worker knows of: a load that was cancelled, or ended before it
  // began, may leave such a stage.
  void UnloadUnknownStages(Device* device);

  EventLoop* const loop_;
  const Options options_;

  bool stopping_ = false;
  wire::Epoch newest_epoch_;
  uint64_t next_id_ = 1;
  std::map<StageKey, Stage> stages_;
  std::map<std::string, std::unique_ptr<Device>> devices_;  // by name
  std::map<uint64_t, Context> calls_;                       // to workers, in flight
  std::set<StageKey> unloading_;                            // by UnloadUnknownStages()
  CallbackGate gate_;                                       // for their callbacks
  std::unique_ptr<EventLoop::Handle> fetch_timer_;          // while there are fetches
  size_t fetches_ = 0;                                      // that have not ended
  // Weights that are fetched ahead, or were: by model, first and last layer. At most kStagesMax.
  struct Ahead {
    std::shared_ptr<WeightFetcher::Job> job;  // null: it has ended; shared with the fetcher
    SteadyTime ended = SteadyTime::InfinitePast();
  };
  std::map<std::tuple<std::string, uint32_t, uint32_t>, Ahead> ahead_;
};

}  // namespace strata
