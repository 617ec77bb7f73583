#include "node/control/file_operations.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "nlohmann/json.hpp"
#include "node/client/model_alias.h"
#include "node/hub/aliases.h"
#include "node/hub/catalogue.h"
#include "node/hub/hub_client.h"
#include "node/hub/local_models.h"
#include "node/hub/model_removal.h"
#include "node/hub/pull.h"
#include "node/status/model_list.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr size_t kFoundMax = 20;  // models of one search
constexpr int64_t kReportMs = 5'000;
constexpr absl::Duration kProgressEvery = absl::Milliseconds(250);

void ListFiles(ControlContext* context, const SharedExchange& exchange) {
  context->Start(exchange, [context](const SharedExchange& to, CoordinatorClient* client) {
    const auto known = client->ListKnownModels();
    if (!known.ok()) return FailWith(to, known.status());
    const auto loaded = client->ListModels();
    if (!loaded.ok()) return FailWith(to, loaded.status());
    std::vector<ListedModel> models = ListModelsOf(*known, /*here=*/{});
    const std::vector<wire::ModelStatus> statuses(loaded->models().begin(), loaded->models().end());
    MarkLoaded(statuses, absl::MakeSpan(models));
    Json list = Json::array();
    for (ListedModel& model : models) {
      for (const ListedModel::Copy& copy : model.copies) {
        if (copy.node_id != context->node.id || model.n_ctx_max > 0) continue;
        model.n_ctx_max = ContextOf(copy.path);
      }
      list.push_back(ListedModelJson(model));
    }
    AnswerJson(
        to, {{"models", std::move(list)},
             {"silent", std::vector<std::string>(known->silent().begin(), known->silent().end())}});
  });
}

void RemoveFile(ControlContext* context, const SharedExchange& exchange) {
  const auto model = ParseText(exchange->TakeBody(), kRemoveFileFields);
  if (!model.ok()) return FailWith(exchange, model.status());
  context->Start(
      exchange, [context, model = *model](const SharedExchange& to, CoordinatorClient* client) {
        const ModelFolders folders = ModelFoldersFromEnvironment();
        const auto removal = FindRemoval(folders, model);
        if (!removal.ok()) return FailWith(to, removal.status());
        const auto loaded = client->ListModels();
        if (!loaded.ok()) return FailWith(to, loaded.status());
        if (auto s = CheckNotLoaded(*removal, *loaded); !s.ok()) return FailWith(to, s);
        const absl::Status removed = RemoveModel(folders, *removal);
        context->node.on_files_changed();
        if (!removed.ok()) return FailWith(to, removed);
        if (!removal->model_id.empty() && !IsLoaded(removal->model_id, *loaded)) {
          client->ClearKeptPrompts(absl::BytesToHexString(removal->model_id)).IgnoreError();
        }
        AnswerJson(to, {{"removed", removal->name},
                        {"files", removal->files},
                        {"freed_bytes", removal->freed_bytes}});
      });
}

absl::StatusOr<std::string> AliasFolder(const ControlContext& context) {
  if (!context.node.data_dir.empty()) return context.node.data_dir;
  return absl::FailedPreconditionError("this node stores no aliases (--ephemeral)");
}

void LogNote(const std::string& note) { LOG(WARNING) << note; }

void ListAliases(ControlContext* context, const SharedExchange& exchange) {
  const auto folder = AliasFolder(*context);
  const auto aliases = folder.ok() ? OpenAliases(*folder, LogNote) : Aliases();
  if (!aliases.ok()) return FailWith(exchange, aliases.status());
  AnswerJson(exchange, {{"aliases", *aliases}});
}

void NewAlias(ControlContext* context, const SharedExchange& exchange) {
  auto alias = ParseAlias(exchange->TakeBody());
  if (!alias.ok()) return FailWith(exchange, alias.status());
  const auto folder = AliasFolder(*context);
  if (!folder.ok()) return FailWith(exchange, folder.status());
  context->Start(exchange, [context, folder = *folder, alias = *std::move(alias)](
                               const SharedExchange& to, CoordinatorClient* client) {
    const auto target = GiveAlias(folder, alias, client, LogNote);
    if (!target.ok()) return FailWith(to, target.status());
    context->node.on_files_changed();
    AnswerJson(to, {{"alias", alias.name}, {"model", *target}});
  });
}

void DropAlias(ControlContext* context, const SharedExchange& exchange) {
  const auto alias = ParseText(exchange->TakeBody(), kRemoveAliasFields);
  if (!alias.ok()) return FailWith(exchange, alias.status());
  const auto folder = AliasFolder(*context);
  if (!folder.ok()) return FailWith(exchange, folder.status());
  if (auto s = RemoveAlias(*folder, *alias, LogNote); !s.ok()) return FailWith(exchange, s);
  context->node.on_files_changed();
  AnswerJson(exchange, {{"removed", *alias}});
}

// Options of calls to hubs that end when the client goes.
HubOptions HubOptionsFor(const SharedExchange& exchange) {
  HubOptions options = HubOptionsFromEnvironment();
  const auto gone = std::make_shared<std::atomic<bool>>(false);  // shared with the connection
  exchange->responder->OnGone([gone] { *gone = true; });
  options.cancelled = [gone] { return gone->load(); };
  return options;
}

void ListCatalogue(const SharedExchange& exchange) {
  Json list = Json::array();
  for (const CatalogueModel& model : Catalogue()) {
    list.push_back({{"name", model.name}, {"model", model.source}, {"bytes_about", model.bytes()}});
  }
  AnswerJson(exchange, {{"models", std::move(list)}});
}

void Search(ControlContext* context, const SharedExchange& exchange) {
  auto words = ParseText(exchange->TakeBody(), kSearchFields);
  if (!words.ok()) return FailWith(exchange, words.status());
  if (IsOfflineByVariable()) {
    return exchange->Fail(409,
                          "a search asks Hugging Face, which this node may not (HF_HUB_OFFLINE)");
  }
  context->Start(exchange,
                 [words = *std::move(words)](const SharedExchange& to, CoordinatorClient*) {
                   const auto found = HubClient(HubOptionsFor(to)).Search(words, kFoundMax);
                   if (!found.ok()) return FailWith(to, found.status());
                   Json list = Json::array();
                   for (const HubModel& model : *found) {
                     list.push_back({{"name", absl::StrCat("hf:", model.repo)},
                                     {"downloads", model.downloads},
                                     {"gated", model.is_gated}});
                   }
                   AnswerJson(to, {{"models", std::move(list)}});
                 });
}

void PullByName(ControlContext* context, const SharedExchange& exchange) {
  auto name = ParseText(exchange->TakeBody(), kPullFields);
  if (!name.ok()) return FailWith(exchange, name.status());
  auto source = ParseModelSource(CatalogueSource(*name).value_or(*name));
  if (!source.ok()) return FailWith(exchange, source.status());
  context->Start(exchange, [context, source = *std::move(source)](const SharedExchange& to,
                                                                  CoordinatorClient*) {
    PullOptions options = {.hub = HubOptionsFor(to),
                           .folders = ModelFoldersFromEnvironment(),
                           .offline = IsOfflineByVariable()};
    CallStream stream(to);
    if (const auto report = FetchReport(context->node.address, kReportMs); report.ok()) {
      const uint64_t room = RoomForModels(*report).model_bytes;
      if (room > 0) options.bytes_max = room;
    }
    options.hub.note = [&stream](const std::string& note) { stream.Note(note); };
    SteadyTime next = SteadyTime::InfinitePast();
    options.progress = [&](const std::string& file, uint64_t done, uint64_t total) {
      const SteadyTime now = SteadyTime::Now();
      if (now < next && done < total) return;
      next = now + kProgressEvery;
      stream.Send("progress", {{"file", file}, {"bytes_done", done}, {"bytes_total", total}});
    };
    const auto pulled = Pull(source, options);
    if (!pulled.ok()) return stream.End(pulled.status(), {});
    context->node.on_files_changed();
    stream.End(absl::OkStatus(), {{"name", pulled->name},
                                  {"path", pulled->path},
                                  {"quant", pulled->quant},
                                  {"bytes", pulled->bytes},
                                  {"was_here", pulled->was_here}});
  });
}

}  // namespace

ControlOperations FileOperations(ControlContext* context) {
  const auto by = [context](void (*run)(ControlContext*, const SharedExchange&)) {
    return [context, run](const SharedExchange& exchange) { run(context, exchange); };
  };
  return {
      {"GET",
       "/files",
       ApiScope::kView,
       "The models whose files the nodes have, loaded or not, as strata models --json prints them",
       {},
       kJsonType,
       by(ListFiles)},
      {"POST", "/files/remove", ApiScope::kAdmin,
       "Removes a model that Strata has fetched to this node and that is not loaded, as strata rm",
       kRemoveFileFields, kJsonType, by(RemoveFile)},
      {"GET",
       "/aliases",
       ApiScope::kView,
       "This node's own names of models, and what each stands for",
       {},
       kJsonType,
       by(ListAliases)},
      {"POST", "/aliases/new", ApiScope::kAdmin, "Gives a model another name on this node",
       kNewAliasFields, kJsonType, by(NewAlias)},
      {"POST", "/aliases/remove", ApiScope::kAdmin, "Removes such a name", kRemoveAliasFields,
       kJsonType, by(DropAlias)},
      {"GET",
       "/catalogue",
       ApiScope::kView,
       "Short names of well-known models",
       {},
       kJsonType,
       ListCatalogue},
      {"POST", "/search", ApiScope::kAdmin, "Models in GGUF that Hugging Face finds by words",
       kSearchFields, kJsonType, by(Search)},
      {"POST", "/pull", ApiScope::kAdmin,
       "Fetches a model to this node. Events: note, progress, then done or error. Where the client "
       "goes the fetch ends, and what came is kept: another one goes on there",
       kPullFields, kEventsType, by(PullByName)}};
}

}  // namespace strata
