#include "node/cli/cache_command.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/base/data_dir.h"
#include "node/base/json_line.h"
#include "node/base/progress.h"
#include "node/base/standard_output.h"
#include "node/cli/model_names.h"
#include "node/client/coordinator_client.h"
#include "node/client/model_session.h"
#include "node/hub/local_models.h"
#include "node/status/status_models.h"
#include "shard/kv_store/kv_folder.h"
#include "shard/model/model_file.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

using Json = nlohmann::json;

std::string UsedText(const wire::KvCache& cache) {
  if (cache.blocks() == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixSeconds(cache.used_unix_s()),
                          absl::LocalTimeZone());
}

std::string NameOf(const wire::KvCacheAbout& about) {
  return about.model_name().empty() ? "?" : about.model_name();
}

// There is no cluster, and none was named.
bool IsAlone(const CacheVerbOptions& options, const absl::Status& connected) {
  return absl::IsUnavailable(connected) && options.client.node.empty();
}

// A model that is named as other verbs name it, by its id; else as it was given.
std::string IdOf(const CacheVerbOptions& options) {
  const std::string meant = WithoutAlias(*options.model, options.client.data_dir);
  const auto here = FindLocalModel(FindLocalModels(ModelFoldersFromEnvironment()), meant);
  const auto file = ModelFile::Open(here.ok() ? here->path : ModelPathOf(meant));
  return file.ok() ? absl::BytesToHexString((*file)->id()) : *options.model;
}

// The prompts that this machine's data dir has.
absl::StatusOr<wire::ListKeptPromptsResponse> ListHere(const CacheVerbOptions& options) {
  const auto data_dir = DataDir::PathOf(options.client.data_dir);
  if (!data_dir.ok()) return data_dir.status();
  wire::ListKeptPromptsResponse kept;
  wire::KeptPrompts* const node = kept.add_nodes();
  node->set_node_name("this machine");
  for (const KvFolder& folder : ListKvFolders(KvFolderPath(*data_dir))) {
    *node->mutable_kept()->add_caches() = folder.cache;
  }
  return kept;
}

absl::StatusOr<wire::ClearKeptPromptsResponse> ClearHere(const CacheVerbOptions& options) {
  const auto data_dir = DataDir::PathOf(options.client.data_dir);
  if (!data_dir.ok()) return data_dir.status();
  wire::ClearKeptPromptsResponse cleared;
  const std::string folder = KvFolderPath(*data_dir);
  for (const KvFolder& each : ListKvFolders(folder)) {
    const wire::KvCacheAbout& about = each.cache.about();
    if (options.model && about.model_name() != *options.model) continue;
    if (!RemoveKvFolder(each.path)) continue;
    if (!about.model_name().empty()) cleared.add_models(about.model_name());
    cleared.set_bytes(cleared.bytes() + each.cache.bytes());
  }
  if (cleared.models().empty() && options.model) {
    return absl::NotFoundError(absl::StrCat("no node answers, and no prompts of ", *options.model,
                                            " are kept on this machine"));
  }
  return cleared;
}

}  // namespace

std::string KeptPromptsTable(const wire::ListKeptPromptsResponse& kept) {
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "MODEL", "LAYERS", "PROMPTS", "LAST USED", "STATE"}};
  std::vector<std::string> nodes;
  for (const wire::KeptPrompts& node : kept.nodes()) {
    uint64_t bytes = 0;
    for (const wire::KvCache& cache : node.kept().caches()) {
      bytes += cache.bytes();
      if (cache.blocks() == 0 && !cache.loaded()) continue;  // of a stage that has gone
      rows.push_back({node.node_name(), NameOf(cache.about()), LayersText(cache.about().layers()),
                      BytesString(cache.bytes()), UsedText(cache),
                      cache.loaded() ? "loaded" : "not loaded"});
    }
    const uint64_t bytes_max = node.kept().bytes_max();
    nodes.push_back(
        absl::StrCat(node.node_name(), " keeps ", BytesString(bytes),
                     bytes_max == 0 ? "" : absl::StrCat(", at most ", BytesString(bytes_max))));
  }
  return absl::StrCat(rows.size() > 1 ? TextTable(rows).Text() : "", absl::StrJoin(nodes, "; "),
                      " (strata node --kv-cache-disk).\n");
}

std::string KeptPromptsJson(const wire::ListKeptPromptsResponse& kept) {
  Json nodes = Json::array();
  for (const wire::KeptPrompts& node : kept.nodes()) {
    Json caches = Json::array();
    for (const wire::KvCache& cache : node.kept().caches()) {
      const wire::KvCacheAbout& about = cache.about();
      caches.push_back({{"model", about.model_name()},
                        {"model_id", absl::BytesToHexString(about.model_id())},
                        {"layers", {about.layers().begin(), about.layers().end()}},
                        {"bytes", cache.bytes()},
                        {"blocks", cache.blocks()},
                        {"loaded", cache.loaded()},
                        {"used", cache.used_unix_s()}});
    }
    nodes.push_back({{"node", node.node_name()},
                     {"id", absl::BytesToHexString(node.node())},
                     {"bytes_max", node.kept().bytes_max()},
                     {"caches", std::move(caches)}});
  }
  return JsonLine(
      {{"nodes", std::move(nodes)},
       {"silent", std::vector<std::string>(kept.silent().begin(), kept.silent().end())}});
}

absl::Status RunCacheShow(const CacheVerbOptions& options) {
  const auto client = CoordinatorClient::Connect(options.client);
  auto kept = client.ok() ? (*client)->ListKeptPrompts()
                          : absl::StatusOr<wire::ListKeptPromptsResponse>(client.status());
  if (IsAlone(options, client.status())) {
    PrintNote("no node answers: this is what the data dir of this machine has");
    kept = ListHere(options);
  }
  if (!kept.ok()) return kept.status();
  if (options.json) return WriteToStdout(KeptPromptsJson(*kept));
  for (const std::string& node : kept->silent()) {
    PrintNote(absl::StrCat(node, " does not answer: what it keeps is left out"));
  }
  return WriteToStdout(KeptPromptsTable(*kept));
}

absl::Status RunCacheClear(const CacheVerbOptions& options) {
  if (options.model && options.model->empty()) {
    return absl::InvalidArgumentError(
        "the model's name is empty; without one, strata cache clear clears those of all models");
  }
  const auto client = CoordinatorClient::Connect(options.client);
  auto cleared = client.ok() ? (*client)->ClearKeptPrompts(options.model.value_or(""))
                             : absl::StatusOr<wire::ClearKeptPromptsResponse>(client.status());
  if (client.ok() && absl::IsNotFound(cleared.status()) && options.model) {
    if (const std::string id = IdOf(options); id != *options.model) {
      cleared = (*client)->ClearKeptPrompts(id);
    }
  }
  if (IsAlone(options, client.status())) {
    PrintNote("no node answers: what the data dir of this machine has is cleared");
    cleared = ClearHere(options);
  }
  if (!cleared.ok()) return cleared.status();
  absl::Status written;
  if (options.json) {
    written = WriteToStdout(JsonLine(
        {{"cleared", std::vector<std::string>(cleared->models().begin(), cleared->models().end())},
         {"freed_bytes", cleared->bytes()},
         {"silent",
          std::vector<std::string>(cleared->silent().begin(), cleared->silent().end())}}));
  } else if (cleared->models().empty()) {
    written = WriteToStdout("No prompts are kept.\n");
  } else {
    std::vector<std::string> models;
    for (const std::string& name : cleared->models()) {
      models.push_back(PrintableText::From(name).str());
    }
    written = WriteToStdout(absl::StrCat("The prompts of ", absl::StrJoin(models, ", "),
                                         " are forgotten, ", BytesString(cleared->bytes()),
                                         " of them on disks\n"));
  }
  if (!written.ok() || cleared->silent().empty()) return written;
  return absl::UnavailableError(absl::StrCat(absl::StrJoin(cleared->silent(), ", "),
                                             " did not answer and may keep some still: clear "
                                             "again when they are back"));
}

}  // namespace strata
