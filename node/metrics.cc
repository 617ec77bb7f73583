#include "node/metrics.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

using ModelStats = Coordinator::ModelStats;

std::string Quoted(const std::string& value) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(ValidUtf8(value), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
      "\"");
}

class Page {
 public:
  explicit Page(const std::vector<ModelStats>& models) : models_(models) {}

  struct Metric {
    const char* name;
    const char* type;
    const char* help;
  };
  void Value(const Metric& metric, double value) {
    Head(metric);
    Line(metric.name, "", value);
  }
  void OfModels(const Metric& metric, const std::function<double(const ModelStats&)>& value) {
    if (models_.empty()) return;
    Head(metric);
    for (const ModelStats& model : models_) {
      Line(metric.name, absl::StrCat("{model=", Quoted(model.name), "}"), value(model));
    }
  }
  void OfStages(const Metric& metric, const std::function<double(const StageTotal&)>& value) {
    if (models_.empty()) return;
    Head(metric);
    for (const ModelStats& model : models_) {
      for (size_t i = 0; i < model.scheduler.stages.size(); ++i) {
        const std::string device = i < model.stages.size() ? model.stages[i] : "";
        Line(metric.name,
             absl::StrCat("{model=", Quoted(model.name), ",stage=\"", i,
                          "\",device=", Quoted(device), "}"),
             value(model.scheduler.stages[i]));
      }
    }
  }
  std::string text() && { return std::move(text_); }

 private:
  void Head(const Metric& metric) {
    absl::StrAppend(&text_, "# HELP ", metric.name, " ", metric.help, "\n# TYPE ", metric.name, " ",
                    metric.type, "\n");
  }
  void Line(const char* name, const std::string& labels, double value) {
    absl::StrAppend(&text_, name, labels, " ", absl::StrFormat("%.17g", value), "\n");
  }

  const std::vector<ModelStats>& models_;
  std::string text_;
};

}  // namespace

std::string MetricsText(const std::vector<ModelStats>& models, const HttpServer::Stats& http,
                        const ApiCounts& api) {
  constexpr char kGauge[] = "gauge";
  constexpr char kCounter[] = "counter";
  Page page(models);
  const auto scheduler = [&page](const char* name, const char* type, const char* help,
                                 auto SchedulerStats::* field) {
    page.OfModels({name, type, help}, [field](const ModelStats& model) {
      return static_cast<double>(model.scheduler.*field);
    });
  };
  page.OfModels({"strata_model_serving", kGauge, "1 where the model takes requests."},
                [](const ModelStats& model) { return model.serving ? 1.0 : 0.0; });
  scheduler("strata_texts_waiting", kGauge, "Texts that wait for a slot.",
            &SchedulerStats::waiting);
  scheduler("strata_texts_running", kGauge, "Texts being written.", &SchedulerStats::running);
  scheduler("strata_steps_in_flight", kGauge, "Steps on their way through the stages.",
            &SchedulerStats::steps_in_flight);
  scheduler("strata_kv_cells", kGauge, "Positions that the KV caches have.",
            &SchedulerStats::kv_cells);
  scheduler("strata_kv_cells_used", kGauge, "Positions in use, kept texts included.",
            &SchedulerStats::kv_cells_used);
  scheduler("strata_kv_cells_kept", kGauge, "Positions of ended texts, kept for their prefixes.",
            &SchedulerStats::kv_cells_kept);
  scheduler("strata_texts_total", kCounter, "Texts asked for.", &SchedulerStats::requests);
  scheduler("strata_texts_refused_total", kCounter, "Texts refused because too many waited.",
            &SchedulerStats::requests_refused);
  scheduler("strata_texts_cancelled_total", kCounter, "Texts that nobody wanted any more.",
            &SchedulerStats::requests_cancelled);
  scheduler("strata_texts_failed_total", kCounter, "Texts that ended with an error.",
            &SchedulerStats::requests_failed);
  scheduler("strata_steps_total", kCounter, "Steps.", &SchedulerStats::steps);
  scheduler("strata_steps_failed_total", kCounter, "Steps that a stage could not compute.",
            &SchedulerStats::steps_failed);
  scheduler("strata_step_rows_total", kCounter,
            "Rows of all steps; over strata_steps_total, the mean batch.", &SchedulerStats::rows);
  scheduler("strata_tokens_total", kCounter, "Tokens written.", &SchedulerStats::tokens);
  scheduler("strata_prompt_tokens_total", kCounter, "Tokens of prompts.",
            &SchedulerStats::prompt_tokens);
  scheduler("strata_prompt_tokens_cached_total", kCounter,
            "Tokens of prompts that stood in a KV cache already.", &SchedulerStats::cached_tokens);
  scheduler("strata_preemptions_total", kCounter, "Texts that gave up their KV for others.",
            &SchedulerStats::preemptions);
  page.OfStages(
      {"strata_stage_compute_seconds_total", kCounter, "Time a stage computed."},
      [](const StageTotal& stage) { return 1e-6 * static_cast<double>(stage.compute_us); });
  page.OfStages({"strata_stage_queue_seconds_total", kCounter, "Time steps waited at a stage."},
                [](const StageTotal& stage) { return 1e-6 * static_cast<double>(stage.queue_us); });
  page.OfStages(
      {"strata_stage_sample_seconds_total", kCounter, "Time a stage sampled."},
      [](const StageTotal& stage) { return 1e-6 * static_cast<double>(stage.sample_us); });
  page.OfStages({"strata_stage_steps_total", kCounter, "Steps that a stage computed."},
                [](const StageTotal& stage) { return static_cast<double>(stage.steps); });

  const auto value = [&page](const char* name, const char* type, const char* help, auto number) {
    page.Value({name, type, help}, static_cast<double>(number));
  };
  value("strata_http_connections", kGauge, "Open HTTP connections.", http.connections);
  value("strata_http_connections_total", kCounter, "HTTP connections.", http.accepted);
  value("strata_http_connections_refused_total", kCounter, "Refused: too many.", http.refused);
  value("strata_http_requests_total", kCounter, "HTTP requests.", http.requests);
  value("strata_http_bad_requests_total", kCounter, "Too large, too slow or garbage.",
        http.bad_requests);
  value("strata_http_clients_dropped_total", kCounter, "Clients too slow to send or to read.",
        http.dropped);
  value("strata_api_requests_total", kCounter, "Requests for texts.", api.requests);
  value("strata_api_requests_running", kGauge, "Requests for texts under way.", api.running);
  value("strata_api_requests_failed_total", kCounter, "Answered with an error.", api.failed);
  value("strata_api_clients_gone_total", kCounter, "Clients that went before their answer's end.",
        api.client_gone);
  value("strata_api_tokens_total", kCounter, "Tokens written to clients of this node.", api.tokens);
  return std::move(page).text();
}

}  // namespace strata
