#include "node/hub/local_models.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "node/hub/catalogue.h"
#include "node/hub/part_file.h"
#include "shard/model/gguf.h"
#include "shard/model/gguf_bytes.h"
#include "transport/base/environment.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kFilesMax = 100'000;  // of one folder: a link to / ends somewhere
constexpr int kDepthMax = 6;

bool IsGguf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic(kGgufMagic.size(), '\0');
  file.read(magic.data(), static_cast<std::streamsize>(magic.size()));
  return file && magic == kGgufMagic;
}

// The entries of a folder, by name; empty where it cannot be read.
std::vector<fs::path> EntriesOf(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
    if (entries.size() == kFilesMax) break;
  }
  absl::c_sort(entries);
  return entries;
}
std::vector<fs::path> FoldersIn(const fs::path& folder) {
  std::vector<fs::path> folders;
  for (fs::path& entry : EntriesOf(folder)) {
    std::error_code error;
    if (fs::is_directory(entry, error)) folders.push_back(std::move(entry));
  }
  return folders;
}

// Plain files in a folder and below, until `take` has taken kFilesMax of them.
void VisitFilesBelow(const fs::path& root, absl::FunctionRef<bool(const fs::path&)> take) {
  std::error_code error;
  size_t files = 0;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (it.depth() >= kDepthMax) it.disable_recursion_pending();
    std::error_code not_there;
    if (!fs::is_regular_file(it->path(), not_there)) continue;
    if (take(it->path()) && ++files == kFilesMax) break;
  }
}

// GGUF files in a folder and below, their names relative to it.
std::vector<HubFile> FilesBelow(const fs::path& root) {
  std::vector<HubFile> files;
  VisitFilesBelow(root, [&](const fs::path& path) {
    if (!absl::EndsWithIgnoreCase(path.string(), ".gguf") || !IsGguf(path)) return false;
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error) return false;
    files.push_back({.name = path.lexically_relative(root).string(), .bytes = bytes});
    return true;
  });
  return files;
}

std::string OllamaName(absl::string_view repo, absl::string_view tag) {
  return absl::StrCat("ollama:", absl::StripPrefix(repo, "library/"), ":", tag);
}

// Of a variant in a folder of a repository's files; `of_folder` has what all in it share.
LocalModel ModelIn(const fs::path& folder, LocalModel of_folder, ModelVariant variant) {
  LocalModel model = std::move(of_folder);
  const std::string stem = fs::path(variant.parts[0].name).stem().string();
  model.path = (folder / variant.parts[0].name).string();
  if (model.is_ollama) {
    model.revision = stem;
    model.name = OllamaName(model.repo, stem);
    variant.quant = QuantOf(stem);
  } else {
    model.name = model.repo.empty() ? stem : absl::StrCat("hf:", model.repo, ":", variant.quant);
  }
  model.variant = std::move(variant);
  return model;
}

class Finder {
 public:
  // The models in a folder of a repository's files.
  void AddFolder(const fs::path& folder, const LocalModel& of_folder) {
    for (ModelVariant& variant : VariantsOf(FilesBelow(folder))) {
      Add(ModelIn(folder, of_folder, std::move(variant)));
    }
  }
  void Add(const LocalModel& model) {
    std::error_code error;
    const fs::path real = fs::canonical(model.path, error);
    if (error || !seen_.insert(real.string()).second) return;
    found_.push_back(model);
    found_.back().path = fs::absolute(model.path, error).string();
  }
  std::vector<LocalModel> Take() { return std::move(found_); }

 private:
  std::vector<LocalModel> found_;
  std::set<std::string> seen_;
};

// Folders of files and what all in them share: huggingface.co/ORG/REPO/COMMIT/FILE,
// registry.ollama.ai/USER/NAME/DIGEST/TAG.gguf, and HOST/…/FILE of plain addresses.
void VisitFoldersOfStrata(const fs::path& root,
                          absl::FunctionRef<void(const fs::path&, const LocalModel&)> visit) {
  for (const fs::path& host : FoldersIn(root)) {
    const bool is_ollama = host.filename() == kOllamaFolder;
    if (!is_ollama && host.filename() != kHuggingFaceFolder) {
      visit(host, {.place = "Strata"});
      continue;
    }
    for (const fs::path& org : FoldersIn(host)) {
      for (const fs::path& repo : FoldersIn(org)) {
        for (const fs::path& content : FoldersIn(repo)) {
          visit(content,
                {.repo = absl::StrCat(org.filename().string(), "/", repo.filename().string()),
                 .revision = content.filename().string(),
                 .is_ollama = is_ollama,
                 .place = "Strata"});
        }
      }
    }
  }
}

// models--ORG--REPO/snapshots/COMMIT/FILE; the commit of refs/main first.
void FindOfHuggingFace(const fs::path& root, Finder* finder) {
  for (const fs::path& folder : FoldersIn(root)) {
    std::string name = folder.filename().string();
    if (!absl::StartsWith(name, "models--")) continue;
    name = absl::StrReplaceAll(name.substr(8), {{"--", "/"}});
    std::string main;
    std::ifstream(folder / "refs" / "main") >> main;
    std::vector<fs::path> commits = FoldersIn(folder / "snapshots");
    std::stable_partition(commits.begin(), commits.end(),
                          [&](const fs::path& commit) { return commit.filename() == main; });
    for (const fs::path& commit : commits) {
      finder->AddFolder(
          commit, {.repo = name, .revision = commit.filename().string(), .place = "Hugging Face"});
    }
  }
}

// manifests/HOST/NAMESPACE/NAME/TAG names a blob, which has no .gguf in its name.
void FindOfOllama(const fs::path& root, Finder* finder) {
  for (const fs::path& host : FoldersIn(root / "manifests")) {
    for (const fs::path& space : FoldersIn(host)) {
      for (const fs::path& model : FoldersIn(space)) {
        for (const fs::path& tag : EntriesOf(model)) {
          std::ifstream in(tag, std::ios::binary);
          const Json json =
              Json::parse(std::string(std::istreambuf_iterator<char>(in), {}), nullptr, false);
          for (const Json& layer : json.is_object() ? json.value("layers", Json()) : Json()) {
            if (!layer.is_object() || layer.value("mediaType", Json()) != kOllamaModelLayer)
              continue;
            const Json digest = layer.value("digest", Json());
            if (!digest.is_string()) continue;
            const std::string blob = absl::StrReplaceAll(digest.get<std::string>(), {{":", "-"}});
            const fs::path path = root / "blobs" / blob;
            std::error_code error;
            const auto bytes = fs::file_size(path, error);
            if (error || absl::StrContains(blob, '/') || !IsGguf(path)) continue;
            const std::string repo =
                absl::StrCat(space.filename().string(), "/", model.filename().string());
            const std::string tag_name = tag.filename().string();
            const std::string quant = QuantOf(tag_name);
            finder->Add({.name = OllamaName(repo, tag_name),
                         .repo = repo,
                         .revision = tag_name,
                         .is_ollama = true,
                         .variant = {.quant = quant,
                                     .parts = {{.name = tag_name, .bytes = bytes}},
                                     .bytes = bytes},
                         .path = path.string(),
                         .place = "Ollama"});
          }
        }
      }
    }
  }
}

// ORG/REPO/FILE.
void FindOfLmStudio(const fs::path& root, Finder* finder) {
  for (const fs::path& org : FoldersIn(root)) {
    for (const fs::path& repo : FoldersIn(org)) {
      finder->AddFolder(
          repo, {.repo = absl::StrCat(org.filename().string(), "/", repo.filename().string()),
                 .place = "LM Studio"});
    }
  }
}

}  // namespace

ModelFolders ModelFoldersFromEnvironment() {
  const std::string home = EnvironmentVariable("HOME");
  std::string cache = EnvironmentVariable("XDG_CACHE_HOME");
  if (cache.empty() || cache[0] != '/') cache = home.empty() ? "" : home + "/.cache";
  ModelFolders folders;
  if (!cache.empty()) {
    folders.strata = cache + "/strata/models";
    folders.hugging_face = cache + "/huggingface/hub";
#ifdef __APPLE__
    folders.llama_cpp = home + "/Library/Caches/llama.cpp";
#else
    folders.llama_cpp = cache + "/llama.cpp";
#endif
  }
  if (!home.empty()) {
    folders.ollama = home + "/.ollama/models";
    std::error_code error;
    folders.lm_studio = home + "/.lmstudio/models";
    if (!fs::exists(folders.lm_studio, error))
      folders.lm_studio = home + "/.cache/lm-studio/models";
  }
  if (const std::string hf = EnvironmentVariable("HF_HOME"); !hf.empty())
    folders.hugging_face = hf + "/hub";
  for (const auto& [variable, folder] : {std::pair("HF_HUB_CACHE", &folders.hugging_face),
                                         std::pair("OLLAMA_MODELS", &folders.ollama),
                                         std::pair("LLAMA_CACHE", &folders.llama_cpp)}) {
    if (std::string value = EnvironmentVariable(variable); !value.empty())
      *folder = std::move(value);
  }
  return folders;
}

std::vector<LocalModel> FindLocalModels(const ModelFolders& folders) {
  Finder finder;
  if (!folders.strata.empty()) {
    VisitFoldersOfStrata(folders.strata, [&](const fs::path& folder, const LocalModel& of_folder) {
      finder.AddFolder(folder, of_folder);
    });
  }
  if (!folders.hugging_face.empty()) FindOfHuggingFace(folders.hugging_face, &finder);
  if (!folders.ollama.empty()) FindOfOllama(folders.ollama, &finder);
  if (!folders.lm_studio.empty()) FindOfLmStudio(folders.lm_studio, &finder);
  if (!folders.llama_cpp.empty()) finder.AddFolder(folders.llama_cpp, {.place = "llama.cpp"});
  for (const std::string& folder : folders.others) finder.AddFolder(folder, {.place = folder});
  return finder.Take();
}

std::vector<std::string> FilesOf(const LocalModel& model) {
  // Parts are named relative to one folder, which the first one's path ends the name of.
  const std::string& first = model.variant.parts[0].name;
  std::vector<std::string> files;
  for (const HubFile& part : model.variant.parts) {
    files.push_back(absl::StrCat(absl::StripSuffix(model.path, first), part.name));
  }
  return files;
}

std::vector<UnfinishedModel> FindUnfinishedModels(const ModelFolders& folders) {
  std::vector<UnfinishedModel> unfinished;
  if (folders.strata.empty()) return unfinished;
  VisitFoldersOfStrata(folders.strata, [&](const fs::path& folder, const LocalModel& of_folder) {
    std::set<std::string> begun;  // by their names once they are whole
    VisitFilesBelow(folder, [&](const fs::path& path) {
      std::string name = path.lexically_relative(folder).string();
      for (const std::string& tail : PartFilesOf("")) {
        if (absl::EndsWith(name, tail)) name.resize(name.size() - tail.size());
      }
      return absl::EndsWithIgnoreCase(name, ".gguf") && begun.insert(std::move(name)).second;
    });
    std::vector<HubFile> files;
    for (const std::string& name : begun) files.push_back({.name = name});
    for (ModelVariant& variant : VariantsOf(files, /*with_lacking=*/true)) {
      bool is_whole = !VariantsOf(variant.parts).empty(), is_known = is_whole;
      UnfinishedModel model;
      for (HubFile& part : variant.parts) {
        const fs::path path = folder / part.name;
        std::error_code error;
        if (fs::exists(path, error)) {
          part.bytes = fs::file_size(path, error);
          model.bytes_here += part.bytes;
          continue;
        }
        is_whole = false;
        const PartProgress progress = ProgressOfPart(path.string());
        part.bytes = progress.bytes;
        model.bytes_here += progress.bytes_here;
        model.is_running = model.is_running || progress.is_running;
        is_known = is_known && progress.bytes > 0;
      }
      if (is_whole) continue;
      variant.bytes = 0;
      for (const HubFile& part : variant.parts) variant.bytes += is_known ? part.bytes : 0;
      model.model = ModelIn(folder, of_folder, std::move(variant));
      unfinished.push_back(std::move(model));
    }
  });
  return unfinished;
}

absl::StatusOr<LocalModel> ChooseLocalModel(absl::Span<const LocalModel> models,
                                            const ModelSource& source,
                                            std::optional<uint64_t> bytes_max) {
  const bool is_ollama = source.kind == ModelSource::Kind::kOllama;
  std::vector<LocalModel> candidates;
  std::vector<ModelVariant> variants;
  for (const LocalModel& model : models) {
    if (source.kind == ModelSource::Kind::kUrl || model.is_ollama != is_ollama) continue;
    LocalModel candidate = model;
    if (model.place == "llama.cpp") {
      // Its files are ORG_REPO_FILE in one folder.
      const std::string prefix = absl::StrReplaceAll(source.repo, {{"/", "_"}}) + "_";
      bool is_of_repo = true;
      for (HubFile& part : candidate.variant.parts) {
        is_of_repo = is_of_repo && absl::StartsWith(part.name, prefix);
        part.name = std::string(absl::StripPrefix(part.name, prefix));
      }
      if (!is_of_repo) continue;
    } else if (!absl::EqualsIgnoreCase(model.repo, source.repo)) {
      continue;
    }
    if (is_ollama ? model.revision != source.tag
                  : source.revision != "main" && model.revision != source.revision) {
      continue;
    }
    // The same file in two programs' folders.
    if (absl::c_any_of(variants, [&](const ModelVariant& other) {
          return other.parts[0].name == candidate.variant.parts[0].name;
        })) {
      continue;
    }
    variants.push_back(candidate.variant);
    candidates.push_back(std::move(candidate));
  }
  if (variants.empty()) return absl::NotFoundError(absl::StrCat(source.Name(), " is not here"));
  std::vector<ModelVariant> by_size = variants;
  absl::c_stable_sort(
      by_size, [](const ModelVariant& a, const ModelVariant& b) { return a.bytes < b.bytes; });
  const auto choice = ChooseQuant(by_size, source.quant, source.file, bytes_max);
  if (!choice.ok()) return absl::NotFoundError(choice.status().message());
  for (size_t i = 0; i < variants.size(); ++i) {
    if (variants[i].parts[0].name == choice->variant.parts[0].name) return candidates[i];
  }
  return absl::InternalError("a chosen model is not among those found");
}

absl::StatusOr<LocalModel> FindLocalModel(absl::Span<const LocalModel> models,
                                          absl::string_view name) {
  std::vector<const LocalModel*> found;
  for (const LocalModel& model : models) {
    if (model.path == name) return model;
    if (absl::EqualsIgnoreCase(model.name, name)) found.push_back(&model);
  }
  // The same model in two programs' folders.
  if (!found.empty() && absl::c_all_of(found, [&](const LocalModel* model) {
        return model->variant.bytes == found[0]->variant.bytes;
      })) {
    return *found[0];
  }
  if (!found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(PrintableText::From(name).str(), " may be any of ",
                     absl::StrJoin(found, ", ",
                                   [](std::string* out, const LocalModel* model) {
                                     absl::StrAppend(out, PrintableText::OfPath(model->path).str());
                                   }),
                     ": name one of these files"));
  }
  const auto source = ParseModelSource(CatalogueSource(name).value_or(std::string(name)));
  if (!source.ok()) return source.status();
  return ChooseLocalModel(models, *source, std::nullopt);
}

bool IsModelFile(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) && !fs::is_directory(path, error);
}

std::string ModelPathOf(const std::string& model) {
  if (!IsModelFile(model)) return model;
  std::error_code error;
  const std::string path = fs::absolute(model, error).string();
  return error ? model : path;
}

uint64_t ContextOf(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file.is_open()) return 0;
  const auto header =
      ReadGgufHeader(bytes, [&](uint64_t offset, absl::Span<char> out) -> absl::StatusOr<size_t> {
        file.clear();
        file.seekg(static_cast<std::streamoff>(offset));
        file.read(out.data(), static_cast<std::streamsize>(out.size()));
        if (file.bad()) return absl::UnavailableError(path);
        return static_cast<size_t>(file.gcount());
      });
  if (!header.ok()) return 0;
  const std::string architecture = header->GetString("general.architecture").value_or("");
  return header->GetInteger(absl::StrCat(architecture, ".context_length")).value_or(0);
}

}  // namespace strata
