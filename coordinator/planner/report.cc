#include "coordinator/planner/report.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/placement_options.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/unit_text.h"
#include "nlohmann/json.hpp"
#include "shard/engine/activation_codec.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

double PerSecond(uint32_t n, double seconds) { return seconds > 0 ? n / seconds : 0; }

// The cells of all sequences together, if they share fewer than they could fill.
std::string CellsText(const CacheShape& cache) {
  if (cache.cells() >= uint64_t{cache.n_ctx} * cache.n_seqs) return "";
  return absl::StrCat(cache.cells(), " together, ");
}

}  // namespace

std::string PlanReport(const ModelFile& model, const PlanRequest& request, const Plan& plan) {
  std::string out = absl::StrCat(
      model.name(), ": ", model.n_layer(), " layers, ", BytesText(model.tensor_bytes()), ", ",
      request.cache.n_seqs, request.cache.n_seqs == 1 ? " sequence of " : " sequences of ",
      request.cache.n_ctx, " positions, ", CellsText(request.cache),
      plan.is_by_hand ? "placed by hand" : absl::StrCat("for ", ObjectiveName(plan.objective)),
      "\n\n");
  std::vector<std::vector<std::string>> rows = {
      {"STAGE", "DEVICE", "LAYERS", "WEIGHTS", "CACHE", "COMPUTE", "HOP TO IT"}};
  const bool all_exact = absl::c_all_of(
      plan.stages, [](const PlannedStage& stage) { return stage.sends.type() == wire::F32; });
  if (!all_exact) rows.front().push_back("SENDS");
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const PlannedStage& stage = plan.stages[i];
    rows.push_back({absl::StrCat(i), PlaceName(request, stage.device),
                    absl::StrCat(stage.layers.begin, "-", stage.layers.end - 1),
                    BytesText(stage.weight_bytes), BytesText(stage.cache_bytes),
                    TimeText(stage.compute_s), TimeText(stage.hop_in_s)});
    if (all_exact) continue;
    const bool last = i + 1 == plan.stages.size();
    rows.back().push_back(last ? "" : ActivationRuleText(stage.sends));
  }
  absl::StrAppend(&out, TextTable(rows).Text(), "\nPredicted, behind ",
                  request.PredictedPositions(), " positions:\n");
  for (const StepTime& time : plan.times) {
    absl::StrAppendFormat(&out, "  %2u sequence%s at a time: %s a step, %.1f tokens/s\n",
                          time.batch, time.batch == 1 ? " " : "s", TimeText(time.step_s),
                          PerSecond(time.batch, time.step_s));
  }
  absl::StrAppendFormat(&out, "  prompts: %.0f tokens/s\n\n",
                        PerSecond(plan.prompt.batch, plan.prompt.slowest_s));
  for (const DeviceLine& line : plan.devices) {
    absl::StrAppend(&out, PlaceName(request, line.device), ": ", line.text, "\n");
  }
  for (const std::string& hint : plan.hints) absl::StrAppend(&out, "Hint: ", hint, "\n");
  return out;
}

std::string PlanJson(const ModelFile& model, const PlanRequest& request, const Plan& plan) {
  using nlohmann::json;
  json stages = json::array();
  for (const PlannedStage& stage : plan.stages) {
    const PlanDevice& device = request.devices[stage.device];
    stages.push_back({{"node", request.nodes[device.node].name},
                      {"device", device.name},
                      {"layers", {stage.layers.begin, stage.layers.end}},
                      {"weight_bytes", stage.weight_bytes},
                      {"cpu_moe_layers", stage.n_cpu_moe},
                      {"cpu_moe_bytes", stage.host_bytes},
                      {"cache_bytes", stage.cache_bytes},
                      {"compute_bytes", stage.compute_bytes},
                      {"compute_ms", stage.compute_s * 1e3},
                      {"hop_in_ms", stage.hop_in_s * 1e3},
                      {"activations", ActivationTypeName(stage.sends.type())},
                      {"f32_rows_max", stage.sends.f32_rows_max()}});
  }
  json steps = json::array();
  for (const StepTime& time : plan.times) {
    steps.push_back({{"sequences", time.batch},
                     {"step_ms", time.step_s * 1e3},
                     {"slowest_ms", time.slowest_s * 1e3}});
  }
  json devices = json::array();
  for (const DeviceLine& line : plan.devices) {
    devices.push_back(
        {{"device", PlaceName(request, line.device)}, {"used", line.is_used}, {"why", line.text}});
  }
  const json out = {
      {"model",
       {{"name", model.name()},
        {"id", absl::BytesToHexString(model.id())},
        {"layers", model.n_layer()},
        {"ctx_max", model.header()
                        .GetInteger(absl::StrCat(model.architecture(), ".context_length"))
                        .value_or(0)},
        {"tensor_bytes", model.tensor_bytes()}}},
      {"objective", ObjectiveName(plan.objective)},
      {"by_hand", plan.is_by_hand},
      {"ctx", request.cache.n_ctx},
      {"seqs", request.cache.n_seqs},
      {"kv_cells", request.cache.cells()},
      {"checkpoints", request.cache.n_checkpoints},
      {"stages", stages},
      {"back_ms", plan.back_s * 1e3},
      {"steps", steps},
      {"prompt_tokens_per_second", PerSecond(plan.prompt.batch, plan.prompt.slowest_s)},
      {"devices", devices},
      {"hints", plan.hints}};
  return out.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace strata
