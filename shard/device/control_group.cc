#include "shard/device/control_group.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace strata {
namespace {

// Version 1 writes "no limit" as a number that no machine has.
constexpr uint64_t kNoLimitBytes = 1ull << 62;

std::vector<std::string> ReadWords(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; words.size() < 8 && file >> word;) words.push_back(word);
  return words;
}

std::optional<int64_t> ReadInteger(const std::string& path) {
  const std::vector<std::string> words = ReadWords(path);
  int64_t value = 0;
  if (words.empty() || !absl::SimpleAtoi(words[0], &value)) return std::nullopt;
  return value;
}

class Reader {
 public:
  explicit Reader(const std::string& root)
      : proc_(root + "/proc/self"), mounts_(root + "/sys/fs/cgroup") {
    // Groups of another container may have the same path as seen from there.
    std::error_code error;
    space_ = std::filesystem::read_symlink(proc_ + "/ns/cgroup", error).string();
  }

  ControlGroup Read() {
    std::ifstream file(proc_ + "/cgroup");  // lines "id:controllers:path"
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
      if (fields.size() != 3 || fields[2].empty()) continue;
      const std::string& path = fields[2];
      if (fields[1].empty()) {
        ForGroupAndAbove(mounts_, path, [&](const std::string& folder, const std::string& group) {
          Memory(folder + "/memory.max", group);
          CpuMax(folder + "/cpu.max", group);
        });
        Cpus(mounts_, path, "/cpuset.cpus.effective");
        continue;
      }
      for (const absl::string_view controller : absl::StrSplit(fields[1], ',')) {
        const std::string mount = absl::StrCat(mounts_, "/", controller);
        if (controller == "memory") {
          ForGroupAndAbove(mount, path, [&](const std::string& folder, const std::string& group) {
            Memory(folder + "/memory.limit_in_bytes", group);
          });
        } else if (controller == "cpu") {
          ForGroupAndAbove(mount, path, [&](const std::string& folder, const std::string& group) {
            const auto quota_us = ReadInteger(folder + "/cpu.cfs_quota_us");
            const auto period_us = ReadInteger(folder + "/cpu.cfs_period_us");
            if (quota_us && period_us) Quota(*quota_us, *period_us, group);
          });
        } else if (controller == "cpuset") {
          Cpus(mount, path, "/cpuset.cpus");
        }
      }
    }
    return limits_;
  }

 private:
  using Visit =
      absl::FunctionRef<void(const std::string& folder, const std::string& group)>;  // folder, name

  static std::string FolderOf(const std::string& mount, const std::string& path) {
    const std::string folder = path == "/" ? mount : mount + path;
    // A container sees the path that its group has outside, and that group as the mount itself.
    std::error_code error;
    return std::filesystem::exists(folder, error) ? folder : mount;
  }

  void ForGroupAndAbove(const std::string& mount, std::string path, Visit visit) const {
    while (true) {
      visit(FolderOf(mount, path), absl::StrCat(space_, path));
      const size_t slash = path.rfind('/');
      if (path.size() <= 1 || slash == std::string::npos) return;
      path.resize(slash == 0 ? 1 : slash);
    }
  }

  void Memory(const std::string& file, const std::string& group) {
    const auto limit = ReadInteger(file);  // "max" is no number
    if (!limit || *limit < 0) return;
    const auto bytes = static_cast<uint64_t>(*limit);
    if (bytes >= kNoLimitBytes || bytes >= limits_.memory_bytes) return;
    limits_.memory_bytes = bytes;
    limits_.memory_group = group;
  }

  void CpuMax(const std::string& file, const std::string& group) {  // "50000 100000"
    const std::vector<std::string> words = ReadWords(file);
    int64_t quota_us = 0, period_us = 0;
    if (words.size() == 2 && absl::SimpleAtoi(words[0], &quota_us) &&
        absl::SimpleAtoi(words[1], &period_us)) {
      Quota(quota_us, period_us, group);
    }
  }

  void Quota(int64_t quota_us, int64_t period_us, const std::string& group) {
    if (quota_us <= 0 || period_us <= 0) return;  // -1: none
    const double cores = static_cast<double>(quota_us) / static_cast<double>(period_us);
    if (cores >= limits_.cpu_cores) return;
    limits_.cpu_cores = cores;
    limits_.cpu_period = absl::Microseconds(period_us);
    limits_.cpu_group = group;
  }

  void Cpus(const std::string& mount, const std::string& path, const char* file) {
    const std::vector<std::string> own = ReadWords(FolderOf(mount, path) + file);
    const std::vector<std::string> all = ReadWords(mount + file);
    if (!own.empty() && !all.empty() && own != all) limits_.cpus = own[0];
  }

  const std::string proc_, mounts_;
  std::string space_;
  ControlGroup limits_;
};

}  // namespace

ControlGroup ReadControlGroup(const std::string& root) { return Reader(root).Read(); }

}  // namespace strata
