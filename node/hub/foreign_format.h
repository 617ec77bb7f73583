// Models that are not GGUF: which format they are in, and how they become GGUF. Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace strata {

struct ForeignFormat {
  std::vector<std::string>
      names;  // "safetensors", "AWQ"; empty: no format of models' that is known
  // It is quantized in a way of its own, so that the model that it was made from is what to
  // convert.
  bool is_quantized = false;

  // "safetensors, AWQ".
  std::string text() const;
};

// By the names of a model's files, and that of its repository or folder.
ForeignFormat ForeignFormatOf(absl::Span<const std::string> files, absl::string_view name);

// The command that converts a model in that format. `folder` is shown in it.
std::string ConversionText(const ForeignFormat& format, absl::string_view folder);

// Why a file or folder of this machine that somebody names as a model cannot be one, and how it
// becomes one; nullopt: it may be one, or nothing is known of it. Reads the folder, the first bytes
// of the file, and config.json. Blocks.
std::optional<std::string> WhyNoModel(const std::string& path);

}  // namespace strata
