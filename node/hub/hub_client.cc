#include "node/hub/hub_client.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "node/hub/foreign_format.h"
#include "transport/base/environment.h"
#include "transport/base/printable_text.h"
#include "transport/http/ranged_file.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr size_t kAnswerBytesMax = 64 << 20;
constexpr size_t kSha256Digits = 64;
constexpr int kApiAttemptsMax = 6;
// In a repository's tags, and as a filter of those that have the tag.
constexpr absl::string_view kQuantizedFrom = "base_model:quantized:";

// The first word of a file; empty: there is none.
std::string WordOf(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

std::string FindToken() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string value(absl::StripAsciiWhitespace(EnvironmentVariable(name)));
    if (!value.empty()) return value;
  }
  if (const std::string path = EnvironmentVariable("HF_TOKEN_PATH"); !path.empty())
    return WordOf(path);
  if (const std::string home = EnvironmentVariable("HF_HOME"); !home.empty())
    return WordOf(home + "/token");
  if (const std::string cache = EnvironmentVariable("XDG_CACHE_HOME"); !cache.empty()) {
    return WordOf(cache + "/huggingface/token");
  }
  return WordOf(EnvironmentVariable("HOME") + "/.cache/huggingface/token");
}

// Each byte that a path of a URL does not have as it is, as %XX.
std::string Escape(absl::string_view text, bool with_slashes) {
  std::string escaped;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::StrContains("-._~", c) || (c == '/' && with_slashes)) {
      escaped.push_back(c);
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

std::string TextOf(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}
uint64_t NumberOf(const Json& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

// Hex digits in lower case; empty: `text` is no SHA-256.
std::string Sha256Of(absl::string_view text) {
  if (text.size() != kSha256Digits || !absl::c_all_of(text, absl::ascii_isxdigit)) return "";
  return absl::AsciiStrToLower(text);
}

bool IsRepository(absl::string_view name) {
  const auto source = ParseModelSource(absl::StrCat("hf:", name));
  return source.ok() && source->repo == name;
}

absl::Status NotItsAnswer(const WebAnswer& answer) {
  return absl::FailedPreconditionError(absl::StrCat(
      PrintableText::From(answer.url).str(),
      ": its answer is not that of a model hub: is there a proxy or a log-in page in between?"));
}

}  // namespace

HubOptions HubOptionsFromEnvironment() {
  HubOptions options;
  if (const std::string url = EnvironmentVariable("HF_ENDPOINT"); !url.empty()) {
    options.hf_endpoint = absl::StripSuffix(url, "/");
  }
  if (const std::string url = EnvironmentVariable("OLLAMA_REGISTRY"); !url.empty()) {
    options.ollama_registry = absl::StripSuffix(url, "/");
  }
  options.hf_token = FindToken();
  return options;
}

bool IsOfflineByVariable() {
  // Set to anything but 0, as Hugging Face's own programs read it.
  const std::string value = EnvironmentVariable("HF_HUB_OFFLINE");
  return !value.empty() && value != "0";
}

std::string TokenFor(const HubOptions& options, absl::string_view url) {
  return absl::StartsWith(url, options.hf_endpoint + "/") ? options.hf_token : "";
}

absl::Status HubError(const WebAnswer& answer, const HubOptions& options,
                      const ModelSource& source) {
  const bool is_hf = source.kind == ModelSource::Kind::kHuggingFace;
  const std::string name = source.Name();
  const std::string page = absl::StrCat(options.hf_endpoint, "/", source.repo);
  const std::string reason = answer.Header("x-error-code");
  switch (answer.status) {
    case 401:
    case 403:
      if (!is_hf) break;
      if (reason == "GatedRepo") {
        return absl::PermissionDeniedError(
            absl::StrCat(name, " is gated: accept its licence at ", page,
                         options.hf_token.empty() ? ", and set HF_TOKEN to a token of your account"
                                                  : " with the account that HF_TOKEN is of"));
      }
      if (options.hf_token.empty()) {
        return absl::PermissionDeniedError(
            absl::StrCat(name,
                         ": there is no such repository, or it is private: then set HF_TOKEN to "
                         "a token of an account that may read ",
                         page));
      }
      return absl::PermissionDeniedError(
          absl::StrCat(name, ": the account of the token (HF_TOKEN) may not read it: see ", page));
    case 404:
      if (!is_hf) break;
      return absl::NotFoundError(
          reason == "RevisionNotFound" ? absl::StrCat(name, " has no revision ", source.revision)
          : reason == "EntryNotFound"
              ? absl::StrCat(name, ": there is no such file in the repository: see ", page)
              : absl::StrCat(name, ": there is no such repository at ", options.hf_endpoint));
    default:
      break;
  }
  if (answer.status == 404 || answer.status == 410) {
    return absl::NotFoundError(
        absl::StrCat(name, ": there is no such model (", answer.status, ")"));
  }
  return ExplainStatus(name, answer);
}

absl::Status NoGgufError(const HubRepo& repo, absl::Span<const HubModel> in_gguf) {
  std::vector<std::string> files;
  for (const HubFile& file : repo.files) files.push_back(file.name);
  if (absl::c_any_of(
          files, [](const std::string& file) { return absl::EndsWithIgnoreCase(file, ".gguf"); })) {
    return absl::NotFoundError(absl::StrCat(
        "hf:", repo.repo,
        " has no whole model in GGUF: parts are missing, or there are projectors alone"));
  }
  const ForeignFormat format = ForeignFormatOf(files, repo.repo);
  return absl::NotFoundError(absl::StrCat(
      "hf:", repo.repo, " has no GGUF file",
      format.names.empty() ? "" : absl::StrCat(", but ", format.text()), "; ",
      in_gguf.empty() ? absl::StrCat("look for one of this model: strata models search ",
                                     repo.repo.substr(repo.repo.find('/') + 1))
                      : absl::StrCat("in GGUF it is ",
                                     absl::StrJoin(in_gguf, ", ",
                                                   [](std::string* out, const HubModel& model) {
                                                     absl::StrAppend(out, "hf:", model.repo);
                                                   })),
      "; or ", ConversionText(format, "FOLDER")));
}

HubClient::HubClient(HubOptions options)
    : options_(std::move(options)), http_(options_.cancelled) {}

absl::StatusOr<WebAnswer> HubClient::Get(const WebRequest& request, const ModelSource& source) {
  WebAnswer answer;
  absl::Status status =
      Retry({.first = options_.retry_first,
             .attempts_max = kApiAttemptsMax,
             .cancelled = options_.cancelled,
             .note = options_.note},
            [&] {
              auto fetched = http_.Fetch(request, kAnswerBytesMax);
              if (!fetched.ok()) return fetched.status();
              answer = *std::move(fetched);
              return answer.status == 200 ? absl::OkStatus() : HubError(answer, options_, source);
            });
  if (!status.ok()) return status;
  return answer;
}

absl::StatusOr<HubRepo> HubClient::ListRepository(const ModelSource& source) {
  const auto answer =
      Get({.url = absl::StrCat(options_.hf_endpoint, "/api/models/", source.repo, "/revision/",
                               Escape(source.revision, /*with_slashes=*/false), "?blobs=true"),
           .bearer = options_.hf_token},
          source);
  if (!answer.ok()) return answer.status();
  const Json json = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  HubRepo repo = {.repo = TextOf(json, "id"), .revision = TextOf(json, "sha")};
  const auto siblings = json.is_object() ? json.find("siblings") : json.end();
  // Both become parts of paths.
  const auto named = ParseModelSource(absl::StrCat("hf:", repo.repo));
  if (!named.ok() || repo.revision.empty() || repo.revision.size() > kSha256Digits ||
      !absl::c_all_of(repo.revision, absl::ascii_isxdigit) || siblings == json.end() ||
      !siblings->is_array()) {
    return NotItsAnswer(*answer);
  }
  for (const Json& sibling : *siblings) {
    HubFile file = {.name = TextOf(sibling, "rfilename"), .bytes = NumberOf(sibling, "size")};
    if (const auto lfs = sibling.is_object() ? sibling.find("lfs") : sibling.end();
        lfs != sibling.end() && lfs->is_object()) {
      file.sha256 = Sha256Of(TextOf(*lfs, "sha256"));
      if (file.bytes == 0) file.bytes = NumberOf(*lfs, "size");
    }
    // A name that could lead out of a folder is nobody's file.
    if (file.name.empty() || file.name[0] == '/' || absl::StrContains(file.name, "..") ||
        absl::StrContains(file.name, '\\') || absl::c_any_of(file.name, absl::ascii_iscntrl)) {
      continue;
    }
    repo.files.push_back(std::move(file));
  }
  if (const auto tags = json.find("tags"); tags != json.end() && tags->is_array()) {
    for (const Json& tag : *tags) {
      const std::string text = tag.is_string() ? tag.get<std::string>() : "";
      absl::string_view from = text;
      if (absl::ConsumePrefix(&from, kQuantizedFrom) && IsRepository(from)) {
        repo.made_from.emplace_back(from);
      }
    }
  }
  if (!absl::EqualsIgnoreCase(repo.repo, source.repo)) {
    options_.note(absl::StrCat(source.repo, " is ", repo.repo, " today"));
  }
  return repo;
}

absl::StatusOr<std::vector<HubModel>> HubClient::FindModels(const std::string& query,
                                                            size_t count_max) {
  const std::string url =
      absl::StrCat(options_.hf_endpoint, "/api/models?", query,
                   "&filter=gguf&sort=downloads&direction=-1&limit=", count_max);
  const auto answer =
      Get({.url = url, .bearer = options_.hf_token}, {.kind = ModelSource::Kind::kUrl, .url = url});
  if (!answer.ok()) return answer.status();
  const Json json = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return NotItsAnswer(*answer);
  std::vector<HubModel> models;
  for (const Json& each : json) {
    const std::string repo = TextOf(each, "id");
    if (!IsRepository(repo) || models.size() == count_max) continue;
    // "auto", "manual", or false.
    const auto gated = each.find("gated");
    models.push_back({.repo = repo,
                      .downloads = NumberOf(each, "downloads"),
                      .is_gated = gated != each.end() && gated->is_string()});
  }
  return models;
}

absl::StatusOr<std::vector<HubModel>> HubClient::Search(absl::string_view words, size_t count_max) {
  return FindModels("search=" + Escape(words, /*with_slashes=*/false), count_max);
}

absl::StatusOr<std::vector<HubModel>> HubClient::FindGgufOf(const HubRepo& from, size_t count_max) {
  const std::string& made_from = from.made_from.empty() ? from.repo : from.made_from[0];
  return FindModels(absl::StrCat("filter=", Escape(absl::StrCat(kQuantizedFrom, made_from),
                                                   /*with_slashes=*/false)),
                    count_max);
}

absl::StatusOr<HubRepo> HubClient::ListOllama(const ModelSource& source) {
  const auto answer =
      Get({.url = absl::StrCat(options_.ollama_registry, "/v2/", source.repo, "/manifests/",
                               source.tag),
           .headers = {{"Accept", "application/vnd.docker.distribution.manifest.v2+json"}}},
          source);
  if (!answer.ok()) return answer.status();
  const Json json = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  const auto layers = json.is_object() ? json.find("layers") : json.end();
  if (layers == json.end() || !layers->is_array()) return NotItsAnswer(*answer);
  for (const Json& layer : *layers) {
    if (TextOf(layer, "mediaType") != kOllamaModelLayer) continue;
    std::string digest = TextOf(layer, "digest");
    const std::string sha256 = Sha256Of(absl::StripPrefix(digest, "sha256:"));
    if (sha256.empty()) return NotItsAnswer(*answer);
    return HubRepo{
        .repo = source.repo,
        .revision = sha256,
        .files = {
            {.name = source.tag + ".gguf", .bytes = NumberOf(layer, "size"), .sha256 = sha256}}};
  }
  return absl::NotFoundError(absl::StrCat(
      source.Name(), " has no layer with a model: one that runs at Ollama's own servers has none"));
}

WebRequest HubClient::FileRequest(const ModelSource& source, const HubRepo& repo,
                                  const HubFile& file) const {
  switch (source.kind) {
    case ModelSource::Kind::kUrl:
      return {.url = source.url};
    case ModelSource::Kind::kOllama:
      return {.url = absl::StrCat(options_.ollama_registry, "/v2/", repo.repo,
                                  "/blobs/sha256:", file.sha256)};
    case ModelSource::Kind::kHuggingFace:
      break;
  }
  return {.url = absl::StrCat(options_.hf_endpoint, "/", repo.repo, "/resolve/", repo.revision, "/",
                              Escape(file.name, /*with_slashes=*/true)),
          .bearer = options_.hf_token};
}

}  // namespace strata
