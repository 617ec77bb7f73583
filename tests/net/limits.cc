#include "tests/net/limits.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace strata {
namespace {

constexpr char kMounts[] = "/sys/fs/cgroup";

absl::Status Write(const std::string& path, const std::string& value) {
  std::ofstream file(path);
  file << value << std::flush;
  if (file) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, " cannot be set to ", value));
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// The figure after `name`, or the only one.
uint64_t ReadFigure(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  if (name.empty()) {
    file >> value;
    return value;
  }
  while (file >> word >> value) {
    if (word == name) return value;
  }
  return 0;
}

bool IsVersion2() { return std::filesystem::exists(absl::StrCat(kMounts, "/cgroup.controllers")); }

}  // namespace

absl::StatusOr<std::unique_ptr<Limits>> Limits::Make(const Options& options) {
  std::unique_ptr<Limits> limits(new Limits());
  const std::string name = absl::StrCat("strata-test-", getpid(), "-", options.name);
  // A group of its own below the root group.
  const auto folder = [&](const char* controller) -> absl::StatusOr<std::string> {
    std::string path = IsVersion2() ? absl::StrCat(kMounts, "/", name)
                                    : absl::StrCat(kMounts, "/", controller, "/", name);
    if (mkdir(path.c_str(), 0755) == 0) {
      limits->folders_.push_back(path);
    } else if (errno != EEXIST) {
      return absl::PermissionDeniedError(
          absl::StrCat("control groups are not allowed: ", path, ": ", strerror(errno)));
    }
    return path;
  };
  if (IsVersion2()) {
    const std::string enable = absl::StrCat(kMounts, "/cgroup.subtree_control");
    for (const char* controller : {"+cpu", "+cpuset", "+memory"}) {
      if (absl::Status status = Write(enable, controller); !status.ok()) return status;
    }
  }
  if (options.memory_bytes > 0) {
    auto path = folder("memory");
    if (!path.ok()) return path.status();
    limits->memory_folder_ = *path;
    const char* file = IsVersion2() ? "/memory.max" : "/memory.limit_in_bytes";
    if (auto s = Write(*path + file, absl::StrCat(options.memory_bytes)); !s.ok()) return s;
  }
  if (options.cpu_cores > 0) {
    auto path = folder("cpu");
    if (!path.ok()) return path.status();
    const int64_t quota_us = absl::ToInt64Microseconds(options.cpu_period * options.cpu_cores);
    const int64_t period_us = absl::ToInt64Microseconds(options.cpu_period);
    if (IsVersion2()) {
      if (auto s = Write(*path + "/cpu.max", absl::StrCat(quota_us, " ", period_us)); !s.ok()) {
        return s;
      }
    } else {
      for (const auto& [file, value] :
           {std::pair("/cpu.cfs_period_us", period_us), std::pair("/cpu.cfs_quota_us", quota_us)}) {
        if (auto s = Write(*path + file, absl::StrCat(value)); !s.ok()) return s;
      }
    }
  }
  if (!options.cpus.empty()) {
    auto path = folder("cpuset");
    if (!path.ok()) return path.status();
    if (!IsVersion2()) {  // has no memory nodes of its own until they are set
      const std::string nodes = Read(absl::StrCat(kMounts, "/cpuset/cpuset.mems"));
      if (auto s = Write(*path + "/cpuset.mems", nodes); !s.ok()) return s;
    }
    if (auto s = Write(*path + "/cpuset.cpus", options.cpus); !s.ok()) return s;
  }
  return limits;
}

Limits::~Limits() {
  for (const std::string& folder : folders_) {
    // A process that was killed leaves a moment later.
    const absl::Time until = absl::Now() + absl::Seconds(5);
    while (rmdir(folder.c_str()) != 0 && errno == EBUSY && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
}

std::vector<std::string> Limits::Inside(std::vector<std::string> args) const {
  std::string script;
  for (const std::string& folder : folders_) {
    absl::StrAppend(&script, "echo $$ >", folder, "/cgroup.procs && ");
  }
  args.insert(args.begin(), {"/bin/sh", "-c", script + "exec \"$@\"", "sh"});
  return args;
}

uint64_t Limits::PeakMemoryBytes() const {
  return ReadFigure(memory_folder_ + (IsVersion2() ? "/memory.peak" : "/memory.max_usage_in_bytes"),
                    "");
}

uint64_t Limits::OutOfMemoryKills() const {
  return ReadFigure(memory_folder_ + (IsVersion2() ? "/memory.events" : "/memory.oom_control"),
                    "oom_kill");
}

absl::Status CanMakeLimits() {
  return Limits::Make(
             {.name = "try", .cpu_cores = 0.5, .cpus = "0", .memory_bytes = uint64_t{64} << 20})
      .status();
}

}  // namespace strata
