// Asks the model hubs about a model: Hugging Face's API and Ollama's registry. Blocks; one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "node/hub/model_source.h"
#include "node/hub/quant_choice.h"
#include "transport/http/http_get.h"

namespace strata {

struct HubOptions {
  std::string hf_endpoint = "https://huggingface.co";
  std::string ollama_registry = "https://registry.ollama.ai";
  std::string hf_token;  // for hf_endpoint alone; empty: none
  absl::Duration retry_first = absl::Milliseconds(500);
  std::function<bool()> cancelled = [] { return false; };
  std::function<void(const std::string& note)> note = [](const std::string&) {};
};

// As the variables say that Hugging Face's own programs read: HF_ENDPOINT; HF_TOKEN,
// HUGGING_FACE_HUB_TOKEN, or the file HF_TOKEN_PATH, HF_HOME/token, ~/.cache/huggingface/token.
// OLLAMA_REGISTRY is that of Ollama's.
HubOptions HubOptionsFromEnvironment();
// Whether Hugging Face's own variable forbids asking it.
bool IsOfflineByVariable();
// The token for an address; empty: there is none, or it is not for that host.
std::string TokenFor(const HubOptions& options, absl::string_view url);

struct HubRepo {
  std::string repo;      // as it is named today: a renamed one is found by its old name
  std::string revision;  // a commit, which pins the files
  std::vector<HubFile> files;
  std::vector<std::string> made_from;  // the repositories that it was quantized from, as it says
};

// A repository that a search finds.
struct HubModel {
  std::string repo;
  uint64_t downloads = 0;  // of the last thirty days
  bool is_gated = false;   // its makers want their licence accepted first
};

class HubClient {
 public:
  explicit HubClient(HubOptions options);

  // The files of a repository. kNotFound, kPermissionDenied: what to do is in the message;
  // kUnavailable: the hub does not answer, also after some attempts.
  absl::StatusOr<HubRepo> ListRepository(const ModelSource& source);
  // The model of a name of Ollama's, as the one file of a repository, named by its digest.
  absl::StatusOr<HubRepo> ListOllama(const ModelSource& source);

  // Repositories with GGUF files that the hub finds by `words`, the most fetched first, at most
  // `count_max`. Errors of ListRepository().
  absl::StatusOr<std::vector<HubModel>> Search(absl::string_view words, size_t count_max);
  // Those that say that they were quantized from the repository `from`, or from what that was
  // quantized from.
  absl::StatusOr<std::vector<HubModel>> FindGgufOf(const HubRepo& from, size_t count_max);

  // Where a file of a repository is fetched.
  WebRequest FileRequest(const ModelSource& source, const HubRepo& repo, const HubFile& file) const;

  const HubOptions& options() const { return options_; }

 private:
  absl::StatusOr<WebAnswer> Get(const WebRequest& request, const ModelSource& source);
  absl::StatusOr<std::vector<HubModel>> FindModels(const std::string& query, size_t count_max);

  const HubOptions options_;
  WebGetter http_;
};

// The error of an answer that is no success: what to do about it is in the message. kUnavailable
// has the time that the server asks to wait (BackOff()).
absl::Status HubError(const WebAnswer& answer, const HubOptions& options,
                      const ModelSource& source);

// Why a repository without GGUF has no model to load, and how to convert what it has, or which
// repositories have the same model in GGUF.
absl::Status NoGgufError(const HubRepo& repo, absl::Span<const HubModel> in_gguf);

}  // namespace strata
