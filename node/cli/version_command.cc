#include "node/cli/version_command.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/base/standard_output.h"
#include "shard/device/engine.h"
#include "transport/base/own_program.h"
#include "transport/base/version.h"

namespace strata {
namespace {

// libggml names its plug-ins libggml-cpu-haswell.so, libggml-vulkan.so.
bool IsPlugIn(const std::string& library) {
  const std::string name = std::filesystem::path(library).filename();
  return absl::StartsWith(name, "libggml-") && !absl::StartsWith(name, "libggml-base");
}

}  // namespace

std::string VersionText() {
  const wire::Versions& versions = LocalVersions();
  return absl::StrCat("strata ", versions.strata(), "\nprotocol ", versions.protocol(),
                      "\nlibllama ", versions.llama(), "\nlibggml ", versions.ggml());
}

absl::Status RunVersion(const VersionOptions& options) {
  if (!options.json) return WriteToStdout(absl::StrCat(VersionText(), "\n"));
  StartEngine();
  const wire::Versions& versions = LocalVersions();
  nlohmann::ordered_json json = {{"strata", versions.strata()},
                                 {"protocol", versions.protocol()},
                                 {"libllama", versions.llama()},
                                 {"libggml", versions.ggml()},
                                 {"bundle", BundleFolder()},
                                 {"libraries", nlohmann::ordered_json::array()},
                                 {"plugins", nlohmann::ordered_json::array()}};
  for (const std::string& library : LoadedLibraries()) {
    json[IsPlugIn(library) ? "plugins" : "libraries"].push_back(library);
  }
  return WriteToStdout(absl::StrCat(json.dump(2), "\n"));
}

}  // namespace strata
