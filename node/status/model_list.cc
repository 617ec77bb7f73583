#include "node/status/model_list.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "node/base/progress.h"
#include "transport/base/printable_text.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using Json = nlohmann::json;

uint64_t CountIn(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

// Of the step of one sequence.
double TokensPerSecond(const Json& plan) {
  for (const Json& step : plan.value("steps", Json::array())) {
    const auto ms = step.is_object() ? step.find("step_ms") : step.end();
    if (CountIn(step, "sequences") == 1 && ms != step.end() && ms->is_number() &&
        ms->get<double>() > 0) {
      return 1e3 / ms->get<double>();
    }
  }
  return 0;
}

void AddAliasOnce(const std::string& alias, ListedModel* model) {
  if (!absl::c_linear_search(model->aliases, alias)) model->aliases.push_back(alias);
}

}  // namespace

ModelFit FitOf(const absl::StatusOr<wire::PlanExplained>& plan) {
  ModelFit fit;
  if (plan.ok()) {
    const Json json = Json::parse(plan->json(), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      fit.why = "the cluster's plan cannot be read";
      return fit;
    }
    fit.kind = ModelFit::Kind::kFits;
    fit.tokens_per_second = TokensPerSecond(json);
    fit.n_ctx = CountIn(json, "ctx");
    fit.n_ctx_max = CountIn(json.value("model", Json()), "ctx_max");
    return fit;
  }
  fit.why = PrintableText::From(plan.status().message(), kShownMessageBytesMax).str();
  if (!absl::IsResourceExhausted(plan.status())) return fit;
  fit.kind = ModelFit::Kind::kDoesNotFit;
  if (const auto shortage = ShortageOf(plan.status());
      shortage && shortage->needed_bytes > shortage->free_bytes) {
    fit.missing_bytes = shortage->needed_bytes - shortage->free_bytes;
  }
  return fit;
}

std::string FitText(const ModelFit& fit) {
  switch (fit.kind) {
    case ModelFit::Kind::kUnknown:
      return "?";
    case ModelFit::Kind::kDoesNotFit:
      return fit.missing_bytes > 0
                 ? absl::StrCat("no: ", BytesString(fit.missing_bytes), " missing")
                 : "no";
    case ModelFit::Kind::kFits:
      break;
  }
  return absl::StrCat(
      "yes",
      fit.tokens_per_second > 0 ? absl::StrFormat(", %.3g tokens/s", fit.tokens_per_second) : "",
      fit.n_ctx > 0 && fit.n_ctx < fit.n_ctx_max ? absl::StrCat(", context ", fit.n_ctx) : "");
}

ModelRoom RoomForModels(const ClusterSnapshot& report) {
  // Nodes of one machine share its devices, and some devices the machine's memory.
  std::map<std::pair<std::string, std::string>, uint64_t> free;
  for (const NodeReport& node : report.nodes) {
    const std::string machine = node.info.machine_id().empty() ? node.id() : node.info.machine_id();
    if (node.info.devices().empty()) free[{machine, ""}] = node.info.memory_free();
    for (const wire::DeviceInfo& device : node.info.devices()) {
      uint64_t& bytes = free[{machine, device.shares_machine_memory() ? "" : device.name()}];
      const uint64_t limit = device.memory_limit();
      bytes = std::max(bytes,
                       limit == 0 ? device.memory_free() : std::min(limit, device.memory_free()));
    }
  }
  uint64_t sum = 0;
  for (const auto& [device, bytes] : free) sum += bytes;
  return {.free_bytes = sum, .model_bytes = sum / 4 * 3};
}

std::vector<ListedModel> ListModelsOf(const wire::ListKnownModelsResponse& known,
                                      absl::Span<const LocalModel> here) {
  std::vector<ListedModel> models;
  for (const wire::KnownModel& each : known.models()) {
    const wire::LocalModelFile& file = each.file();
    auto model = absl::c_find_if(models, [&](const ListedModel& other) {
      return other.name == file.name() && other.quant == file.quant() &&
             other.bytes == file.bytes();
    });
    if (model == models.end()) {
      models.push_back({.name = file.name(), .quant = file.quant(), .bytes = file.bytes()});
      model = std::prev(models.end());
    }
    model->copies.push_back({.node_id = absl::BytesToHexString(each.node()),
                             .node_name = each.node_name(),
                             .path = file.path(),
                             .place = file.place()});
    for (const std::string& alias : file.aliases()) AddAliasOnce(alias, &*model);
  }
  const size_t of_nodes = models.size();
  for (const LocalModel& local : here) {
    const auto end = models.begin() + static_cast<std::ptrdiff_t>(of_nodes);
    auto model = std::find_if(models.begin(), end, [&](const ListedModel& other) {
      return absl::c_any_of(other.copies, [&](const ListedModel::Copy& copy) {
        return copy.path == local.path && other.bytes == local.variant.bytes;
      });
    });
    if (model == end) {
      models.push_back({.name = local.name,
                        .quant = QuantOf(local.variant.parts[0].name),
                        .bytes = local.variant.bytes,
                        .copies = {{.path = local.path, .place = local.place}}});
      model = std::prev(models.end());
    }
    for (const std::string& alias : local.aliases) AddAliasOnce(alias, &*model);
  }
  return models;
}

void MarkLoaded(absl::Span<const wire::ModelStatus> loaded, absl::Span<ListedModel> models) {
  for (ListedModel& model : models) {
    model.is_loaded = absl::c_any_of(loaded, [&](const wire::ModelStatus& status) {
      return status.state() != wire::ModelStatus::FAILED &&
             status.state() != wire::ModelStatus::UNLOADING &&
             absl::c_any_of(model.copies, [&](const ListedModel::Copy& copy) {
               return copy.path == status.source().path() &&
                      (copy.node_id.empty() || copy.node_id == status.source().node());
             });
    });
  }
}

std::string PlacesText(const ListedModel& model) {
  std::vector<std::string> places;
  for (size_t i = 0; i < model.copies.size();) {
    // Neighbours in the same program's folders share its name.
    std::vector<std::string> nodes;
    const std::string& place = model.copies[i].place;
    for (; i < model.copies.size() && model.copies[i].place == place; ++i) {
      if (!model.copies[i].node_name.empty()) nodes.push_back(model.copies[i].node_name);
    }
    places.push_back(nodes.empty() ? place
                                   : absl::StrCat(absl::StrJoin(nodes, ", "), " (", place, ")"));
  }
  return absl::StrJoin(places, ", ");
}

nlohmann::json ListedModelJson(const ListedModel& model) {
  Json nodes = Json::array();
  for (const ListedModel::Copy& copy : model.copies) {
    nodes.push_back({{"node", copy.node_id},
                     {"name", copy.node_name},
                     {"path", copy.path},
                     {"place", copy.place}});
  }
  Json json = {{"name", model.name},           {"quant", model.quant},
               {"bytes", model.bytes},         {"ctx_max", model.n_ctx_max},
               {"path", model.copies[0].path}, {"place", model.copies[0].place},
               {"nodes", std::move(nodes)},    {"aliases", model.aliases}};
  if (model.is_loaded) json["loaded"] = *model.is_loaded;
  const ModelFit& fit = model.fit;
  if (fit.kind != ModelFit::Kind::kUnknown) json["fits"] = fit.kind == ModelFit::Kind::kFits;
  if (fit.tokens_per_second > 0) json["tokens_per_second"] = fit.tokens_per_second;
  if (fit.n_ctx > 0) json["ctx"] = fit.n_ctx;
  if (fit.missing_bytes > 0) json["missing_bytes"] = fit.missing_bytes;
  if (!fit.why.empty()) json["why"] = fit.why;
  return json;
}

}  // namespace strata
