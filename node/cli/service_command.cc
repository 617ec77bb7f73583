#include "node/cli/service_command.h"

#include <grp.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "node/cli/node_config.h"
#include "node/cli/service_file.h"
#include "transport/base/own_program.h"
#include "transport/security/private_file.h"

extern char** environ;

namespace strata {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

// Runs a program of the PATH, with this one's streams, and waits for it.
absl::Status RunProgram(const Words& words) {
  std::vector<char*> args;
  for (const std::string& word : words) args.push_back(const_cast<char*>(word.c_str()));
  args.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = posix_spawnp(&pid, args[0], nullptr, nullptr, args.data(), environ);
      error != 0) {
    return absl::UnknownError(absl::StrCat(words[0], " cannot be run: ", strerror(error),
                                           "; a service needs ",
#ifdef __APPLE__
                                           "launchd"
#else
                                           "systemd"
#endif
                                           ));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::UnknownError(
      absl::StrCat("`", absl::StrJoin(words, " "), "` failed; what it says is above"));
}

// Every step; the first error ends it.
absl::Status RunPrograms(const std::vector<Words>& steps) {
  for (const Words& words : steps) {
    if (absl::Status status = RunProgram(words); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// A path of the running program that a newer version takes over: the one in the PATH that leads to
// it, else its own.
absl::StatusOr<std::string> LastingProgram() {
  std::error_code error;
  const fs::path own = fs::canonical(OwnProgram(), error);
  if (error) return absl::UnknownError(absl::StrCat("this program's file: ", error.message()));
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const fs::path here = fs::path(std::string(folder)) / "strata";
    if (here.is_absolute() && fs::canonical(here, error) == own && !error) return here.string();
  }
  return own.string();
}

absl::Status NoHome() {
  return absl::FailedPreconditionError("HOME is not set: it says where services are kept");
}

#ifdef __APPLE__

absl::StatusOr<fs::path> FileOf(const ServiceOptions& options) {
  if (options.is_system) return fs::path("/Library/LaunchDaemons/strata.node.plist");
  const char* const home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') return NoHome();
  return fs::path(home) / "Library/LaunchAgents/strata.node.plist";
}

std::string Domain(const ServiceOptions& options) {
  return options.is_system ? "system" : absl::StrCat("gui/", getuid());
}
std::string Target(const ServiceOptions& options) {
  return absl::StrCat(Domain(options), "/strata.node");
}

#else

absl::StatusOr<fs::path> FileOf(const ServiceOptions& options) {
  if (options.is_system) return fs::path("/etc/systemd/system/strata.service");
  const std::string folder = ConfigFolder();
  if (folder.empty()) return NoHome();
  return fs::path(folder) / "systemd/user/strata.service";
}

// systemctl of the manager that is meant.
Words Systemctl(const ServiceOptions& options, const Words& more) {
  Words words = {"systemctl"};
  if (!options.is_system) words.push_back("--user");
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Those of the groups that may use a GPU that this system has.
Words GpuGroups() {
  Words groups;
  for (const char* name : {"render", "video"}) {
    if (getgrnam(name) != nullptr) groups.push_back(name);
  }
  return groups;
}

#endif

// Everybody may read it.
absl::Status WriteServiceFile(const fs::path& path, const std::string& text) {
  absl::Status status = MakePrivateFolder(path.parent_path().string());
  if (status.ok()) status = WritePrivateFile(path.string(), text, PrivateFileMode::kReplace);
  if (status.ok() && chmod(path.c_str(), 0644) != 0) {
    status = absl::UnknownError(absl::StrCat(path.string(), ": ", strerror(errno)));
  }
  if (status.ok()) return status;
  return absl::UnknownError(
      absl::StrCat(status.message(), "; for a service of the system run it as root"));
}

// FileOf() where it is there.
absl::StatusOr<fs::path> InstalledFile(const ServiceOptions& options) {
  absl::StatusOr<fs::path> file = FileOf(options);
  std::error_code error;
  if (!file.ok() || fs::exists(*file, error)) return file;
  return absl::NotFoundError(
      absl::StrCat("there is no ", file->string(),
                   ": `strata service install` makes it (and --system says that the system's is "
                   "meant, not yours)"));
}

}  // namespace

absl::Status RunServiceInstall(const ServiceOptions& options) {
  if (std::getenv("STRATA_INSIDE") != nullptr) {
    return absl::FailedPreconditionError(
        "this program needs the libraries of the root that it was built in: make a bundle of it "
        "(scripts/package bundle), and install the service with that");
  }
  const absl::StatusOr<std::string> program = LastingProgram();
  if (!program.ok()) return program.status();
  const absl::StatusOr<fs::path> file = FileOf(options);
  if (!file.ok()) return file.status();
  ServiceSpec spec = {.program = *program,
                      .data_dir = options.data_dir,
                      .node_options = options.node_options,
                      .is_system = options.is_system};
#ifdef __APPLE__
  const std::string text = LaunchdPlist(spec);
  const std::vector<Words> steps = {{"launchctl", "bootstrap", Domain(options), file->string()}};
  std::error_code known;
  if (fs::exists(*file, known)) {
    // It may not run.
    (void)RunProgram({"launchctl", "bootout", Target(options)});
  }
#else
  spec.groups = GpuGroups();
  const std::string text = SystemdUnit(spec);
  std::vector<Words> steps = {Systemctl(options, {"daemon-reload"}),
                              Systemctl(options, {"enable", "strata.service"}),
                              Systemctl(options, {"restart", "strata.service"})};
  // Else a user's services end with the last session, and do not start with the machine.
  if (!options.is_system) steps.push_back({"loginctl", "enable-linger"});
#endif
  if (absl::Status status = WriteServiceFile(*file, text); !status.ok()) return status;
  if (absl::Status status = RunPrograms(steps); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), " (", file->string(), " is written)"));
  }
  const char* const which = options.is_system ? " --system" : "";
  absl::FPrintF(stderr,
                "The service is installed and runs: strata service status%s, strata service "
                "logs%s\n",
                which, which);
  return absl::OkStatus();
}

absl::Status RunServiceUninstall(const ServiceOptions& options) {
  const absl::StatusOr<fs::path> file = InstalledFile(options);
  if (!file.ok()) return file.status();
#ifdef __APPLE__
  (void)RunProgram({"launchctl", "bootout", Target(options)});
#else
  if (absl::Status status = RunProgram(Systemctl(options, {"disable", "--now", "strata.service"}));
      !status.ok()) {
    return status;
  }
#endif
  std::error_code error;
  if (!fs::remove(*file, error)) {
    return absl::UnknownError(
        absl::StrCat(file->string(), " cannot be removed: ", error.message()));
  }
#ifndef __APPLE__
  return RunProgram(Systemctl(options, {"daemon-reload"}));
#endif
  return absl::OkStatus();
}

absl::Status RunServiceStatus(const ServiceOptions& options) {
  const absl::StatusOr<fs::path> file = InstalledFile(options);
  std::error_code error;
  const bool is_packaged =
      options.is_system && fs::exists("/usr/lib/systemd/system/strata.service", error);
  if (!file.ok() && !is_packaged) return file.status();
#ifdef __APPLE__
  return RunProgram({"launchctl", "print", Target(options)});
#else
  return RunProgram(Systemctl(options, {"--no-pager", "--lines=0", "status", "strata.service"}));
#endif
}

absl::Status RunServiceLogs(const ServiceOptions& options) {
#ifdef __APPLE__
  (void)options;
  return RunProgram({"log", "show", "--last", "1h", "--predicate", "process == \"strata\""});
#else
  return RunProgram({"journalctl", options.is_system ? "--unit" : "--user-unit", "strata.service",
                     "--no-pager", "--lines=200"});
#endif
}

}  // namespace strata
