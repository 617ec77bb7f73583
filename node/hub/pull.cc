#include "node/hub/pull.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "node/hub/download.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

constexpr size_t kInGgufMax = 3;  // repositories that are named instead of one without GGUF

// HOST/PATH of an address: "https://host:8080/a/b.gguf?x" is "host_8080/a/b.gguf".
std::string PlaceOf(absl::string_view url) {
  absl::string_view rest = url.substr(url.find("://") + 3);
  rest = rest.substr(0, rest.find('?'));
  const size_t slash = rest.find('/');
  return absl::StrCat(absl::StrReplaceAll(rest.substr(0, slash), {{":", "_"}}), rest.substr(slash));
}

// The folder of a repository's files, below that of all models.
std::string FolderOf(const ModelSource& source, const HubRepo& repo) {
  switch (source.kind) {
    case ModelSource::Kind::kUrl:
      return std::filesystem::path(PlaceOf(source.url)).parent_path().string();
    case ModelSource::Kind::kOllama:
      return absl::StrCat(kOllamaFolder, "/", repo.repo, "/", repo.revision);
    case ModelSource::Kind::kHuggingFace:
      break;
  }
  return absl::StrCat(kHuggingFaceFolder, "/", repo.repo, "/", repo.revision);
}

absl::StatusOr<HubRepo> ListFiles(const ModelSource& source, HubClient* hub) {
  switch (source.kind) {
    case ModelSource::Kind::kUrl:
      return HubRepo{
          .files = {{.name = std::filesystem::path(PlaceOf(source.url)).filename().string()}}};
    case ModelSource::Kind::kOllama:
      return hub->ListOllama(source);
    case ModelSource::Kind::kHuggingFace:
      break;
  }
  auto repo = hub->ListRepository(source);
  if (repo.ok() && VariantsOf(repo->files).empty()) {
    const auto in_gguf = hub->FindGgufOf(*repo, kInGgufMax);
    return NoGgufError(*repo, in_gguf.value_or(std::vector<HubModel>()));
  }
  return repo;
}

std::string Here(const std::string& path) {
  return PrintableText::From(path, kShownPathBytesMax).str();
}

}  // namespace

absl::StatusOr<NamedModel> FindNamedModel(const ModelSource& source, const PullOptions& options) {
  if (options.folders.strata.empty()) {
    return absl::FailedPreconditionError(
        "there is no folder for models: set HOME, or XDG_CACHE_HOME to a folder");
  }
  const auto local = ChooseLocalModel(FindLocalModels(options.folders), source, options.bytes_max);
  if (local.ok()) {
    if (source.quant.empty() && source.file.empty()) {
      options.hub.note(absl::StrCat(local->name, " is here: ", Here(local->path)));
    }
    return NamedModel{.model = {.name = local->name,
                                .path = local->path,
                                .quant = QuantOf(local->variant.parts[0].name),
                                .bytes = local->variant.bytes,
                                .was_here = true}};
  }
  std::error_code error;
  if (source.kind == ModelSource::Kind::kUrl) {
    const std::string path = absl::StrCat(options.folders.strata, "/", PlaceOf(source.url));
    if (std::filesystem::is_regular_file(path, error)) {
      return NamedModel{.model = {.name = source.Name(),
                                  .path = path,
                                  .quant = QuantOf(path),
                                  .bytes = std::filesystem::file_size(path, error),
                                  .was_here = true}};
    }
  }
  if (options.offline) {
    return absl::NotFoundError(absl::StrCat(
        local.status().message(), "; without --offline (HF_HUB_OFFLINE) it would be fetched"));
  }
  HubClient hub(options.hub);
  const auto repo = ListFiles(source, &hub);
  if (!repo.ok()) return repo.status();
  const auto choice =
      ChooseQuant(VariantsOf(repo->files), source.quant, source.file, options.bytes_max);
  if (!choice.ok()) {
    return absl::Status(choice.status().code(),
                        absl::StrCat(source.Name(), ": ", choice.status().message()));
  }
  if (!choice->why.empty()) options.hub.note(choice->why);
  const ModelVariant& variant = choice->variant;
  const std::string folder =
      absl::StrCat(options.folders.strata, "/", FolderOf(source, *repo), "/");
  NamedModel named = {.model = {.name = source.kind == ModelSource::Kind::kHuggingFace
                                            ? absl::StrCat("hf:", repo->repo, ":", variant.quant)
                                            : source.Name(),
                                .path = folder + variant.parts[0].name,
                                .quant = QuantOf(variant.parts[0].name),
                                .bytes = variant.bytes}};
  for (const HubFile& part : variant.parts) {
    named.parts.push_back({.request = hub.FileRequest(source, *repo, part),
                           .file = part,
                           .path = folder + part.name});
  }
  return named;
}

absl::StatusOr<PulledModel> Pull(const ModelSource& source, const PullOptions& options) {
  const auto named = FindNamedModel(source, options);
  return named.ok() ? FetchNamedModel(*named, source, options) : named.status();
}

absl::StatusOr<PulledModel> FetchNamedModel(const NamedModel& named, const ModelSource& source,
                                            const PullOptions& options) {
  PulledModel pulled = named.model;
  uint64_t done_before = 0;
  for (const NamedModel::Part& part : named.parts) {
    absl::Status status = Download(
        {.request = part.request,
         .path = part.path,
         .bytes = part.file.bytes,
         .sha256 = part.file.sha256},
        {.connections = options.connections,
         .retry_first = options.hub.retry_first,
         .cancelled = options.hub.cancelled,
         .note = options.hub.note,
         .progress =
             [&](uint64_t done, uint64_t total) {
               options.progress(std::filesystem::path(part.path).filename().string(),
                                done_before + done, pulled.bytes > 0 ? pulled.bytes : total);
             },
         .explain =
             [&](const WebAnswer& answer) { return HubError(answer, options.hub, source); }});
    if (!status.ok()) return status;
    done_before += part.file.bytes;
  }
  std::error_code error;
  for (const NamedModel::Part& part : named.parts) {
    if (std::filesystem::exists(part.path, error)) continue;
    return absl::UnavailableError(absl::StrCat(
        Here(part.path), " was removed while the other parts were fetched; fetch it again"));
  }
  if (pulled.bytes == 0) pulled.bytes = std::filesystem::file_size(pulled.path, error);
  return pulled;
}

absl::StatusOr<std::optional<wire::RemoteModel>> RemoteModelOf(const NamedModel& named,
                                                               const ModelSource& source,
                                                               const PullOptions& options) {
  wire::RemoteModel remote;
  WebGetter http(options.hub.cancelled);
  for (const NamedModel::Part& part : named.parts) {
    wire::RemoteFile* const file = remote.add_parts();
    file->set_url(part.request.url);
    file->set_bytes(part.file.bytes);
    std::string sha256;
    if (absl::HexStringToBytes(part.file.sha256, &sha256)) file->set_sha256(std::move(sha256));
    // One that is known by its hash is the same at each of a hub's servers.
    if (&part != named.parts.data() && file->bytes() > 0 && !file->sha256().empty()) continue;
    const auto probe = AskForModel(&http, part.request,
                                   {.retry_first = options.hub.retry_first,
                                    .cancelled = options.hub.cancelled,
                                    .note = options.hub.note,
                                    .explain = [&](const WebAnswer& answer) {
                                      return HubError(answer, options.hub, source);
                                    }});
    if (!probe.ok()) return probe.status();
    if (!probe->has_ranges || probe->bytes == 0) return std::optional<wire::RemoteModel>();
    if (file->bytes() > 0 && probe->bytes != file->bytes()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the server has ", probe->bytes, " bytes of it, and the hub says ", file->bytes()));
    }
    file->set_bytes(probe->bytes);
    if (file->sha256().empty()) file->set_etag(probe->etag);
  }
  return std::optional<wire::RemoteModel>(std::move(remote));
}

}  // namespace strata
