// A stage that computes hashes (sim_text.h) and is as strict about steps as a worker's: steps are
// read by the real shard/serving/step_check.h, edits and rows must fit what stands in its slots. A
// model of shard/serving/stage_server.h without links and threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "proto/node.pb.h"
#include "shard/model/stage_spec.h"
#include "transport/link/frame.h"

namespace strata {

class SimStage {
 public:
  // `violation` is called for anything that no stage may ever see. `fails`: some stage of the plan
  // may fail steps, and until the others hear of it their slots may differ.
  SimStage(wire::StageSpec spec, bool fails, std::function<void(const std::string&)> violation);
  // Breaks the protocol, to show that it is noticed.
  void TakeAnyEpoch() { takes_any_epoch_ = true; }

  // The response to its load.
  wire::StageInfo Info() const;
  const wire::StageSpec& spec() const { return spec_; }
  bool is_first() const { return spec_.layers().begin() == 0; }
  bool is_last() const { return IsLastStage(spec_); }

  // Takes a frame, and returns the one that it sends on. An error: it closes its links. `fails`:
  // its batch fails.
  absl::StatusOr<Frame> Take(const Frame& frame, uint32_t compute_us, bool fails);

  uint64_t refused() const { return refused_; }  // steps of other epochs

 private:
  // [layers of the stage][positions]
  using Cache = std::vector<std::vector<uint64_t>>;
  struct Sequence {
    bool open = false;
    std::vector<int32_t> tokens;
    uint64_t seed = 0;
    bool ended = false;
  };

  // Whether the row feeds the token that was sampled last.
  bool Continues(const wire::Step& step, uint32_t row) const;
  absl::Status Run(const wire::Step& step, const Payload& payload, bool fails, Payload* out);
  absl::Status Edit(const wire::KvEdit& edit);
  void Sample(const wire::Step& step, wire::Result* result);
  size_t length(int32_t slot) const { return slots_[static_cast<size_t>(slot)][0].size(); }

  const wire::StageSpec spec_;
  const bool fails_;
  const std::function<void(const std::string&)> violation_;
  const uint32_t n_layer_;
  std::vector<Cache> slots_;
  std::vector<Sequence> sequences_;  // [slots], of the last stage
  std::vector<uint64_t> rows_;
  uint64_t last_step_id_ = 0;
  uint64_t refused_ = 0;
  bool takes_any_epoch_ = false;
};

// Sets the abilities of simulated caches.
void SetSimCache(bool trims, wire::CacheAbility* ability);

}  // namespace strata
