#include "node/api/metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "transport/base/printable_text.h"
#include "transport/base/short_id.h"
#include "transport/base/version.h"

namespace strata {
namespace {

using ModelStats = Coordinator::ModelStats;

constexpr char kGauge[] = "gauge";
constexpr char kCounter[] = "counter";
constexpr char kHistogram[] = "histogram";

struct Label {
  const char* name;
  std::string value;
};
using Labels = std::vector<Label>;

std::string Number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && std::abs(value) < kExact) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  return absl::StrFormat("%.9g", value);
}

class Page {
 public:
  void Family(const char* name, const char* type, const char* help) {
    name_ = name;
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  void Sample(const Labels& labels, double value, const char* suffix = "") {
    absl::StrAppend(&text_, name_, suffix);
    if (!labels.empty()) {
      absl::StrAppend(&text_, "{",
                      absl::StrJoin(labels, ",",
                                    [](std::string* out, const Label& label) {
                                      absl::StrAppend(
                                          out, label.name, "=\"",
                                          absl::StrReplaceAll(
                                              PrintableText::From(label.value, kShownPathBytesMax),
                                              {{"\\", "\\\\"}, {"\"", "\\\""}}),
                                          "\"");
                                    }),
                      "}");
    }
    absl::StrAppend(&text_, " ", Number(value), "\n");
  }
  void Value(const char* name, const char* type, const char* help, double value) {
    Family(name, type, help);
    Sample({}, value);
  }
  // `counts` has one class more than `limits`: that without a limit.
  template <typename Limits, typename Counts>
  void Histogram(const Labels& labels, const Limits& limits, double unit, const Counts& counts,
                 double sum) {
    double total = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      total += static_cast<double>(counts[i]);
      Labels with_limit = labels;
      const bool last = i == limits.size();
      with_limit.push_back(
          {"le", last
                     ? "+Inf"
                     : Number(static_cast<double>(limits[std::min(i, limits.size() - 1)]) * unit)});
      Sample(with_limit, total, "_bucket");
    }
    Sample(labels, sum, "_sum");
    Sample(labels, total, "_count");
  }
  std::string text() && { return std::move(text_); }

 private:
  const char* name_ = "";
  std::string text_;
};

Labels OfModel(const ModelStats& model) {
  return {{"model", model.name.str()}, {"model_id", ShortModelId(model.id)}};
}

Labels OfStage(const ModelStats& model, size_t stage) {
  Labels labels = OfModel(model);
  const bool known = stage < model.stages.size();
  labels.push_back({"stage", absl::StrCat(stage)});
  labels.push_back({"node", known ? model.stages[stage].node_name() : ""});
  labels.push_back({"device", known ? model.stages[stage].device() : ""});
  return labels;
}

// Of a class of kDraftDepths: "1", "3-4", "9-".
std::string DepthText(size_t depth) {
  const uint32_t first = depth == 0 ? 1 : kDraftDepths[depth - 1] + 1;
  if (depth == kDraftDepths.size()) return absl::StrCat(first, "-");
  return kDraftDepths[depth] == first ? absl::StrCat(first)
                                      : absl::StrCat(first, "-", kDraftDepths[depth]);
}

// The metrics of the coordinator's models.
class ModelPage {
 public:
  ModelPage(Page* page, const std::vector<ModelStats>& models) : page_(page), models_(models) {}

  using OfModelFn = std::function<double(const ModelStats&)>;
  void Models(const char* name, const char* type, const char* help, const OfModelFn& value) {
    if (models_.empty()) return;
    page_->Family(name, type, help);
    for (const ModelStats& model : models_) page_->Sample(OfModel(model), value(model));
  }
  template <typename Field>
  void Scheduler(const char* name, const char* type, const char* help,
                 Field SchedulerStats::* field) {
    Models(name, type, help, [field](const ModelStats& model) {
      return static_cast<double>(model.scheduler.*field);
    });
  }
  void Drafts(const char* name, const char* help, uint64_t DraftCounts::* field) {
    if (models_.empty()) return;
    page_->Family(name, kCounter, help);
    for (const ModelStats& model : models_) {
      for (size_t i = 0; i < kDrafterNames.size(); ++i) {
        for (size_t depth = 0; depth <= kDraftDepths.size(); ++depth) {
          Labels labels = OfModel(model);
          labels.push_back({"drafter", kDrafterNames[i]});
          labels.push_back({"depth", DepthText(depth)});
          page_->Sample(labels, static_cast<double>(model.scheduler.drafts[i][depth].*field));
        }
      }
    }
  }
  using OfStageFn = std::function<double(const ModelStats&, size_t stage)>;
  void Stages(const char* name, const char* type, const char* help, const OfStageFn& value) {
    if (models_.empty()) return;
    page_->Family(name, type, help);
    for (const ModelStats& model : models_) {
      for (size_t i = 0; i < model.scheduler.stages.size(); ++i) {
        page_->Sample(OfStage(model, i), value(model, i));
      }
    }
  }
  template <typename Field>
  void Timings(const char* name, const char* type, const char* help, Field StageTotal::* field,
               double unit) {
    Stages(name, type, help, [field, unit](const ModelStats& model, size_t stage) {
      return static_cast<double>(model.scheduler.stages[stage].*field) * unit;
    });
  }
  void Infos(const char* name, const char* help, uint64_t (wire::StageInfo::*field)() const) {
    Stages(name, kGauge, help, [field](const ModelStats& model, size_t stage) {
      if (stage >= model.stages.size()) return 0.0;
      return static_cast<double>((model.stages[stage].info().*field)());
    });
  }
  void Links() {
    if (models_.empty()) return;
    page_->Family("strata_link_bytes_total", kCounter,
                  "Bytes of steps and results over a link, between stages and the coordinator.");
    for (const ModelStats& model : models_) {
      const size_t n = model.scheduler.stages.size();
      for (size_t to = 0; n > 0 && to <= n; ++to) {
        Labels labels = OfModel(model);
        labels.push_back({"from", to == 0 ? "coordinator" : absl::StrCat(to - 1)});
        labels.push_back({"to", to == n ? "coordinator" : absl::StrCat(to)});
        page_->Sample(labels, static_cast<double>(to == n ? model.scheduler.bytes_returned
                                                          : model.scheduler.stages[to].bytes_in));
      }
    }
  }
  void StepRows() {
    if (models_.empty()) return;
    page_->Family("strata_step_rows", kHistogram, "Rows of the batch of a step.");
    for (const ModelStats& model : models_) {
      page_->Histogram(OfModel(model), kStepRowsClasses, 1, model.scheduler.steps_by_rows,
                       static_cast<double>(model.scheduler.rows));
    }
  }

 private:
  Page* const page_;
  const std::vector<ModelStats>& models_;
};

void AddModels(Page* page, const std::vector<ModelStats>& models) {
  ModelPage of(page, models);
  of.Models("strata_model_serving", kGauge, "1 if the model takes requests.",
            [](const ModelStats& model) { return model.serving ? 1.0 : 0.0; });
  of.Models("strata_requests_tokenizing", kGauge, "Requests whose prompts are being tokenized.",
            [](const ModelStats& model) { return static_cast<double>(model.tokenizing); });
  of.Scheduler("strata_requests_waiting", kGauge, "Requests that wait for a slot.",
               &SchedulerStats::waiting);
  of.Scheduler("strata_requests_running", kGauge, "Requests being generated.",
               &SchedulerStats::running);
  of.Scheduler("strata_steps_in_flight", kGauge, "Steps in flight through the stages.",
               &SchedulerStats::steps_in_flight);
  of.Scheduler("strata_kv_cells", kGauge, "Positions that the KV caches have.",
               &SchedulerStats::kv_cells);
  of.Scheduler("strata_kv_cells_used", kGauge, "Positions in use, kept sequences included.",
               &SchedulerStats::kv_cells_used);
  of.Scheduler("strata_kv_cells_kept", kGauge,
               "Positions of ended sequences, kept for their prefixes.",
               &SchedulerStats::kv_cells_kept);
  of.Models("strata_kv_used_ratio", kGauge, "Share of the KV caches' positions in use.",
            [](const ModelStats& model) {
              const SchedulerStats& stats = model.scheduler;
              return stats.kv_cells == 0 ? 0.0
                                         : static_cast<double>(stats.kv_cells_used) /
                                               static_cast<double>(stats.kv_cells);
            });
  of.Scheduler("strata_requests_total", kCounter, "Requests.", &SchedulerStats::requests);
  of.Scheduler("strata_requests_refused_total", kCounter,
               "Requests refused because too many waited.", &SchedulerStats::requests_refused);
  of.Scheduler("strata_requests_cancelled_total", kCounter, "Requests cancelled by their clients.",
               &SchedulerStats::requests_cancelled);
  of.Scheduler("strata_requests_failed_total", kCounter, "Requests that ended with an error.",
               &SchedulerStats::requests_failed);
  of.Scheduler("strata_steps_total", kCounter, "Steps.", &SchedulerStats::steps);
  of.Scheduler("strata_steps_failed_total", kCounter, "Steps that a stage could not compute.",
               &SchedulerStats::steps_failed);
  of.StepRows();
  of.Scheduler("strata_tokens_total", kCounter, "Tokens generated.", &SchedulerStats::tokens);
  of.Drafts("strata_draft_tokens_total",
            "Draft tokens that stages computed, by drafter and place behind the last token.",
            &DraftCounts::computed);
  of.Drafts("strata_accepted_tokens_total", "Of those, the accepted ones.", &DraftCounts::accepted);
  of.Scheduler("strata_prompt_tokens_total", kCounter, "Tokens of prompts.",
               &SchedulerStats::prompt_tokens);
  of.Scheduler("strata_prompt_tokens_cached_total", kCounter,
               "Tokens of prompts that were in a KV cache already.",
               &SchedulerStats::cached_tokens);
  of.Scheduler("strata_prompt_tokens_loaded_total", kCounter,
               "Tokens that stages loaded from their disks, also where a slot was lost.",
               &SchedulerStats::loaded_tokens);
  of.Scheduler("strata_kv_blocks", kGauge,
               "Blocks of 64 positions of processed prompts that all stages have on their disks.",
               &SchedulerStats::kv_blocks);
  of.Scheduler("strata_preemptions_total", kCounter, "Sequences preempted to free KV for others.",
               &SchedulerStats::preemptions);
  constexpr double kMicros = 1e-6;
  of.Timings("strata_stage_compute_seconds_total", kCounter, "Time a stage computed.",
             &StageTotal::compute_us, kMicros);
  of.Timings("strata_stage_queue_seconds_total", kCounter, "Time steps waited at a stage.",
             &StageTotal::queue_us, kMicros);
  of.Timings("strata_stage_sample_seconds_total", kCounter, "Time a stage sampled.",
             &StageTotal::sample_us, kMicros);
  of.Timings("strata_stage_steps_total", kCounter, "Steps that a stage computed.",
             &StageTotal::steps, 1);
  of.Stages("strata_stage_idle_ratio", kGauge,
            "Share of about the last ten seconds in which a stage computed nothing.",
            [](const ModelStats& model, size_t stage) {
              const std::vector<double>& idle = model.scheduler.idle_share;
              return stage < idle.size() ? idle[stage] : 1.0;
            });
  of.Infos("strata_stage_weights_bytes", "Weights of a stage.", &wire::StageInfo::slice_bytes);
  of.Infos("strata_stage_kv_bytes", "Memory of a stage's KV cache.", &wire::StageInfo::kv_bytes);
  of.Links();
}

// The metrics of the stages that this node holds, whichever node coordinates.
void AddOwnStages(Page* page, const MetricsView& view) {
  if (view.stages.empty()) return;
  const auto of = [&](const char* name, const char* type, const char* help,
                      const std::function<double(const wire::StageStatus&)>& value) {
    page->Family(name, type, help);
    for (const wire::StageStatus& stage : view.stages) {
      page->Sample(
          {{"model", stage.model_name()},
           {"model_id", ShortModelId(stage.model_id())},
           {"epoch", absl::StrCat(stage.epoch().counter(), "/", stage.epoch().coordinator_id())},
           {"stage", absl::StrCat(stage.stage())},
           {"node", view.node_name},
           {"device", stage.device()}},
          value(stage));
    }
  };
  using Stage = wire::StageStatus;
  of("strata_node_stage_serving", kGauge, "1 if the stage is loaded and healthy.",
     [](const Stage& stage) { return stage.state() == Stage::SERVING ? 1.0 : 0.0; });
  of("strata_node_stage_busy_seconds_total", kCounter, "Time the stage computed and sampled.",
     [](const Stage& stage) { return 1e-6 * static_cast<double>(stage.busy_us()); });
  of("strata_node_stage_steps_total", kCounter, "Steps that the stage was given.",
     [](const Stage& stage) { return static_cast<double>(stage.steps_done()); });
  of("strata_node_stage_rows_total", kCounter, "Rows of those steps.",
     [](const Stage& stage) { return static_cast<double>(stage.rows()); });
  of("strata_node_stage_received_bytes_total", kCounter, "Bytes of frames from the stage before.",
     [](const Stage& stage) { return static_cast<double>(stage.bytes_in()); });
  of("strata_node_stage_sent_bytes_total", kCounter, "Bytes of frames to the stage after.",
     [](const Stage& stage) { return static_cast<double>(stage.bytes_out()); });
  of("strata_node_stage_idle_ratio", kGauge,
     "Share of about the last ten seconds in which the stage computed nothing.",
     [](const Stage& stage) {
       return stage.window_ms() == 0 ? 1.0 : static_cast<double>(stage.idle_share());
     });
  of("strata_node_stage_worker_resident_bytes", kGauge,
     "Memory of the worker that holds the stage, with all its stages.",
     [](const Stage& stage) { return static_cast<double>(stage.resident_bytes()); });
}

void AddApi(Page* page, const HttpServer::Stats& http, const ApiCounts& api) {
  const auto value = [page](const char* name, const char* type, const char* help, auto number) {
    page->Value(name, type, help, static_cast<double>(number));
  };
  value("strata_http_connections", kGauge, "Open HTTP connections.", http.connections);
  value("strata_http_connections_total", kCounter, "HTTP connections.", http.accepted);
  value("strata_http_connections_refused_total", kCounter,
        "Connections refused because too many were open.", http.refused);
  value("strata_http_requests_total", kCounter, "HTTP requests.", http.requests);
  value("strata_http_bad_requests_total", kCounter,
        "Requests that were too large, too slow or malformed.", http.bad_requests);
  value("strata_http_clients_dropped_total", kCounter,
        "Clients dropped because they sent or read too slowly.", http.dropped);
  value("strata_api_requests_total", kCounter, "Completion requests.", api.requests);
  value("strata_api_requests_running", kGauge, "Completion requests in progress.", api.running);
  value("strata_api_requests_failed_total", kCounter, "Completion requests answered with an error.",
        api.failed);
  value("strata_api_clients_gone_total", kCounter,
        "Clients that disconnected before the end of their response.", api.client_gone);
  value("strata_api_tokens_total", kCounter, "Tokens written to clients of this node.", api.tokens);
  page->Family("strata_api_first_token_seconds", kHistogram,
               "From a request's arrival at this node to its first token.");
  page->Histogram({}, ApiCounters::kFirstTokenMs, 1e-3, api.first_tokens,
                  1e-6 * static_cast<double>(api.first_token_us));
}

}  // namespace

std::string MetricsText(const MetricsView& view) {
  Page page;
  page.Family("strata_node_info", kGauge, "1; which node this is.");
  page.Sample({{"node", view.node_name},
               {"node_id", view.node_id},
               {"version", LocalVersions().strata()},
               {"llama", LocalVersions().llama()},
               {"ggml", LocalVersions().ggml()}},
              1);
  AddModels(&page, view.models);
  AddOwnStages(&page, view);
  AddApi(&page, view.http, view.api);
  return std::move(page).text();
}

}  // namespace strata
