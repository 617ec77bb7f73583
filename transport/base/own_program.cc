#include "transport/base/own_program.h"

#ifdef __APPLE__
#include <mach-o/dyld.h>

#include <cstdint>
#include <cstring>
#else
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#endif

namespace strata {
#ifdef __APPLE__

std::string OwnProgram() {
  uint32_t size = 0;
  _NSGetExecutablePath(nullptr, &size);
  std::string path(size, '\0');
  _NSGetExecutablePath(path.data(), &size);
  path.resize(strlen(path.c_str()));
  return path;
}

const std::string& BundleFolder() {
  static const std::string* const kNone = new std::string;
  return *kNone;
}

#else

std::string OwnProgram() {
  const std::string& bundle = BundleFolder();
  return bundle.empty() ? "/proc/self/exe" : bundle + "/bin/strata";
}

const std::string& BundleFolder() {
  // The executable of a process that a bundle's bin/strata started is the bundle's loader.
  static const std::string* const kFolder = [] {
    std::error_code error;
    const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
    const bool is_loader = !error && absl::StartsWith(executable.filename().string(), "ld-linux");
    return new std::string(is_loader ? executable.parent_path().parent_path().string() : "");
  }();
  return *kFolder;
}

#endif
}  // namespace strata
