#include "node/demo/demo_model.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "transport/base/own_program.h"

namespace strata {

absl::StatusOr<std::string> DemoModelPath() {
  std::vector<std::string> paths;
  if (const char* named = std::getenv("STRATA_DEMO_MODEL"); named != nullptr && *named != '\0') {
    paths.push_back(named);
  }
  std::error_code error;
  const auto program = std::filesystem::canonical(OwnProgram(), error);
  if (!error) {
    paths.push_back(program.parent_path().parent_path() / "share/strata/strata-demo.gguf");
  }
  paths.push_back(STRATA_SOURCE_DIR "/models/strata-demo.gguf");
  for (const std::string& path : paths) {
    if (std::filesystem::exists(path, error)) return path;
  }
  return absl::NotFoundError(absl::StrCat("the demo model was not found (looked at ",
                                          absl::StrJoin(paths, ", "),
                                          "); name a model with --model FILE"));
}

}  // namespace strata
