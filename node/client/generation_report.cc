#include "node/client/generation_report.h"

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "node/base/progress.h"

namespace strata {
namespace {

// Longer pauses are reported: a stage was lost and recovered, or the machine is very slow.
constexpr absl::Duration kReportedPause = absl::Seconds(2);

double PerSecond(size_t count, int64_t us) {
  return us <= 0 ? 0.0 : static_cast<double>(count) * 1e6 / static_cast<double>(us);
}

// "1 node", "3 nodes".
std::string Nodes(const GenerationReport& report) {
  std::set<std::string> names;
  for (const GenerationReport::Stage& stage : report.stages) names.insert(stage.node);
  return absl::StrFormat("%d node%s", names.size(), names.size() == 1 ? "" : "s");
}

double DecodeRate(const GenerationReport& report) {
  return report.tokens.empty() ? 0 : PerSecond(report.tokens.size() - 1, report.decode_us);
}

nlohmann::json Times(const StageTotal& total) {
  const double steps = static_cast<double>(std::max<uint64_t>(total.steps, 1)) * 1000;
  return {{"steps", total.steps},
          {"queue_ms_per_step", static_cast<double>(total.queue_us) / steps},
          {"compute_ms_per_step", static_cast<double>(total.compute_us) / steps},
          {"sample_ms_per_step", static_cast<double>(total.sample_us) / steps}};
}

}  // namespace

std::string ModelLine(const GenerationReport& report) {
  return absl::StrFormat("%s: %d layers, %s, on %s", report.model.name.str(), report.model.n_layer,
                         BytesString(report.model.tensor_bytes), Nodes(report));
}

std::vector<std::string> StageLabels(const GenerationReport& report) {
  std::vector<std::string> labels;
  for (const GenerationReport::Stage& stage : report.stages) {
    labels.push_back(
        absl::StrFormat("%s  layers %d-%d", stage.node, stage.layers.begin, stage.layers.end - 1));
  }
  return labels;
}

std::string GenerationSummary(const GenerationReport& report) {
  std::string summary =
      absl::StrFormat("%s · %d prompt tokens, %d tokens · prompt %.1f tok/s · decode %.1f tok/s",
                      Nodes(report), report.prompt_tokens.size(), report.tokens.size(),
                      PerSecond(report.prompt_tokens.size(), report.prompt_us), DecodeRate(report));
  if (report.longest_pause >= kReportedPause) {
    absl::StrAppendFormat(&summary, " · paused for %.1f s",
                          absl::ToDoubleSeconds(report.longest_pause));
  }
  return summary;
}

std::string GenerationJson(const GenerationReport& report) {
  using nlohmann::json;
  std::string text;
  json ids = json::array();
  for (const wire::SampledToken& token : report.tokens) {
    text += token.piece();
    ids.push_back(token.token());
  }
  json stages = json::array();
  for (size_t i = 0; i < report.stages.size(); ++i) {
    const GenerationReport::Stage& from = report.stages[i];
    json stage = {{"stage", i},
                  {"node", from.node},
                  {"worker_pid", from.info.worker_pid()},
                  {"layers", {from.layers.begin, from.layers.end}},
                  {"slice_bytes", from.info.slice_bytes()},
                  {"host_bytes", from.info.host_bytes()},
                  {"kv_bytes", from.info.kv_bytes()},
                  {"compute_bytes", from.info.compute_bytes()},
                  {"resident_bytes", from.info.resident_bytes()},
                  {"load_ms", from.info.load_ms()},
                  {"prompt", Times(from.prompt)},
                  {"decode", Times(from.decode)}};
    if (from.node_pid != 0) stage["node_pid"] = from.node_pid;
    stages.push_back(std::move(stage));
  }
  const json out = {
      {"model",
       {{"name", report.model.name},
        {"id", absl::BytesToHexString(report.model.id)},
        {"architecture", report.model.architecture},
        {"layers", report.model.n_layer},
        {"tensor_bytes", report.model.tensor_bytes}}},
      {"stages", stages},
      {"prompt", {{"text", report.prompt}, {"tokens", report.prompt_tokens}}},
      {"text", text},
      {"tokens", ids},
      {"finish_reason", report.finish_reason},
      {"seed", report.seed},
      {"prompt_ms", static_cast<double>(report.prompt_us) / 1000},
      {"decode_ms", static_cast<double>(report.decode_us) / 1000},
      {"longest_pause_ms", absl::ToDoubleMilliseconds(report.longest_pause)},
      {"prompt_tokens_per_second", PerSecond(report.prompt_tokens.size(), report.prompt_us)},
      {"decode_tokens_per_second", DecodeRate(report)}};
  // The output may end inside a character.
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace strata
