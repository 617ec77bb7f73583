#include "node/cli/install_script.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "transport/base/own_program.h"

namespace strata {
namespace {

absl::Status BecomeInstaller(const std::vector<std::string>& options) {
  const std::string& bundle = BundleFolder();
  const std::string script = (std::filesystem::path(bundle).parent_path() / "install.sh").string();
  std::error_code error;
  if (bundle.empty() || !std::filesystem::exists(script, error)) {
    return absl::FailedPreconditionError(
        "the installer (install.sh) did not install this program: it is updated and removed by "
        "what did, a package manager or the clone that it was built in");
  }
  std::vector<char*> args = {const_cast<char*>("sh"), const_cast<char*>(script.c_str())};
  for (const std::string& option : options) args.push_back(const_cast<char*>(option.c_str()));
  args.push_back(nullptr);
  execv("/bin/sh", args.data());
  return absl::UnknownError(absl::StrCat("/bin/sh cannot be run: ", std::strerror(errno)));
}

}  // namespace

absl::Status RunSelfUpdate(const SelfUpdateOptions& options) {
  return BecomeInstaller({options.check ? "--check" : "--update"});
}

absl::Status RunUninstall(const UninstallOptions& options) {
  std::vector<std::string> words = {"--uninstall"};
  if (options.purge) words.push_back("--purge");
  if (options.yes) words.push_back("--yes");
  return BecomeInstaller(words);
}

}  // namespace strata
