#include "transport/base/own_program.h"

#ifdef __APPLE__
#include <mach-o/dyld.h>

#include <cstdint>
#include <cstring>
#else
#include <link.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#endif

#include <algorithm>

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

std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> paths;
  for (uint32_t i = 1; i < _dyld_image_count(); ++i) paths.push_back(_dyld_get_image_name(i));
  std::sort(paths.begin(), paths.end());
  return paths;
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
    const bool is_bundle = !error && absl::StartsWith(executable.filename().string(), "ld-linux") &&
                           std::filesystem::exists(executable.parent_path() / "strata", error);
    return new std::string(is_bundle ? executable.parent_path().parent_path().string() : "");
  }();
  return *kFolder;
}

std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        // Neither the program itself nor the kernel's linux-vdso.so.1 has a path.
        if (info->dlpi_name[0] == '/') {
          static_cast<std::vector<std::string>*>(to)->push_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  std::sort(paths.begin(), paths.end());
  return paths;
}

#endif
}  // namespace strata
