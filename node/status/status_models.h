// The models that a cluster runs, put together from the stages that its nodes report: the plans in
// `strata status`, and its words for the state of a stage. Pure; any thread.
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
  std::string node;          // name of the node that has it; empty: no node that answers
  wire::StageStatus status;  // if `n_missing` > 0: only stage and, if known, layers
  uint32_t n_missing = 0;    // so many stages from this one on are on no node that answers
  // Between two reports; nullopt: not known.
  std::optional<double> steps_per_s;
};

// One plan of one model.
struct ModelView {
  PrintableText name;  // as shown (coordinator/models/model_match.h); may be empty
  std::string id;      // may be empty
  wire::Epoch epoch;
  std::vector<StageView> stages;  // in the plan's order

  uint32_t n_layers() const;  // of the known stages
};

// By name, newer plans of one model first. `before` is an earlier report, for rates; may be null.
std::vector<ModelView> ModelsOf(const ClusterSnapshot& report, const ClusterSnapshot* before);

// "0-11"; empty if unknown.
std::string LayersText(const wire::LayerRange& layers);
// "0", or "1-3" of stages that are missing.
std::string StageText(const StageView& stage);
// The stage's activity, in a few words: "loading, 27 % of 4.5 GiB".
std::string DoingText(const StageView& stage);
// "35 %": the idle share of about the last ten seconds, and the tokens per second in them; empty if
// unknown.
std::string IdleText(const StageView& stage);
std::string RowsText(const StageView& stage);
// "loading", "serving"; for programs.
std::string StateText(wire::StageStatus::State state);
// "3 s", "12 min", "5 h", "2 d".
std::string DurationText(int64_t ms);

}  // namespace strata
