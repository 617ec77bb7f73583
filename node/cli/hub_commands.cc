#include "node/cli/hub_commands.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/base/interrupt.h"
#include "node/base/progress.h"
#include "node/base/standard_output.h"
#include "node/client/coordinator_client.h"
#include "node/client/model_session.h"
#include "node/hub/pull_progress.h"
#include "node/status/status_source.h"
#include "transport/base/environment.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

std::string Dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Set to anything but 0, as Hugging Face's own programs read it.
bool IsOfflineByVariable() {
  const std::string value = EnvironmentVariable("HF_HUB_OFFLINE");
  return !value.empty() && value != "0";
}

// The real paths of the models that are loaded; nullopt: no cluster answers.
std::optional<std::set<std::string>> LoadedPaths(const ClientOptions& options) {
  const auto client = CoordinatorClient::Connect(options);
  if (!client.ok()) return std::nullopt;
  const auto models = (*client)->ListModels();
  if (!models.ok()) return std::nullopt;
  std::set<std::string> paths;
  for (const wire::ModelStatus& model : models->models()) {
    std::error_code error;
    const auto real = std::filesystem::canonical(model.source().path(), error);
    if (!error) paths.insert(real.string());
  }
  return paths;
}

std::optional<ClusterSnapshot> SnapshotOf(const ClientOptions& options) {
  const auto status = StatusSource::Connect(options);
  if (!status.ok()) return std::nullopt;
  auto report = (*status)->Fetch();
  return report.ok() ? std::optional<ClusterSnapshot>(*std::move(report)) : std::nullopt;
}

// The part of the nodes' free memory that a model may have; the rest is for its caches and
// activations. nullopt: nobody knows.
std::optional<uint64_t> RoomForModel(const ClusterSnapshot& report) {
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
  if (sum == 0) return std::nullopt;
  const uint64_t room = sum / 4 * 3;
  PrintNote(absl::StrCat("the cluster has ", BytesString(sum), " of memory free: a model may have ",
                         BytesString(room)));
  return room;
}

// A model that is named, with notes and progress on stderr.
class NamedPull {
 public:
  NamedPull(const std::string& name, const PullByNameOptions& by)
      : name_(name), by_(by), source_(ParseModelSource(name)) {}

  absl::StatusOr<PulledModel> Whole() {
    if (auto s = Begin(); !s.ok()) return s;
    auto pulled = Pull(*source_, options_);
    return pulled.ok() ? pulled : absl::StatusOr<PulledModel>(Explained(pulled.status()));
  }

  absl::StatusOr<wire::ModelSource> ForCluster() {
    if (auto s = Begin(); !s.ok()) return s;
    wire::ModelSource source;
    if (!by_.whole && n_nodes_ > 1) {
      const auto named = FindNamedModel(*source_, options_);
      if (!named.ok()) return Explained(named.status());
      source.set_path(named->model.path);
      if (named->model.was_here) return source;
      auto remote = RemoteModelOf(*named, *source_, options_);
      if (!remote.ok()) return remote.status();
      if (remote->has_value()) {
        *source.mutable_remote() = **std::move(remote);
        return source;
      }
      PrintNote("the server sends no parts of files: the whole file is fetched to this machine");
    }
    const auto pulled = Pull(*source_, options_);
    if (!pulled.ok()) return Explained(pulled.status());
    source.set_path(pulled->path);
    return source;
  }

 private:
  absl::Status Begin() {
    if (!source_.ok()) return source_.status();
    options_ = {.hub = HubOptionsFromEnvironment(),
                .folders = ModelFoldersFromEnvironment(),
                .offline = by_.offline || IsOfflineByVariable()};
    std::optional<ClusterSnapshot> report;
    if (by_.cluster != nullptr) report = SnapshotOf(*by_.cluster);
    if (report.has_value()) {
      n_nodes_ =
          absl::c_count_if(report->nodes, [](const NodeReport& node) { return node.status.ok(); });
      if (source_->kind == ModelSource::Kind::kHuggingFace && source_->quant.empty() &&
          source_->file.empty()) {
        options_.bytes_max = RoomForModel(*report);
      }
    }
    options_.hub.cancelled = by_.cancelled;
    options_.hub.note = [this](const std::string& note) {
      progress_.has_value() ? progress_->Note(note) : PrintNote(note);
    };
    options_.progress = [this](const std::string& file, uint64_t done, uint64_t total) {
      if (std::exchange(label_, file) != file)
        progress_.emplace(stderr, isatty(STDERR_FILENO) != 0, file);
      progress_->Update(done, total);
    };
    return absl::OkStatus();
  }

  absl::Status Explained(const absl::Status& status) const {
    if (!source_->may_be_a_path || !absl::IsNotFound(status)) return status;
    return absl::NotFoundError(absl::StrCat(name_, ": no such file here, and ", status.message()));
  }

  const std::string& name_;
  const PullByNameOptions& by_;
  const absl::StatusOr<ModelSource> source_;
  PullOptions options_;
  int64_t n_nodes_ = 0;  // that answer
  std::optional<PullProgress> progress_;
  std::string label_;
};

}  // namespace

absl::StatusOr<PulledModel> PullByName(const std::string& name, const PullByNameOptions& by) {
  return NamedPull(name, by).Whole();
}

absl::StatusOr<wire::ModelSource> SourceByName(const std::string& name,
                                               const PullByNameOptions& by) {
  return NamedPull(name, by).ForCluster();
}

absl::Status RunPull(const PullVerbOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of a write instead
  Interrupt interrupt([] {});
  auto pulled = PullByName(options.model, {.offline = options.offline,
                                           .cancelled = [&] { return interrupt.requested(); }});
  if (absl::IsNotFound(pulled.status())) {
    std::error_code error;
    if (std::filesystem::is_regular_file(options.model, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.model, ": is a file here already: there is nothing to fetch"));
    }
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

absl::Status RunModels(const ModelsOptions& options) {
  const std::vector<LocalModel> models = FindLocalModels(ModelFoldersFromEnvironment());
  const auto loaded = LoadedPaths(options.client);
  const auto is_loaded = [&](const LocalModel& model) {
    std::error_code error;
    const auto real = std::filesystem::canonical(model.path, error);
    return loaded.has_value() && !error && loaded->contains(real.string());
  };
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const LocalModel& model : models) {
      nlohmann::json each = {{"name", model.name},
                             {"quant", QuantOf(model.variant.parts[0].name)},
                             {"bytes", model.variant.bytes},
                             {"path", model.path},
                             {"place", model.place}};
      if (loaded.has_value()) each["loaded"] = is_loaded(model);
      list.push_back(std::move(each));
    }
    return WriteToStdout(Dump({{"models", std::move(list)}}));
  }
  if (models.empty()) {
    PrintNote("no models are here yet; strata pull hf:ORG/REPO fetches one");
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "SIZE", "QUANT", "PLACE", "LOADED", "FILE"}};
  for (const LocalModel& model : models) {
    rows.push_back({model.name, BytesString(model.variant.bytes),
                    QuantOf(model.variant.parts[0].name), model.place,
                    loaded.has_value() ? is_loaded(model) ? "yes" : "no" : "?", model.path});
  }
  return WriteToStdout(TextTable(std::move(rows)).Text());
}

}  // namespace strata
