#include "node/cli/model_commands.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/models/chat_templates.h"
#include "coordinator/models/model_match.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/base/data_dir.h"
#include "node/base/json_line.h"
#include "node/base/standard_output.h"
#include "node/chat/template_check.h"
#include "node/cli/model_names.h"
#include "node/client/coordinator_client.h"
#include "node/client/generation_report.h"
#include "node/hub/local_models.h"
#include "node/status/model_json.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// How long to wait for a model that is being reloaded.
constexpr absl::Duration kModelTime = absl::Seconds(60), kModelPoll = absl::Milliseconds(200);

absl::StatusOr<wire::ModelSource> SourceOf(const PlanOptions& options, ModelSession* session) {
  return FindModelSource(options.model,
                         {.data_dir = options.client.data_dir,
                          .offline = options.offline,
                          .cluster = &options.client,
                          .whole = options.whole},
                         session);
}

// Loads the model; from a whole file here where a node has no token for the hub that this machine
// has one for.
absl::StatusOr<CoordinatorClient::Loaded> LoadFrom(const PlanOptions& options,
                                                   wire::LoadModelRequest request,
                                                   ModelSession* session) {
  auto loaded = session->Load(request);
  if (!request.source().has_remote() || !absl::IsPermissionDenied(loaded.status())) return loaded;
  PrintNote(absl::StrCat(loaded.status().message(), "; the whole file is fetched to this machine"));
  PlanOptions whole = options;
  whole.whole = true;
  auto source = SourceOf(whole, session);
  if (!source.ok()) return source.status();
  *request.mutable_source() = *std::move(source);
  return session->Load(request);
}

// The template that `wanted` means: a file here, else a name in the model's file.
absl::Status SetChatTemplate(const std::string& wanted, wire::LoadModelRequest* request) {
  if (wanted.empty()) return absl::OkStatus();
  if (!IsModelFile(wanted)) {
    request->set_chat_template_name(wanted);
    return absl::OkStatus();
  }
  std::ifstream file(wanted, std::ios::binary);
  std::string text(kGivenChatTemplateBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || file.gcount() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--chat-template: ", wanted, " is empty or cannot be read"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  request->set_chat_template(std::move(text));
  return absl::OkStatus();
}

// For people: the cost of --exact.
std::string ExactCost(const wire::ModelStatus& model) {
  return absl::StrFormat(
      "exact: no two requests are computed together. Up to %d at a time keep the %d stage%s busy; "
      "more share that speed, and %d requests would be faster together without --exact",
      model.stages_size(), model.stages_size(), model.stages_size() == 1 ? "" : "s",
      model.n_seqs());
}

wire::PlacementOptions PlacementOptionsOf(const PlanOptions& options) {
  wire::PlacementOptions placement;
  placement.set_n_ctx(options.n_ctx);
  placement.set_n_seqs(options.n_seqs);
  placement.set_objective(options.objective);
  placement.set_assign(options.assign);
  placement.set_exclude(options.exclude);
  placement.set_reserve(options.reserve);
  placement.set_unverified(options.unverified);
  placement.set_activations(options.activations);
  placement.set_cpu_moe(options.cpu_moe);
  placement.mutable_cache()->set_type_k(options.type_k);
  placement.mutable_cache()->set_type_v(options.type_v);
  placement.mutable_cache()->set_flash_attention(options.flash_attention);
  placement.mutable_cache()->set_kv_cells(options.kv_cells);
  placement.mutable_cache()->set_exact(options.exact);
  if (options.checkpoints) placement.mutable_cache()->set_checkpoints(*options.checkpoints);
  return placement;
}

absl::StatusOr<std::vector<wire::ModelStatus>> LoadedModels(ModelSession* session) {
  const auto models = (*session)->ListModels();
  if (!models.ok()) return session->Explain(models.status());
  return std::vector<wire::ModelStatus>(models->models().begin(), models->models().end());
}

class RunSession {
 public:
  explicit RunSession(const RunOptions& options) : options_(options) {}

  absl::Status Run() {
    if (auto s = session_.Connect(options_.plan.client); !s.ok()) return s;
    if (auto s = GetModel(); !s.ok()) return s;
    return options_.embed ? session_.Embed(options_.generation, report_)
                          : session_.Generate(options_.generation, std::move(report_));
  }

 private:
  absl::Status GetModel();
  absl::Status FindLoaded();  // errors of FindModel()

  const RunOptions& options_;
  const std::string meant_ = WithoutAlias(options_.plan.model, options_.plan.client.data_dir);
  ModelSession session_;
  GenerationReport report_;
};

absl::Status RunSession::FindLoaded() {
  const auto loaded = LoadedModels(&session_);
  if (!loaded.ok()) return loaded.status();
  const auto model = FindModel(*loaded, meant_);
  if (model.ok()) report_ = ReportOf(**model);
  return model.status();
}

absl::Status RunSession::GetModel() {
  if (!IsModelFile(options_.plan.model)) {
    absl::Status found = FindLoaded();
    // Models of a coordinator that is gone are reloaded by the next one.
    std::string printed;
    for (const SteadyTime until = SteadyTime::Now() + kModelTime;
         RetryAfterMs(found) && !session_.interrupted() && SteadyTime::Now() < until;) {
      const std::string why(found.message());
      if (why != std::exchange(printed, why)) PrintNote(why);
      absl::SleepFor(kModelPoll);
      found = FindLoaded();
    }
    if (!absl::IsNotFound(found)) return found;
  }
  auto source = SourceOf(options_.plan, &session_);
  if (absl::IsNotFound(source.status())) {
    return absl::NotFoundError(
        absl::StrCat("no model of that name is loaded, and ", source.status().message()));
  }
  if (!source.ok()) return source.status();
  wire::LoadModelRequest request;
  *request.mutable_source() = *std::move(source);
  *request.mutable_placement() = PlacementOptionsOf(options_.plan);
  request.mutable_placement()->set_n_ctx(options_.generation.n_ctx);
  request.mutable_placement()->set_unverified(options_.generation.unverified);
  // A single request has nothing to go back to.
  request.mutable_placement()->mutable_cache()->set_checkpoints(
      options_.plan.checkpoints.value_or(0));
  request.set_no_mmap(!options_.generation.use_mmap);
  request.set_allow_mixed_versions(options_.generation.allow_mixed_versions);
  request.set_hold(true);
  auto loaded = LoadFrom(options_.plan, request, &session_);
  if (!loaded.ok()) return loaded.status();
  report_ = ReportOf(loaded->model);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunPlan(const PlanOptions& options) {
  ModelSession session;
  if (auto s = session.Connect(options.client); !s.ok()) return s;
  auto source = SourceOf(options, &session);
  if (!source.ok()) return source.status();
  wire::PlanModelRequest request;
  *request.mutable_source() = *std::move(source);
  *request.mutable_placement() = PlacementOptionsOf(options);
  const auto plan = session->PlanModel(request, PrintNote);
  if (!plan.ok()) return session.Explain(plan.status());
  return WriteToStdout(options.json ? plan->json() : plan->text());
}

namespace {

// Without a draft model.
absl::StatusOr<wire::LoadModelRequest> LoadRequestOf(const LoadOptions& options,
                                                     ModelSession* session) {
  auto source = SourceOf(options.plan, session);
  if (!source.ok()) return source.status();
  wire::LoadModelRequest request;
  *request.mutable_source() = *std::move(source);
  *request.mutable_placement() = PlacementOptionsOf(options.plan);
  request.set_no_mmap(!options.use_mmap);
  request.set_allow_mixed_versions(options.allow_mixed_versions);
  request.set_keep_alive_ms(options.keep_alive_ms);
  request.set_pinned(options.pinned);
  request.set_speculation(options.speculation);
  if (auto s = SetChatTemplate(options.chat_template, &request); !s.ok()) return s;
  return request;
}

// The id of the draft model, as requests may name it; it is loaded, if it is not.
absl::StatusOr<std::string> LoadDraft(const LoadOptions& options, ModelSession* session) {
  const auto loaded = LoadedModels(session);
  if (!loaded.ok()) return loaded.status();
  const auto there = FindModel(*loaded, WithoutAlias(options.draft, options.plan.client.data_dir));
  if (there.ok()) return absl::BytesToHexString((*there)->model_id());
  LoadOptions load;
  load.plan.client = options.plan.client;
  load.plan.model = options.draft;
  load.plan.offline = options.plan.offline;
  load.plan.whole = options.plan.whole;
  load.plan.n_ctx = options.plan.n_ctx;
  load.plan.n_seqs = options.plan.n_seqs;
  load.plan.exclude = options.plan.exclude;
  load.plan.json = options.plan.json;
  load.keep_alive_ms = options.keep_alive_ms;
  load.pinned = options.pinned;
  load.use_mmap = options.use_mmap;
  load.allow_mixed_versions = options.allow_mixed_versions;
  const auto request = LoadRequestOf(load, session);
  if (!request.ok()) return request.status();
  const auto draft = LoadFrom(load.plan, *request, session);
  if (!draft.ok()) return draft.status();
  return absl::BytesToHexString(draft->model.model_id());
}

}  // namespace

absl::Status RunLoad(const LoadOptions& options) {
  ModelSession session;
  if (auto s = session.Connect(options.plan.client); !s.ok()) return s;
  auto request = LoadRequestOf(options, &session);
  if (!request.ok()) return request.status();
  if (!options.draft.empty()) {
    auto draft = LoadDraft(options, &session);
    if (!draft.ok()) return draft.status();
    request->set_draft(*std::move(draft));
  }
  const auto loaded = LoadFrom(options.plan, *request, &session);
  if (!loaded.ok()) return loaded.status();
  const wire::ModelStatus& model = loaded->model;
  const ChatSupport chat = CheckTemplate(
      {.text = model.chat_template(), .bos = model.bos_text(), .eos = model.eos_text()});
  if (options.plan.json) {
    nlohmann::json out = {{"model", model.name()},
                          {"id", absl::BytesToHexString(model.model_id())},
                          {"was_there", loaded->was_there},
                          {"ctx", model.n_ctx()},
                          {"seqs", model.n_seqs()},
                          {"exact", model.exact()},
                          {"chat", chat.status.ok()},
                          {"stages", ModelStagesJson(model)},
                          {"keep_alive_ms", model.keep_alive_ms()},
                          {"pinned", model.pinned()},
                          {"speculate", SpeculationName(model.speculation())},
                          {"draft", model.draft()}};
    if (!chat.status.ok()) out["chat_problem"] = chat.status.message();
    return WriteToStdout(JsonLine(out));
  }
  if (model.exact() && model.n_seqs() > 1) PrintNote(ExactCost(model));
  if (!chat.status.ok()) {
    PrintNote(absl::StrCat("no chats, completions only: ", chat.status.message(),
                           "; --chat-template FILE gives the model another template"));
  } else if (chat.tools_in_words) {
    PrintNote("its chat template has no place for tools: they are described to the model in words");
  }
  return WriteToStdout(
      absl::StrFormat("%s %s: %d request%s at a time, %d tokens each\n", model.name(),
                      loaded->was_there ? "was loaded already" : "is loaded", model.n_seqs(),
                      model.n_seqs() == 1 ? "" : "s", model.n_ctx()));
}

absl::Status RunUnload(const UnloadOptions& options) {
  ModelSession session;
  if (auto s = session.Connect(options.client); !s.ok()) return s;
  const std::string meant = WithoutAlias(options.model, options.client.data_dir);
  auto name = session->UnloadModel(ModelPathOf(meant));
  if (absl::IsNotFound(name.status())) {
    // As `load` took it: by the name of its file.
    const auto here = FindLocalModel(FindLocalModels(ModelFoldersFromEnvironment()), meant);
    if (here.ok()) {
      if (auto by_path = session->UnloadModel(here->path); by_path.ok()) name = std::move(by_path);
    }
  }
  if (!name.ok()) return session.Explain(name.status());
  return WriteToStdout(options.json ? nlohmann::json{{"unloaded", *name}}.dump() + "\n"
                                    : absl::StrCat(*name, " is unloaded\n"));
}

absl::Status RunDrain(const DrainOptions& options) {
  std::string node = options.node;
  if (node.empty()) {
    const absl::StatusOr<std::string> folder = DataDir::PathOf(options.client.data_dir);
    if (!folder.ok()) return folder.status();
    absl::StatusOr<std::string> id = DataDir::ReadNodeId(*folder);
    if (absl::IsNotFound(id.status())) {
      return absl::InvalidArgumentError(
          absl::StrCat("no node has used ", *folder, ": say which node, as strata nodes names it"));
    }
    if (!id.ok()) return id.status();
    node = *std::move(id);
  }
  ModelSession session;
  if (auto s = session.Connect(options.client); !s.ok()) return s;
  wire::DrainNodeRequest request;
  request.set_node(node);
  request.set_undo(options.undo);
  if (auto s = session->DrainNode(request, PrintNote); !s.ok()) return session.Explain(s);
  if (options.json) {
    return WriteToStdout(nlohmann::json{{"node", node}, {"draining", !options.undo}}.dump() + "\n");
  }
  const std::string shown = options.node.empty() ? "this machine's node" : options.node;
  if (options.undo) return WriteToStdout(shown + " takes layers again, from the next load on\n");
  return WriteToStdout(absl::StrCat(
      shown, " has no layers any more; to let it take layers again: strata drain --undo",
      options.node.empty() ? "" : " ", options.node, "\n"));
}

absl::Status RunRun(const RunOptions& options) { return RunSession(options).Run(); }

}  // namespace strata
