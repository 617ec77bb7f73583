#include "node/control/control_api.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/models/model_match.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/api_token_file.h"
#include "node/api/openai/openai_error.h"
#include "node/api/server_sent_events.h"
#include "node/control/access_operations.h"
#include "node/control/file_operations.h"
#include "node/doctor/doctor.h"
#include "node/doctor/doctor_collect.h"
#include "node/status/model_json.h"
#include "transport/base/own_program.h"
#include "transport/base/version.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kPrefix = "/api/strata/v1";

// The place of the file: that of a loaded model if `model` is the name of one.
absl::StatusOr<wire::ModelSource> FindSource(const ControlModel& wanted, bool may_name_files,
                                             CoordinatorClient* client) {
  wire::ModelSource source;
  if (absl::StartsWith(wanted.model, "/")) {
    if (!may_name_files) {
      return absl::PermissionDeniedError(
          "only an admin may name files: name a loaded model, or open the link that strata page "
          "prints");
    }
    source.set_path(wanted.model);
    source.set_node(wanted.node);
    return source;
  }
  const auto list = client->ListModels();
  if (!list.ok()) return list.status();
  const std::vector<wire::ModelStatus> models(list->models().begin(), list->models().end());
  const auto model = FindModel(models, wanted.model);
  if (!model.ok()) return model.status();
  return (*model)->source();
}

Json SchemaOf(absl::Span<const ControlField> fields) {
  Json properties = Json::object();
  Json required = Json::array();
  for (const ControlField& field : fields) {
    properties[field.name] = {{"type", field.type}, {"description", field.words}};
    if (field.is_required) required.push_back(field.name);
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", false}};
}

}  // namespace

ControlApi::ControlApi(Options options)
    : view_only_(options.view_only),
      feed_(std::move(options.feed)),
      context_(std::move(options.node)),
      operations_(AllOperations()) {}

ControlOperations ControlApi::AllOperations() {
  const auto by = [this](void (ControlApi::*run)(const SharedExchange&)) {
    return [this, run](const SharedExchange& exchange) { (this->*run)(exchange); };
  };
  ControlOperations operations = {
      {"GET",
       "/openapi.json",
       ApiScope::kView,
       "This description",
       {},
       kJsonType,
       by(&ControlApi::Describe),
       true},
      {"GET",
       "/session",
       ApiScope::kView,
       "Which node this is, and what the client may do",
       {},
       kJsonType,
       by(&ControlApi::ShowSession)},
      {"POST", "/session", ApiScope::kAdmin,
       "Exchanges the code of a link that strata page has printed for a token, once",
       kSessionFields, kJsonType, by(&ControlApi::OpenSession), true},
      {"GET",
       "/cluster",
       ApiScope::kView,
       "Nodes, devices, stages, links and problems, as strata "
       "status --json prints them",
       {},
       kJsonType,
       by(&ControlApi::ShowCluster)},
      {"GET",
       "/models",
       ApiScope::kView,
       "The loaded models",
       {},
       kJsonType,
       by(&ControlApi::ShowModels)},
      {"GET",
       "/events",
       ApiScope::kView,
       "Events: cluster and models when they have changed, "
       "event with an id (Last-Event-ID goes on from there), problem while no state is known",
       {},
       kEventsType,
       by(&ControlApi::WatchEvents)},
      {"GET",
       "/doctor",
       ApiScope::kAdmin,
       "What is wrong with the nodes and the links between them, and what to do, as strata doctor "
       "--json prints it; takes some seconds",
       {},
       kJsonType,
       by(&ControlApi::Examine)},
      {"POST", "/plan", ApiScope::kView,
       "How a model would be shared, as strata plan --json "
       "prints it; only an admin may name files",
       PlanFields(), kJsonType, by(&ControlApi::Plan)},
      {"POST", "/load", ApiScope::kAdmin,
       "Loads a model. Events: note, placed, progress, then "
       "done or error. The load goes on where the client goes",
       LoadFields(), kEventsType, by(&ControlApi::Load)},
      {"POST", "/unload", ApiScope::kAdmin, "Unloads a model, and waits until its memory is free",
       kUnloadFields, kJsonType, by(&ControlApi::Unload)},
      {"POST", "/drain", ApiScope::kAdmin,
       "Moves all layers off a node, or undoes that. Events: "
       "note, then done or error",
       kDrainFields, kEventsType, by(&ControlApi::Drain)}};
  std::ranges::move(FileOperations(&context_), std::back_inserter(operations));
  std::ranges::move(AccessOperations(&context_), std::back_inserter(operations));
  if (view_only_) {
    std::erase_if(operations,
                  [](const ControlOperation& each) { return each.scope == ApiScope::kAdmin; });
  }
  return operations;
}

ApiRoutes ControlApi::Routes() {
  ApiRoutes routes;
  for (const ControlOperation& operation : operations_) {
    routes.push_back({.method = operation.method,
                      .path = absl::StrCat(kPrefix, operation.path),
                      .is_public = operation.is_public,
                      .scope = operation.scope,
                      .error_form = OpenAiError,
                      .handle = operation.run});
  }
  return routes;
}

Json ControlApi::OpenApi() const {
  Json paths = Json::object();
  for (const ControlOperation& operation : operations_) {
    Json& made = paths[operation.path][absl::AsciiStrToLower(operation.method)];
    made = {
        {"summary", operation.summary},
        {"responses",
         {{"200",
           {{"description", "The result"},
            {"content", {{operation.answer, {{"schema", {{"type", "object"}}}}}}}}},
          {"default",
           {{"description", "An error"},
            {"content", {{kJsonType, {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}}}}}}}};
    if (std::string(operation.answer) == kEventsType) {
      made["responses"]["200"]["content"][kEventsType]["schema"]["type"] = "string";
    }
    made["security"] = operation.is_public
                           ? Json::array()
                           : Json::array({{{"token", {ApiScopeName(operation.scope)}}}});
    if (!operation.fields.empty()) {
      made["requestBody"] = {{"required", true},
                             {"content", {{kJsonType, {{"schema", SchemaOf(operation.fields)}}}}}};
    }
  }
  const Json error = {
      {"type", "object"},
      {"properties",
       {{"error",
         {{"type", "object"},
          {"properties",
           {{"message", {{"type", "string"}}}, {"param", {{"type", {"string", "null"}}}}}}}}}}};
  return {
      {"openapi", "3.1.0"},
      {"info", {{"title", "Strata's control API"}, {"version", LocalVersions().strata()}}},
      {"servers", Json::array({{{"url", kPrefix}}})},
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", {{"Error", error}}},
        {"securitySchemes",
         {{"token",
           {{"type", "http"},
            {"scheme", "bearer"},
            {"description",
             "strata token new NAME --scope SCOPE. At loopback chat and view need none."}}}}}}}};
}

void ControlApi::Describe(const SharedExchange& exchange) { AnswerJson(exchange, OpenApi()); }

void ControlApi::ShowSession(const SharedExchange& exchange) {
  const auto has = [&exchange](ApiScope scope) { return exchange->scopes.Has(scope); };
  const std::string scopes = ApiScopesText({.chat = has(ApiScope::kChat),
                                            .view = has(ApiScope::kView),
                                            .admin = has(ApiScope::kAdmin) && !view_only_});
  AnswerJson(exchange,
             {{"node", {{"id", context_.node.id}, {"name", context_.node.name}}},
              {"version", LocalVersions().strata()},
              {"scopes", std::vector<std::string>(absl::StrSplit(scopes, ',', absl::SkipEmpty()))},
              {"view_only", view_only_}});
}

void ControlApi::OpenSession(const SharedExchange& exchange) {
  const absl::StatusOr<std::string> code = ParseText(exchange->TakeBody(), kSessionFields);
  if (!code.ok()) return FailWith(exchange, code.status());
  if (context_.node.data_dir.empty()) {
    return exchange->Fail(403, "this node stores no tokens (--ephemeral)");
  }
  const absl::StatusOr<Secret> token =
      RedeemLinkCode(ApiTokenFilePath(context_.node.data_dir), *code, WallNow());
  if (!token.ok()) return FailWith(exchange, token.status());
  AnswerJson(exchange, {{"token", token->Reveal()}});
}

void ControlApi::ShowCluster(const SharedExchange& exchange) {
  const absl::Status status =
      feed_.Look([exchange](const absl::StatusOr<ClusterFeed::StateJson>& json) {
        if (!json.ok()) return FailWith(exchange, json.status());
        AnswerJson(exchange, json->cluster);
      });
  if (!status.ok()) FailWith(exchange, status);
}

void ControlApi::ShowModels(const SharedExchange& exchange) {
  const absl::Status status =
      feed_.Look([exchange](const absl::StatusOr<ClusterFeed::StateJson>& json) {
        const absl::Status known = json.ok() ? json->models.status() : json.status();
        if (!known.ok()) return FailWith(exchange, known);
        AnswerJson(exchange, *json->models);
      });
  if (!status.ok()) FailWith(exchange, status);
}

void ControlApi::WatchEvents(const SharedExchange& exchange) {
  const absl::Status status = feed_.Watch(exchange->http.Header("last-event-id"),
                                          PrivateResponse(EventStream()), exchange->responder);
  if (!status.ok()) FailWith(exchange, status);
}

void ControlApi::Examine(const SharedExchange& exchange) {
  context_.Start(exchange, [this](const SharedExchange& to, CoordinatorClient*) {
    // The process has its node's key already.
    const auto facts = CollectFacts({.client = {.node = context_.node.address,
                                                .data_dir = context_.node.data_dir,
                                                .key = {.open = true}},
                                     .program = OwnProgram(),
                                     .target = ""});
    if (!facts.ok()) return FailWith(to, facts.status());
    AnswerText(to, DoctorJson(Diagnose(*facts)));
  });
}

void ControlApi::Plan(const SharedExchange& exchange) {
  auto wanted = ParsePlan(exchange->TakeBody());
  if (!wanted.ok()) return FailWith(exchange, wanted.status());
  context_.Start(
      exchange, [wanted = *std::move(wanted)](const SharedExchange& to, CoordinatorClient* client) {
        wire::PlanModelRequest request;
        auto source = FindSource(wanted, to->scopes.Has(ApiScope::kAdmin), client);
        if (!source.ok()) return FailWith(to, source.status());
        *request.mutable_source() = *std::move(source);
        *request.mutable_placement() = wanted.placement;
        const auto plan = client->PlanModel(request, [](const std::string&) {});
        if (!plan.ok()) return FailWith(to, plan.status());
        AnswerText(to, plan->json());
      });
}

void ControlApi::Load(const SharedExchange& exchange) {
  auto wanted = ParseLoad(exchange->TakeBody());
  if (!wanted.ok()) return FailWith(exchange, wanted.status());
  context_.Start(exchange, [wanted = *std::move(wanted)](const SharedExchange& to,
                                                         CoordinatorClient* client) {
    wire::LoadModelRequest request;
    auto source = FindSource(wanted, /*may_name_files=*/true, client);
    if (!source.ok()) return FailWith(to, source.status());
    *request.mutable_source() = *std::move(source);
    *request.mutable_placement() = wanted.placement;
    request.set_no_mmap(!wanted.use_mmap);
    request.set_allow_mixed_versions(wanted.allow_mixed_versions);
    request.set_keep_alive_ms(wanted.keep_alive_ms);
    request.set_pinned(wanted.pinned);
    request.set_speculation(wanted.speculation);
    request.set_draft(wanted.draft);
    CallStream stream(to);
    const auto loaded = client->LoadModel(request, [&stream](const wire::LoadModelEvent& event) {
      if (event.has_placed()) {
        stream.Send("placed", ModelJson(event.placed()));
      } else if (event.has_progress()) {
        const wire::LoadProgress& progress = event.progress().progress();
        stream.Send("progress", {{"stage", event.progress().stage()},
                                 {"bytes_done", progress.bytes_done()},
                                 {"bytes_total", progress.bytes_total()}});
      } else {
        stream.Note(event.note());
      }
    });
    if (!loaded.ok()) return stream.End(loaded.status(), {});
    Json done = ModelJson(loaded->model);
    done["was_there"] = loaded->was_there;
    stream.End(absl::OkStatus(), done);
  });
}

void ControlApi::Unload(const SharedExchange& exchange) {
  auto model = ParseText(exchange->TakeBody(), kUnloadFields);
  if (!model.ok()) return FailWith(exchange, model.status());
  context_.Start(exchange,
                 [model = *std::move(model)](const SharedExchange& to, CoordinatorClient* client) {
                   const auto name = client->UnloadModel(model);
                   if (!name.ok()) return FailWith(to, name.status());
                   AnswerJson(to, {{"unloaded", *name}});
                 });
}

void ControlApi::Drain(const SharedExchange& exchange) {
  auto request = ParseDrain(exchange->TakeBody());
  if (!request.ok()) return FailWith(exchange, request.status());
  context_.Start(exchange, [request = *std::move(request)](const SharedExchange& to,
                                                           CoordinatorClient* client) {
    CallStream stream(to);
    const absl::Status status =
        client->DrainNode(request, [&stream](const std::string& note) { stream.Note(note); });
    stream.End(status, {{"node", request.node()}, {"draining", !request.undo()}});
  });
}

}  // namespace strata
