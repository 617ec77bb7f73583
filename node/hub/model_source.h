// A model by its name: what a person types for a model that lies on the network. Pure; any thread.
//
//   hf:org/repo[:quant], hf.co/org/repo…, https://huggingface.co/org/repo[/resolve/REV/FILE]
//   org/repo[:quant], org/repo/file.gguf        where no such file is here
//   ollama:name[:tag]
//   https://host/…/file.gguf
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

inline constexpr size_t kModelNameBytesMax = 2048;
// The type of a model's file in a manifest of Ollama's.
inline constexpr absl::string_view kOllamaModelLayer = "application/vnd.ollama.image.model";

struct ModelSource {
  enum class Kind { kHuggingFace, kOllama, kUrl };
  Kind kind = Kind::kHuggingFace;
  std::string repo;            // kHuggingFace: "org/repo"; kOllama: "library/name"
  std::string revision;        // kHuggingFace: branch, tag or commit
  std::string file;            // kHuggingFace: path in the repository; empty: chosen by `quant`
  std::string quant;           // kHuggingFace; empty: chosen
  std::string tag;             // kOllama
  std::string url;             // kUrl
  bool may_be_a_path = false;  // it has no prefix: a mistyped path looks the same

  // The name in its shortest form with a prefix, as messages and lists show it.
  std::string Name() const;
};

// kNotFound: `name` is none of these, but may be a path or the name of a loaded model.
// kInvalidArgument: it has a prefix, and what follows cannot be; the message says why.
absl::StatusOr<ModelSource> ParseModelSource(absl::string_view name);

}  // namespace strata
