// A simulated node's stages, their memory, and the links between them. A model of
// node/workers/stage_host.h, its worker and shard/serving/stage_server.h; sim_stage.h processes the
// frames of a stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/node.pb.h"
#include "tests/sim/sim_stage.h"
#include "tests/sim/sim_wire.h"
#include "transport/base/epoch.h"
#include "transport/link/frame.h"

namespace strata {

// A link with credit, as transport/link/link.h has it. Shared by its ends.
class SimLink : public std::enable_shared_from_this<SimLink> {
 public:
  struct Options {
    size_t from = 0;
    size_t to = 0;
    uint32_t credits = 1;
    std::function<void()> on_writable, on_closed;  // the sender's
    std::function<void(Frame)> on_frame;           // the receiver's
    std::function<void()> on_receiver_closed;
  };
  static std::shared_ptr<SimLink> Open(SimProcesses* processes, Options options);
  absl::Status Send(Frame frame);
  // The receiver has consumed so many.
  void Release(uint32_t frames);
  void Close() { connection_->Break(); }
  uint32_t unreleased() const { return unreleased_; }  // by the receiver

 private:
  explicit SimLink(Options options) : options_(std::move(options)), credit_(options_.credits) {}

  const Options options_;
  std::shared_ptr<SimConnection> connection_;  // shared with messages in flight
  uint32_t credit_;
  uint32_t unreleased_ = 0;
  bool wants_writable_ = false;
};

// Where a node without the file keeps the layers that it has fetched. Outlives its process.
struct SimDisk {
  uint64_t free_bytes = 0;
  uint64_t layer_bytes = 0;
  std::set<uint32_t> layers;  // that are there
};

class SimHost {
 public:
  struct Options {
    SimProcesses* processes = nullptr;
    size_t node = 0;
    uint64_t memory_bytes = 0;
    double truth = 1;         // the memory that a stage really takes, as a multiple of the planned
    SimDisk* disk = nullptr;  // outlives it; null: it has the file
    int64_t load_us_max = 500'000;
    int64_t step_us_max = 10'000;
    uint32_t failures_per_mille = 0;               // of steps
    std::function<SimHost*(size_t node)> host_of;  // null: that node does not run
    std::function<void(const std::string&)> violation;
    bool takes_any_epoch = false;  // breaks the protocol, to show that it is noticed
  };
  explicit SimHost(Options options) : options_(std::move(options)) {}
  ~SimHost();

  // Called once, with the result.
  using LoadDone = std::function<void(absl::StatusOr<wire::StageInfo>)>;
  void Load(const wire::StageSpec& spec, uint64_t planned_bytes, LoadDone loaded);
  void Unload(const StageKey& key);
  using ConnectDone = std::function<void(absl::Status)>;
  // To a stage of the same plan on another node, or to the receiver of results.
  void Connect(const StageKey& key, size_t next_node, ConnectDone connected);
  // Its link takes frames again.
  void Resume(const StageKey& key);
  void ConnectBack(const StageKey& key, std::shared_ptr<SimLink> link);
  // A link into a stage. Null: it is not there, or has one.
  std::shared_ptr<SimLink> Accept(const StageKey& key, size_t from_node,
                                  std::function<void()> on_writable,
                                  std::function<void()> on_closed);

  // The worker dies, and its stages fail.
  void KillWorker();
  std::vector<wire::StageStatus> Stages() const;
  uint64_t free_bytes() const { return options_.memory_bytes - used_bytes_; }
  uint64_t memory_bytes() const { return options_.memory_bytes; }
  const SimDisk* disk() const { return options_.disk; }
  // Marked by a coordinator, until the process ends: no plan is to use the node.
  void SetDraining(bool draining) { draining_ = draining; }
  bool draining() const { return draining_; }
  bool holds_stages() const { return !stages_.empty(); }
  uint64_t refused() const { return refused_; }
  uint64_t kept() const { return kept_; }

 private:
  // As WeightFetcher.
  absl::Status Fetch(const wire::LayerRange& layers);
  struct HostedStage {
    SimStage stage;
    wire::StageStatus::State state = wire::StageStatus::LOADING;
    uint64_t bytes = 0;
    std::shared_ptr<SimLink> in, out;  // shared with their other ends
    std::deque<Frame> inbox;
    std::deque<Frame> unsent;
    Frame last;           // the last frame that it took
    bool linked = false;  // has, or had, a link before it
    bool busy = false;
    uint32_t to_release = 0;
  };
  using HostedPtr = std::shared_ptr<HostedStage>;  // shared with links and messages in flight

  void OnFrame(const HostedPtr& hosted, Frame frame);
  void Pump(const HostedPtr& hosted);
  void Finish(const HostedPtr& hosted);
  void SendWaiting(const HostedPtr& hosted);
  void CloseLinks(const HostedPtr& hosted);
  void Free(const HostedPtr& hosted);
  // A late frame reaches the stages that are there by then.
  void Stray(const Frame& frame, const wire::Epoch& epoch);
  HostedPtr Find(const StageKey& key) const;
  HostedPtr FindKept(const wire::StageSpec& spec) const;
  ClusterSim& cluster() const { return options_.processes->cluster(); }

  const Options options_;
  std::map<StageKey, HostedPtr> stages_;
  wire::Epoch newest_;
  bool draining_ = false;
  uint64_t used_bytes_ = 0;
  uint64_t kept_ = 0;     // stages that became another plan's
  uint64_t refused_ = 0;  // frames of old epochs that reached a stage of another one
};

}  // namespace strata
