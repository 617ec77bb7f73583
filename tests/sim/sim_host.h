// A simulated node's stages: which there are, what memory they take, and the links between them. A
// model of node/workers/stage_host.h, its worker and shard/serving/stage_server.h; what a stage
// does with a frame is sim_stage.h's.
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
  void Close() { wire_->Break(); }
  uint32_t held() const { return held_; }  // by the receiver

 private:
  explicit SimLink(Options options) : options_(std::move(options)), credit_(options_.credits) {}

  const Options options_;
  std::shared_ptr<SimWire> wire_;  // shared with what is under way
  uint32_t credit_;
  uint32_t held_ = 0;
  bool wants_writable_ = false;
};

// Where a node without the file keeps what it has fetched. Outlives its process.
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
    double truth = 1;         // so many times what was planned for it does a stage really take
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

  // What comes of it, once.
  using Loaded = std::function<void(absl::StatusOr<wire::StageInfo>)>;
  void Load(const wire::StageSpec& spec, uint64_t planned_bytes, Loaded loaded);
  void Unload(const StageKey& key);
  using Connected = std::function<void(absl::Status)>;
  // To a stage of the same plan on another node, or to who takes results.
  void Connect(const StageKey& key, size_t next_node, Connected connected);
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
  bool holds_stages() const { return !stages_.empty(); }
  uint64_t refused() const { return refused_; }
  uint64_t kept() const { return kept_; }

 private:
  // As WeightFetcher.
  absl::Status Fetch(const wire::LayerRange& layers);
  struct Held {
    SimStage stage;
    wire::StageStatus::State state = wire::StageStatus::LOADING;
    uint64_t bytes = 0;
    std::shared_ptr<SimLink> in, out;  // shared with their other ends
    std::deque<Frame> inbox;
    std::deque<Frame> unsent;
    Frame last;           // that it took
    bool linked = false;  // has, or had, a link before it
    bool busy = false;
    uint32_t to_release = 0;
  };
  using HeldPtr = std::shared_ptr<Held>;  // shared with links and what is under way

  void OnFrame(const HeldPtr& held, Frame frame);
  void Pump(const HeldPtr& held);
  void Finish(const HeldPtr& held);
  void SendWaiting(const HeldPtr& held);
  void CloseLinks(const HeldPtr& held);
  void Free(const HeldPtr& held);
  // A frame that is late reaches who is there by then.
  void Stray(const Frame& frame, const wire::Epoch& epoch);
  HeldPtr Find(const StageKey& key) const;
  HeldPtr FindKept(const wire::StageSpec& spec) const;
  ClusterSim& cluster() const { return options_.processes->cluster(); }

  const Options options_;
  std::map<StageKey, HeldPtr> stages_;
  wire::Epoch newest_;
  uint64_t used_bytes_ = 0;
  uint64_t kept_ = 0;     // stages that became another plan's
  uint64_t refused_ = 0;  // frames of old epochs that reached a stage of another one
};

}  // namespace strata
