#include "node/status/status_models.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/models/model_match.h"
#include "coordinator/planner/unit_text.h"
#include "shard/engine/activation_codec.h"
#include "transport/base/epoch.h"

namespace strata {
namespace {

// A longer step is shown.
constexpr uint32_t kLongStepMs = 1'000;

// Identifies a stage among all reports.
struct NodeStageKey {
  std::string node_id;
  StageKey key;
  auto operator<=>(const NodeStageKey&) const = default;
};

std::map<NodeStageKey, const wire::StageStatus*> StagesByKey(const ClusterSnapshot* report) {
  std::map<NodeStageKey, const wire::StageStatus*> all;
  if (report == nullptr) return all;
  for (const NodeReport& node : report->nodes) {
    for (const wire::StageStatus& stage : node.info.stages()) {
      all[{node.id(), StageKeyOf(stage.epoch(), stage.stage())}] = &stage;
    }
  }
  return all;
}

std::optional<double> StepsPerSecond(const wire::StageStatus* before,
                                     const wire::StageStatus& now) {
  if (before == nullptr || before->told_ms() <= 0 || now.told_ms() <= before->told_ms() ||
      now.worker_pid() != before->worker_pid() || now.steps_done() < before->steps_done()) {
    return std::nullopt;
  }
  return static_cast<double>(now.steps_done() - before->steps_done()) * 1e3 /
         static_cast<double>(now.told_ms() - before->told_ms());
}

// Adds the missing stages between those that nodes have reported.
void AddMissing(ModelView* model) {
  std::vector<StageView> all;
  uint32_t next = 0, layer = 0;
  const auto missing_until = [&](uint32_t stage, uint32_t end_layer) {
    StageView view;
    view.n_missing = stage - next;
    view.status.set_stage(next);
    if (end_layer > layer) {
      view.status.mutable_layers()->set_begin(layer);
      view.status.mutable_layers()->set_end(end_layer);
    }
    all.push_back(std::move(view));
  };
  uint32_t n_stages = 0;
  for (StageView& stage : model->stages) {
    n_stages = std::max(n_stages, stage.status.n_stages());
    if (stage.status.stage() > next)
      missing_until(stage.status.stage(), stage.status.layers().begin());
    next = std::max(next, stage.status.stage() + 1);
    layer = stage.status.layers().end();
    all.push_back(std::move(stage));
  }
  if (n_stages > next) missing_until(n_stages, /*end_layer=*/0);
  model->stages = std::move(all);
}

std::string ProgressText(const wire::LoadProgress& progress) {
  if (progress.bytes_total() == 0) return "";
  const double part = static_cast<double>(std::min(progress.bytes_done(), progress.bytes_total())) /
                      static_cast<double>(progress.bytes_total());
  return absl::StrCat(", ", static_cast<int>(part * 100), " % of ",
                      BytesText(progress.bytes_total()));
}

std::string WorkText(const StageView& stage) {
  const wire::StageStatus& status = stage.status;
  if (status.busy_ms() >= kLongStepMs) {
    return absl::StrFormat("on one step for %.1f s", status.busy_ms() / 1e3);
  }
  if (stage.steps_per_s.has_value() && *stage.steps_per_s > 0) {
    return absl::StrFormat("%.1f steps/s", *stage.steps_per_s);
  }
  return status.busy_ms() > 0 ? "on a step" : "idle";
}

// The type of the activations, unless it is exact.
std::string ActivationsText(const wire::StageStatus& status) {
  if (status.activations().type() == wire::F32) return "";
  return absl::StrCat(", sends ", ActivationRuleText(status.activations()));
}

// Of prompts, on its node's disk.
std::string KeptText(const wire::StageStatus& status) {
  if (status.kv_disk_bytes() == 0) return "";
  std::string text = absl::StrCat(", keeps ", BytesText(status.kv_disk_bytes()), " of prompts");
  for (const wire::ReplicaStatus& replica : status.replicas()) {
    const PrintableText node = PrintableText::From(replica.node_name());
    if (!replica.note().empty()) {
      absl::StrAppend(&text, ", no copies", node.empty() ? "" : " at ", node, ": ",
                      PrintableText::From(replica.note(), kShownPathBytesMax));
    } else if (replica.bytes_behind() == 0) {
      absl::StrAppend(&text, ", copies at ", node);
    } else {
      absl::StrAppend(&text, ", copies at ", node, " but for ", BytesText(replica.bytes_behind()));
    }
  }
  return text;
}

}  // namespace

uint32_t ModelView::n_layers() const {
  uint32_t n = 0;
  for (const StageView& stage : stages) n = std::max(n, stage.status.layers().end());
  return n;
}

std::vector<ModelView> ModelsOf(const ClusterSnapshot& report, const ClusterSnapshot* before) {
  const auto earlier = StagesByKey(before);
  // By model and plan.
  std::map<std::tuple<std::string, std::string, uint64_t, std::string>, ModelView> plans;
  for (const NodeReport& node : report.nodes) {
    for (const wire::StageStatus& status : node.info.stages()) {
      ModelView& model = plans[{status.model_name(), status.model_id(), ~status.epoch().counter(),
                                status.epoch().coordinator_id()}];
      model.name = PrintableText::From(status.model_name());
      model.id = status.model_id();
      model.epoch = status.epoch();
      const auto found = earlier.find({node.id(), StageKeyOf(status.epoch(), status.stage())});
      StageView& stage = model.stages.emplace_back();
      stage.node = node.name();
      stage.status = status;
      stage.steps_per_s = StepsPerSecond(found == earlier.end() ? nullptr : found->second, status);
    }
  }
  std::vector<ModelView> models;
  for (auto& [key, model] : plans) {
    std::stable_sort(
        model.stages.begin(), model.stages.end(),
        [](const StageView& a, const StageView& b) { return a.status.stage() < b.status.stage(); });
    AddMissing(&model);
    const auto has_its_name = [&model](const auto& other) {
      const auto& [name, id, newness, coordinator] = other.first;
      return model.name == name && model.id != id;
    };
    if (!model.name.empty() && !model.id.empty()) {
      model.name = ShownModelName(model.name, model.id, std::ranges::any_of(plans, has_its_name));
    }
    models.push_back(std::move(model));
  }
  return models;
}

std::string LayersText(const wire::LayerRange& layers) {
  if (layers.end() <= layers.begin()) return "";
  return absl::StrCat(layers.begin(), "-", layers.end() - 1);
}

std::string StageText(const StageView& stage) {
  const uint32_t first = stage.status.stage();
  if (stage.n_missing < 2) return absl::StrCat(first);
  return absl::StrCat(first, "-", first + (stage.n_missing - 1));
}

std::string DoingText(const StageView& stage) {
  const wire::StageStatus& status = stage.status;
  if (stage.n_missing > 0) return "on no node that answers";
  switch (status.state()) {
    case wire::StageStatus::FETCHING:
      return absl::StrCat("fetching", ProgressText(status.progress()));
    case wire::StageStatus::WAITING:
      return "its worker starts";
    case wire::StageStatus::LOADING:
      return absl::StrCat("loading", ProgressText(status.progress()));
    case wire::StageStatus::UNLOADING:
      return "unloading";
    case wire::StageStatus::FAILED:
      return "failed";
    default:
      break;
  }
  if (status.status().code() != 0) return "failed";  // of a node without states
  return absl::StrCat(WorkText(stage), ActivationsText(status), KeptText(status));
}

std::string IdleText(const StageView& stage) {
  if (stage.status.window_ms() == 0) return "";
  return absl::StrFormat("%.0f %%", 100 * std::clamp(stage.status.idle_share(), 0.0f, 1.0f));
}

std::string RowsText(const StageView& stage) {
  if (stage.status.window_ms() == 0) return "";
  return absl::StrFormat("%.1f", stage.status.rows_per_s());
}

std::string StateText(wire::StageStatus::State state) {
  switch (state) {
    case wire::StageStatus::FETCHING:
      return "fetching";
    case wire::StageStatus::WAITING:
      return "waiting";
    case wire::StageStatus::LOADING:
      return "loading";
    case wire::StageStatus::SERVING:
      return "serving";
    case wire::StageStatus::UNLOADING:
      return "unloading";
    case wire::StageStatus::FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

std::string DurationText(int64_t ms) {
  const int64_t seconds = std::max<int64_t>(0, ms / 1000);
  if (seconds < 120) return absl::StrCat(seconds, " s");
  if (seconds < 120 * 60) return absl::StrCat(seconds / 60, " min");
  if (seconds < 48 * 3600) return absl::StrCat(seconds / 3600, " h");
  return absl::StrCat(seconds / 86400, " d");
}

}  // namespace strata
