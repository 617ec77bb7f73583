#include "node/cli/hub_commands.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/base/interrupt.h"
#include "node/base/json_line.h"
#include "node/base/progress.h"
#include "node/base/standard_output.h"
#include "node/cli/model_names.h"
#include "node/client/model_session.h"
#include "node/hub/catalogue.h"
#include "node/hub/near_names.h"
#include "node/hub/pull_progress.h"
#include "node/status/model_list.h"
#include "node/status/status_source.h"

namespace strata {
namespace {

std::optional<ClusterSnapshot> SnapshotOf(const ClientOptions& options) {
  const auto status = StatusSource::Connect(options);
  if (!status.ok()) return std::nullopt;
  auto report = (*status)->Fetch();
  return report.ok() ? std::optional<ClusterSnapshot>(*std::move(report)) : std::nullopt;
}

// Says how much it is.
std::optional<uint64_t> RoomOf(const ClusterSnapshot& report) {
  const ModelRoom room = RoomForModels(report);
  if (room.free_bytes == 0) return std::nullopt;
  PrintNote(absl::StrCat("the cluster has ", BytesString(room.free_bytes),
                         " of memory free: a model may have ", BytesString(room.model_bytes)));
  return room.model_bytes;
}

// A model that is named, with notes and progress on stderr.
class NamedPull {
 public:
  NamedPull(const std::string& name, const PullByNameOptions& by)
      : name_(name), by_(by), source_(ParseModelSource(CatalogueSource(name).value_or(name))) {}

  absl::StatusOr<PulledModel> Whole() {
    if (auto s = Begin(); !s.ok()) return s;
    auto pulled = Pull(*source_, options_);
    return pulled.ok() ? pulled : absl::StatusOr<PulledModel>(Explained(pulled.status()));
  }

  absl::StatusOr<wire::ModelSource> ForCluster() {
    if (auto s = Begin(); !s.ok()) return s;
    const auto named = FindNamedModel(*source_, options_);
    if (!named.ok()) return Explained(named.status());
    wire::ModelSource source;
    source.set_path(named->model.path);
    if (named->model.was_here) return source;
    if (!by_.whole && NodesThatAnswer() > 1) {
      auto remote = RemoteModelOf(*named, *source_, options_);
      if (!remote.ok()) return remote.status();
      if (remote->has_value()) {
        *source.mutable_remote() = **std::move(remote);
        return source;
      }
      PrintNote("the server sends no parts of files: the whole file is fetched to this machine");
    }
    const auto pulled = FetchNamedModel(*named, *source_, options_);
    if (!pulled.ok()) return Explained(pulled.status());
    return source;
  }

 private:
  absl::Status Begin() {
    if (!source_.ok()) return source_.status();
    options_ = {.hub = HubOptionsFromEnvironment(),
                .folders = ModelFoldersFromEnvironment(),
                .offline = by_.offline || IsOfflineByVariable()};
    if (source_->kind == ModelSource::Kind::kHuggingFace && source_->quant.empty() &&
        source_->file.empty() && Report().has_value()) {
      options_.bytes_max = RoomOf(*Report());
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

  // The cluster's, asked for once; nullopt: there is none, or it does not answer.
  const std::optional<ClusterSnapshot>& Report() {
    if (!report_.has_value()) {
      report_.emplace(by_.cluster == nullptr ? std::nullopt : SnapshotOf(*by_.cluster));
    }
    return *report_;
  }

  int64_t NodesThatAnswer() {
    if (!Report().has_value()) return 0;
    return absl::c_count_if(Report()->nodes,
                            [](const NodeReport& node) { return node.status.ok(); });
  }

  absl::Status Explained(const absl::Status& status) const {
    if (!source_->may_be_a_path || !absl::IsNotFound(status)) return status;
    return absl::NotFoundError(absl::StrCat(name_, ": no such file here, and ", status.message()));
  }

  const std::string& name_;
  const PullByNameOptions& by_;
  const absl::StatusOr<ModelSource> source_;
  PullOptions options_;
  std::optional<std::optional<ClusterSnapshot>> report_;
  std::optional<PullProgress> progress_;
  std::string label_;
};

}  // namespace

std::optional<uint64_t> RoomForModel(const ClientOptions& options) {
  const auto report = SnapshotOf(options);
  return report.has_value() ? RoomOf(*report) : std::nullopt;
}

absl::StatusOr<wire::ModelSource> SourceByName(const std::string& name,
                                               const PullByNameOptions& by) {
  return NamedPull(name, by).ForCluster();
}

absl::Status RunPull(const PullVerbOptions& options) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of a write instead
  Interrupt interrupt([] {});
  const std::string meant = WithoutAlias(options.model, options.data_dir);
  const PullByNameOptions by = {.offline = options.offline,
                                .cancelled = [&] { return interrupt.requested(); }};
  auto pulled = NamedPull(meant, by).Whole();
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
  return WriteToStdout(options.json ? JsonLine({{"name", pulled->name},
                                                {"path", pulled->path},
                                                {"quant", pulled->quant},
                                                {"bytes", pulled->bytes},
                                                {"was_here", pulled->was_here}})
                                    : pulled->path + "\n");
}

}  // namespace strata
