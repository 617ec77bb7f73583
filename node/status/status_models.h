// The models that a cluster runs, put together from what its nodes say of their stages: what
// `strata status` shows of plans, and in which words it says what a stage is doing. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/models/cluster_snapshot.h"
#include "proto/node.pb.h"
#include "transport/base/printable_text.h"

namespace strata {

struct StageView {
  std::string node;          // name of the node that has it; empty: none that answers
  wire::StageStatus status;  // `n_missing`: only stage and layers, where they are known
  uint32_t n_missing = 0;    // so many stages from this one on are on no node that answers
  // Between two reports; nullopt: not known.
  std::optional<double> steps_per_s;
};

// One plan of one model.
struct ModelView {
  PrintableText name;  // as it is shown (coordinator/models/model_match.h); may be empty
  std::string id;      // may be empty
  wire::Epoch epoch;
  std::vector<StageView> stages;  // in the plan's order

  uint32_t n_layers() const;  // as far as its stages are known
};

// By name, newer plans of one model first. `before` is an earlier report, for rates; may be null.
std::vector<ModelView> ModelsOf(const ClusterSnapshot& report, const ClusterSnapshot* before);

// "0-11"; empty when they are not known.
std::string LayersText(const wire::LayerRange& layers);
// "0", or "1-3" of stages that are missing.
std::string StageText(const StageView& stage);
// What it is doing, in a few words: "loading, 27 % of 4.5 GiB".
std::string DoingText(const StageView& stage);
// "35 %" of about the last ten seconds in which it computed nothing, and how many tokens went
// through it in each; empty where that is not known.
std::string IdleText(const StageView& stage);
std::string RowsText(const StageView& stage);
// "loading", "serving"; for programs.
std::string StateText(wire::StageStatus::State state);
// "3 s", "12 min", "5 h", "2 d".
std::string DurationText(int64_t ms);

}  // namespace strata
