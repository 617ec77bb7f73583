#include "node/cli/hub_commands.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/base/interrupt.h"
#include "node/base/progress.h"
#include "node/base/standard_output.h"
#include "node/cli/model_names.h"
#include "node/client/model_session.h"
#include "node/hub/catalogue.h"
#include "node/hub/environment.h"
#include "node/hub/near_names.h"
#include "node/hub/pull_progress.h"
#include "node/status/status_source.h"

namespace strata {
namespace {

std::string Dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

bool IsOfflineByVariable() {
  // Set to anything but 0, as Hugging Face's own programs read it.
  const std::string value = EnvironmentVariable("HF_HUB_OFFLINE");
  return !value.empty() && value != "0";
}

std::optional<uint64_t> RoomForModel(const ClientOptions& options) {
  const auto status = StatusSource::Connect(options);
  if (!status.ok()) return std::nullopt;
  const auto report = (*status)->Fetch();
  if (!report.ok()) return std::nullopt;
  // Nodes of one machine share its devices, and some devices the machine's memory.
  std::map<std::pair<std::string, std::string>, uint64_t> free;
  for (const NodeReport& node : report->nodes) {
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
  if (sum == 0) return std::nullopt;
  const uint64_t room = sum / 4 * 3;
  PrintNote(absl::StrCat("the cluster has ", BytesString(sum), " of memory free: a model may have ",
                         BytesString(room)));
  return room;
}

absl::StatusOr<PulledModel> PullByName(const std::string& name, const PullByNameOptions& by) {
  const auto source = ParseModelSource(CatalogueSource(name).value_or(name));
  if (!source.ok()) return source.status();
  PullOptions options = {.hub = HubOptionsFromEnvironment(),
                         .folders = ModelFoldersFromEnvironment(),
                         .offline = by.offline || IsOfflineByVariable()};
  if (by.cluster != nullptr && source->kind == ModelSource::Kind::kHuggingFace &&
      source->quant.empty() && source->file.empty()) {
    options.bytes_max = RoomForModel(*by.cluster);
  }
  std::optional<PullProgress> progress;
  std::string label;
  options.hub.cancelled = by.cancelled;
  options.hub.note = [&](const std::string& note) {
    progress.has_value() ? progress->Note(note) : PrintNote(note);
  };
  options.progress = [&](const std::string& file, uint64_t done, uint64_t total) {
    if (std::exchange(label, file) != file)
      progress.emplace(stderr, isatty(STDERR_FILENO) != 0, file);
    progress->Update(done, total);
  };
  auto pulled = Pull(*source, options);
  if (!pulled.ok() && source->may_be_a_path && absl::IsNotFound(pulled.status())) {
    return absl::NotFoundError(
        absl::StrCat(name, ": no such file here, and ", pulled.status().message()));
  }
  return pulled;
}

absl::Status RunPull(const PullVerbOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of a write instead
  Interrupt interrupt([] {});
  const std::string meant = WithoutAlias(options.model, options.data_dir);
  auto pulled = PullByName(
      meant, {.offline = options.offline, .cancelled = [&] { return interrupt.requested(); }});
  if (absl::IsNotFound(pulled.status())) {
    if (const auto here = FindLocalModel(FindLocalModels(ModelFoldersFromEnvironment()), meant);
        here.ok()) {
      pulled = PulledModel{.name = here->name,
                           .path = here->path,
                           .quant = QuantOf(here->variant.parts[0].name),
                           .bytes = here->variant.bytes,
                           .was_here = true};
    }
  }
  if (absl::IsNotFound(pulled.status())) {
    std::error_code error;
    if (std::filesystem::is_regular_file(meant, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(meant, ": is a file here already: there is nothing to fetch"));
    }
  }
  if (absl::IsNotFound(pulled.status())) {
    return absl::NotFoundError(absl::StrCat(pulled.status().message(),
                                            NearText(meant, NamesToMean(options.data_dir, {}))));
  }
  if (absl::IsCancelled(pulled.status())) {
    return absl::CancelledError("interrupted; what came is kept: run it again to go on");
  }
  if (!pulled.ok()) return pulled.status();
  return WriteToStdout(options.json ? Dump({{"name", pulled->name},
                                            {"path", pulled->path},
                                            {"quant", pulled->quant},
                                            {"bytes", pulled->bytes},
                                            {"was_here", pulled->was_here}})
                                    : pulled->path + "\n");
}

}  // namespace strata
