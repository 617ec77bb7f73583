// Models that are on this machine already, wherever a program has put them: Hugging Face's cache,
// Ollama's blobs, the folders of LM Studio and llama.cpp, and Strata's own. Reads folders and
// blocks; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "node/hub/model_source.h"
#include "node/hub/quant_choice.h"

namespace strata {

// In ModelFolders::strata, where the files of these hubs are: HUB/ORG/REPO/CONTENT/FILE.
inline constexpr absl::string_view kHuggingFaceFolder = "huggingface.co";
inline constexpr absl::string_view kOllamaFolder = "registry.ollama.ai";

// Empty: that program has none here.
struct ModelFolders {
  std::string strata, hugging_face, ollama, lm_studio, llama_cpp;
  std::vector<std::string> others = {};  // that a person names
};
// As the variables say that these programs read: XDG_CACHE_HOME, HF_HUB_CACHE, HF_HOME,
// OLLAMA_MODELS, LLAMA_CACHE.
ModelFolders ModelFoldersFromEnvironment();

struct LocalModel {
  std::string name;      // as a person would name it
  std::string repo;      // as ModelSource::repo; empty: unknown
  std::string revision;  // of a repository: its commit; of Ollama's: the tag; empty: unknown
  bool is_ollama = false;
  ModelVariant variant;
  std::string path;                       // of its first file; absolute
  std::string place;                      // whose folder it is in: "Ollama"
  std::vector<std::string> aliases = {};  // those of SetAliases()
};

// Only what is whole and begins as a GGUF file does. A file that several folders link to is there
// once.
std::vector<LocalModel> FindLocalModels(const ModelFolders& folders);

// A model of Strata's own that was not fetched to its end, or is being fetched.
struct UnfinishedModel {
  LocalModel model;         // of the parts that have begun; bytes 0: unknown
  uint64_t bytes_here = 0;  // of all its files
  bool is_running = false;  // a process is fetching it
};
std::vector<UnfinishedModel> FindUnfinishedModels(const ModelFolders& folders);

// The files of a model, by their names once they are whole.
std::vector<std::string> FilesOf(const LocalModel& model);

// The one that `source` means, chosen as ChooseQuant() does. kNotFound: none is here.
absl::StatusOr<LocalModel> ChooseLocalModel(absl::Span<const LocalModel> models,
                                            const ModelSource& source,
                                            std::optional<uint64_t> bytes_max);

// The one that `name` means as people type it: its path, its name, or a name of a hub or of the
// catalogue that ChooseLocalModel() finds it by. kNotFound: none is here; kInvalidArgument: several
// have that name, which are listed, or errors of ParseModelSource().
absl::StatusOr<LocalModel> FindLocalModel(absl::Span<const LocalModel> models,
                                          absl::string_view name);

// Whether it is there. A folder that has a model's name is not the model.
bool IsModelFile(const std::string& path);
// The absolute path of a file on this machine; else `model` unchanged.
std::string ModelPathOf(const std::string& model);

// The longest context that the model was made for, by its file's header; 0: unknown. Reads a few
// MB.
uint64_t ContextOf(const std::string& path);

}  // namespace strata
