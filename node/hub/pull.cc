#include "node/hub/pull.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
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

absl::StatusOr<PulledModel> Pull(const ModelSource& source, const PullOptions& options) {
  if (options.folders.strata.empty()) {
    return absl::FailedPreconditionError(
        "there is no folder for models: set HOME, or XDG_CACHE_HOME to a folder");
  }
  const auto local = ChooseLocalModel(FindLocalModels(options.folders), source, options.bytes_max);
  if (local.ok()) {
    if (source.quant.empty() && source.file.empty()) {
      options.hub.note(absl::StrCat(local->name, " is here: ", Here(local->path)));
    }
    return PulledModel{.name = local->name,
                       .path = local->path,
                       .quant = local->variant.quant,
                       .bytes = local->variant.bytes,
                       .was_here = true};
  }
  std::error_code error;
  if (source.kind == ModelSource::Kind::kUrl) {
    const std::string path = absl::StrCat(options.folders.strata, "/", PlaceOf(source.url));
    if (std::filesystem::is_regular_file(path, error)) {
      return PulledModel{.name = source.Name(),
                         .path = path,
                         .quant = QuantOf(path),
                         .bytes = std::filesystem::file_size(path, error),
                         .was_here = true};
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
  uint64_t done_before = 0;
  for (const HubFile& part : variant.parts) {
    absl::Status status = Download(
        {.request = hub.FileRequest(source, *repo, part),
         .path = folder + part.name,
         .bytes = part.bytes,
         .sha256 = part.sha256},
        {.connections = options.connections,
         .retry_first = options.hub.retry_first,
         .cancelled = options.hub.cancelled,
         .note = options.hub.note,
         .progress =
             [&](uint64_t done, uint64_t total) {
               options.progress(std::filesystem::path(part.name).filename().string(),
                                done_before + done, variant.bytes > 0 ? variant.bytes : total);
             },
         .explain =
             [&](const WebAnswer& answer) { return HubError(answer, options.hub, source); }});
    if (!status.ok()) return status;
    done_before += part.bytes;
  }
  const std::string path = folder + variant.parts[0].name;
  return PulledModel{
      .name = source.kind == ModelSource::Kind::kHuggingFace
                  ? absl::StrCat("hf:", repo->repo, ":", variant.quant)
                  : source.Name(),
      .path = path,
      .quant = QuantOf(variant.parts[0].name),
      .bytes = variant.bytes > 0 ? variant.bytes : std::filesystem::file_size(path, error)};
}

}  // namespace strata
