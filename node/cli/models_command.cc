#include "node/cli/models_command.h"

#include <signal.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/base/data_dir.h"
#include "node/base/interrupt.h"
#include "node/base/json_line.h"
#include "node/base/progress.h"
#include "node/base/standard_output.h"
#include "node/cli/hub_commands.h"
#include "node/cli/model_names.h"
#include "node/client/coordinator_client.h"
#include "node/client/model_session.h"
#include "node/hub/aliases.h"
#include "node/hub/catalogue.h"
#include "node/hub/hub_client.h"
#include "node/hub/local_models.h"
#include "node/status/model_list.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kPlansTime = absl::Seconds(10);
constexpr size_t kReasonsMax = 5;  // that are said below a table

// A table whose last column comes later than the others, row by row.
class GrowingTable {
 public:
  // The first row has the titles, the last one of them that of the later column.
  explicit GrowingTable(std::vector<std::vector<std::string>> rows)
      : later_(rows[0].back()), table_((rows[0].pop_back(), std::move(rows))) {}

  // Writes the titles first. Once for each row, in their order.
  absl::Status Write(const std::string& later) {
    std::string lines;
    if (row_ == 0) lines = Line(later_);
    ++row_;
    return WriteToStdout(lines + Line(later));
  }

 private:
  std::string Line(const std::string& later) const {
    std::string line;
    for (const TextTable::Shown& column : table_.Layout()) {
      absl::StrAppend(&line, table_.Cell(row_, column), std::string(TextTable::kGapCells, ' '));
    }
    return absl::StrCat(line, PrintableText::From(later, kShownMessageBytesMax).str(), "\n");
  }

  const std::string later_;
  const TextTable table_;
  size_t row_ = 0;
};

// Ends the calls of a client some time from now, unless it is gone before.
class CallsTime {
 public:
  CallsTime(CoordinatorClient* client, absl::Duration time)
      : thread_([this, client, time] {
          if (!done_.WaitForNotificationWithTimeout(time)) client->Cancel();
        }) {}
  ~CallsTime() {
    done_.Notify();
    thread_.join();
  }

 private:
  absl::Notification done_;
  std::thread thread_;
};

ModelFit PlanFit(CoordinatorClient* client, const ListedModel& model) {
  wire::PlanModelRequest request;
  request.mutable_source()->set_path(model.copies[0].path);
  request.mutable_source()->set_node(model.copies[0].node_id);
  request.mutable_placement()->set_n_seqs(1);
  request.mutable_placement()->set_objective("latency");
  const auto plan = client->PlanModel(request, [](const std::string&) {});
  if (absl::IsCancelled(plan.status())) {
    return {.why = absl::StrCat("not planned within ", absl::FormatDuration(kPlansTime),
                                "; see strata plan")};
  }
  return FitOf(plan);
}

// Connects unless there is no cluster, which is said.
std::unique_ptr<CoordinatorClient> ClientOrNote(const ClientOptions& options) {
  auto client = CoordinatorClient::Connect(options);
  if (client.ok()) return *std::move(client);
  PrintNote(absl::StrCat("whether a model fits is not known: ", client.status().message()));
  return nullptr;
}

// Whether a model of so many bytes fits; 0: unknown.
ModelFit FitIn(std::optional<uint64_t> room, uint64_t bytes) {
  if (!room || bytes == 0) return {};
  if (bytes <= *room) return {.kind = ModelFit::Kind::kFits};
  return {.kind = ModelFit::Kind::kDoesNotFit, .missing_bytes = bytes - *room};
}

absl::Status ListCatalogue(const ModelsOptions& options) {
  const std::optional<uint64_t> room = RoomForModel(options.client);
  const std::vector<LocalModel> here = FindLocalModels(ModelFoldersFromEnvironment());
  Json list = Json::array();
  std::vector<std::vector<std::string>> rows = {{"NAME", "MODEL", "ABOUT", "HERE", "FITS"}};
  for (const CatalogueModel& model : Catalogue()) {
    const bool is_here = FindLocalModel(here, model.source).ok();
    Json each = {{"name", model.name},
                 {"model", model.source},
                 {"bytes_about", model.bytes()},
                 {"here", is_here}};
    const ModelFit fit = FitIn(room, model.bytes());
    if (fit.kind != ModelFit::Kind::kUnknown) each["fits"] = fit.kind == ModelFit::Kind::kFits;
    list.push_back(std::move(each));
    rows.push_back({model.name, model.source, BytesString(model.bytes()), is_here ? "yes" : "no",
                    FitText(fit)});
  }
  if (options.json) return WriteToStdout(JsonLine({{"models", std::move(list)}}));
  PrintNote("sizes are those of Q4_K_M, from the number of weights");
  return WriteToStdout(TextTable(std::move(rows)).Text());
}

}  // namespace

absl::Status RunModels(const ModelsOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of a write instead
  if (options.catalogue) return ListCatalogue(options);
  const ModelFolders folders = ModelFoldersFromEnvironment();
  std::vector<LocalModel> here = FindLocalModels(folders);
  SetAliases(AliasesOf(options.client.data_dir), absl::MakeSpan(here));
  const std::unique_ptr<CoordinatorClient> client = ClientOrNote(options.client);
  wire::ListKnownModelsResponse known;
  std::optional<wire::ListModelsResponse> loaded;
  std::optional<CallsTime> time;
  if (client != nullptr) {
    time.emplace(client.get(), kPlansTime);
    // Nodes of older versions do not know.
    known = client->ListKnownModels().value_or(wire::ListKnownModelsResponse());
    if (auto models = client->ListModels(); models.ok()) loaded = *std::move(models);
  }
  std::vector<ListedModel> models = ListModelsOf(known, here);
  const std::vector<UnfinishedModel> unfinished = FindUnfinishedModels(folders);
  if (loaded) {
    const std::vector<wire::ModelStatus> statuses(loaded->models().begin(), loaded->models().end());
    MarkLoaded(statuses, absl::MakeSpan(models));
  }
  for (ListedModel& model : models) {
    // A path of another node's is another file here. The plan says what is not known yet.
    const auto local = absl::c_find_if(here, [&](const LocalModel& each) {
      return each.variant.bytes == model.bytes &&
             absl::c_any_of(model.copies,
                            [&](const ListedModel::Copy& copy) { return copy.path == each.path; });
    });
    if (local != here.end()) model.n_ctx_max = ContextOf(local->path);
  }
  for (const std::string& node : known.silent()) {
    PrintNote(absl::StrCat(node, " does not answer: its models are left out"));
  }
  if (models.empty() && unfinished.empty() && !options.json) {
    PrintNote(
        "no models are here yet; strata pull NAME fetches one, and strata models --catalog "
        "has names");
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "SIZE", "QUANT", "CONTEXT", "WHERE", "LOADED", "FITS"}};
  for (const ListedModel& model : models) {
    rows.push_back({model.aliases.empty()
                        ? model.name
                        : absl::StrCat(model.name, " = ", absl::StrJoin(model.aliases, ", ")),
                    BytesString(model.bytes), model.quant,
                    model.n_ctx_max == 0 ? "?" : absl::StrCat(model.n_ctx_max), PlacesText(model),
                    !model.is_loaded   ? "?"
                    : *model.is_loaded ? "yes"
                                       : "no"});
  }
  for (const UnfinishedModel& each : unfinished) {
    const LocalModel& model = each.model;
    rows.push_back({model.name,
                    absl::StrCat(BytesString(each.bytes_here), " of ",
                                 model.variant.bytes == 0 ? "?" : BytesString(model.variant.bytes)),
                    QuantOf(model.variant.parts[0].name), "?", model.place, "no"});
  }
  GrowingTable table(std::move(rows));
  Json list = Json::array();
  std::vector<std::string> reasons;
  for (ListedModel& model : models) {
    if (model.is_loaded.value_or(false)) {
      model.fit.kind = ModelFit::Kind::kFits;
    } else if (client != nullptr) {
      model.fit = PlanFit(client.get(), model);
      if (model.n_ctx_max == 0) model.n_ctx_max = model.fit.n_ctx_max;
    }
    if (options.json) {
      list.push_back(ListedModelJson(model));
    } else if (auto s = table.Write(FitText(model.fit)); !s.ok()) {
      return s;
    }
    if (!model.fit.why.empty()) reasons.push_back(absl::StrCat(model.name, ": ", model.fit.why));
  }
  Json unfinished_list = Json::array();
  for (const UnfinishedModel& each : unfinished) {
    if (options.json) {
      unfinished_list.push_back({{"name", each.model.name},
                                 {"path", each.model.path},
                                 {"bytes_here", each.bytes_here},
                                 {"bytes", each.model.variant.bytes},
                                 {"fetching", each.is_running}});
    } else if (auto s = table.Write(each.is_running ? "is being fetched"
                                                    : "unfinished: pull goes on, rm removes it");
               !s.ok()) {
      return s;
    }
  }
  if (options.json) {
    return WriteToStdout(JsonLine(
        {{"models", std::move(list)},
         {"unfinished", std::move(unfinished_list)},
         {"silent", std::vector<std::string>(known.silent().begin(), known.silent().end())}}));
  }
  for (size_t i = 0; i < reasons.size() && i < kReasonsMax; ++i) PrintNote(reasons[i]);
  return absl::OkStatus();
}

absl::Status RunModelsSearch(const ModelsSearchOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  if (options.offline || IsOfflineByVariable()) {
    return absl::FailedPreconditionError(
        "a search asks Hugging Face, which --offline forbids; strata models lists what is here");
  }
  Interrupt interrupt([] {});
  HubOptions hub_options = HubOptionsFromEnvironment();
  hub_options.cancelled = [&] { return interrupt.requested(); };
  hub_options.note = [](const std::string& note) { PrintNote(note); };
  HubClient hub(std::move(hub_options));
  const std::string words = absl::StrJoin(options.words, " ");
  const auto found = hub.Search(words, static_cast<size_t>(options.count));
  if (!found.ok()) return found.status();
  if (found->empty() && !options.json) {
    PrintNote(absl::StrCat("nothing in GGUF is found by \"", words, "\""));
    return absl::OkStatus();
  }
  const std::optional<uint64_t> room = RoomForModel(options.client);
  std::vector<std::vector<std::string>> rows = {{"NAME", "DOWNLOADS", "FITS"}};
  for (const HubModel& model : *found) {
    rows.push_back({absl::StrCat("hf:", model.repo), absl::StrCat(model.downloads)});
  }
  GrowingTable table(std::move(rows));
  Json list = Json::array();
  for (const HubModel& model : *found) {
    Json each = {{"name", absl::StrCat("hf:", model.repo)},
                 {"downloads", model.downloads},
                 {"gated", model.is_gated}};
    std::string text;
    // The files of a gated one may be listed, and what is not is said as it is.
    const auto source = ParseModelSource(absl::StrCat("hf:", model.repo));
    const auto repo =
        source.ok() ? hub.ListRepository(*source) : absl::StatusOr<HubRepo>(source.status());
    if (absl::IsCancelled(repo.status())) return absl::CancelledError("interrupted");
    if (!repo.ok()) {
      each["why"] = repo.status().message();
      text = absl::StrCat("? (", repo.status().message(), ")");
    } else {
      const std::vector<ModelVariant> variants = VariantsOf(repo->files);
      Json quants = Json::array();
      for (const ModelVariant& variant : variants) {
        Json quant = {{"quant", variant.quant}, {"bytes", variant.bytes}};
        const ModelFit fit = FitIn(room, variant.bytes);
        if (fit.kind != ModelFit::Kind::kUnknown) quant["fits"] = fit.kind == ModelFit::Kind::kFits;
        quants.push_back(std::move(quant));
      }
      each["quants"] = std::move(quants);
      if (const auto choice = ChooseQuant(variants, "", "", room); choice.ok()) {
        each["best"] = choice->variant.quant;
        text = absl::StrCat(room ? "" : "? ", choice->variant.quant, " ",
                            BytesString(choice->variant.bytes));
      } else if (!variants.empty()) {
        text = absl::StrCat("no: the smallest is ", variants[0].quant, " ",
                            BytesString(variants[0].bytes));
      } else {
        text = "no: no whole model";
      }
      if (model.is_gated) text += ", gated";
    }
    list.push_back(std::move(each));
    if (options.json) continue;
    if (auto s = table.Write(text); !s.ok()) return s;
  }
  if (options.json) return WriteToStdout(JsonLine({{"models", std::move(list)}}));
  return absl::OkStatus();
}

}  // namespace strata
