#include "node/cli/alias_command.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/base/data_dir.h"
#include "node/base/standard_output.h"
#include "node/client/coordinator_client.h"
#include "node/client/model_alias.h"
#include "node/client/model_session.h"
#include "node/hub/aliases.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

constexpr int64_t kLookMs = 300;  // for a cluster, whose names are good to know, but no more

absl::Status ListAliases(const std::string& folder, bool json) {
  const auto aliases = OpenAliases(folder, PrintNote);
  if (!aliases.ok()) return aliases.status();
  if (json) return WriteToStdout(nlohmann::json{{"aliases", *aliases}}.dump() + "\n");
  if (aliases->empty()) {
    PrintNote("there are no aliases; strata alias NAME MODEL makes one");
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {{"ALIAS", "MODEL"}};
  for (const auto& [name, target] : *aliases) rows.push_back({name, target});
  return WriteToStdout(TextTable(std::move(rows)).Text());
}

}  // namespace

absl::Status RunAlias(const AliasOptions& options) {
  const auto folder = DataDir::PathOf(options.client.data_dir);
  if (!folder.ok()) return folder.status();
  if (!options.remove.empty()) {
    if (auto s = RemoveAlias(*folder, options.remove, PrintNote); !s.ok()) return s;
    return WriteToStdout(options.json ? nlohmann::json{{"removed", options.remove}}.dump() + "\n"
                                      : absl::StrCat(options.remove, " is no alias any more\n"));
  }
  if (options.name.empty()) return ListAliases(*folder, options.json);
  ClientOptions cluster = options.client;
  cluster.look_ms = std::min(cluster.look_ms, kLookMs);
  const auto client = CoordinatorClient::Connect(cluster);
  const auto target = GiveAlias(*folder, {.name = options.name, .model = options.model},
                                client.ok() ? client->get() : nullptr, PrintNote);
  if (!target.ok()) return target.status();
  return WriteToStdout(
      options.json ? nlohmann::json{{"alias", options.name}, {"model", *target}}.dump() + "\n"
                   : absl::StrCat(options.name, " stands for ", *target, "\n"));
}

}  // namespace strata
