// Inspects the machine's processes, for tests that none is left behind.
#pragma once

#include <dirent.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace strata {

inline std::string ReadProc(pid_t pid, absl::string_view file) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/", file));
  std::ostringstream text;
  text << in.rdbuf();  // reads nothing of a process that has just ended, and does not throw
  return text.str();
}

// Whether `pid` runs: a zombie does not.
inline bool Runs(pid_t pid) {
  const std::string stat = ReadProc(pid, "stat");
  const size_t state = stat.rfind(") ");
  return state != std::string::npos && stat[state + 2] != 'Z' && stat[state + 2] != 'X';
}

// All processes below `pid`: children, their children and so on. Those of one parent are in the
// order that they were started in, also where the system's numbers have begun again.
inline std::vector<pid_t> Descendants(pid_t pid) {
  struct Process {
    int64_t start = 0;  // ticks since boot
    pid_t pid = 0;
    pid_t parent = 0;
    bool operator<(const Process& other) const {
      return std::tie(start, pid) < std::tie(other.start, other.pid);
    }
  };
  std::vector<Process> all;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = proc != nullptr ? readdir(proc) : nullptr) {
    Process process;
    if (!absl::SimpleAtoi(entry->d_name, &process.pid)) continue;
    const std::string stat = ReadProc(process.pid, "stat");
    const size_t state = stat.rfind(") ");
    if (state == std::string::npos) continue;
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(state + 2), ' ');
    // Of proc_pid_stat(5): fields 4 (ppid) and 22 (starttime); the first here is its third.
    if (fields.size() > 19 && absl::SimpleAtoi(fields[1], &process.parent) &&
        absl::SimpleAtoi(fields[19], &process.start)) {
      all.push_back(process);
    }
  }
  if (proc != nullptr) closedir(proc);
  std::sort(all.begin(), all.end());
  std::vector<pid_t> found = {pid};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Process& process : all) {
      if (process.parent == found[i]) found.push_back(process.pid);
    }
  }
  found.erase(found.begin());
  return found;
}
// The same, and `pid`.
inline std::vector<pid_t> WithDescendants(pid_t pid) {
  std::vector<pid_t> pids = Descendants(pid);
  pids.push_back(pid);
  return pids;
}

// Describes a process, for a failure's message.
inline std::string DescribeProcess(pid_t pid) {
  const auto spaced = [](std::string text) {
    std::replace(text.begin(), text.end(), '\0', ' ');
    return text;
  };
  return absl::StrCat(pid, ": ", spaced(ReadProc(pid, "cmdline")), "\n", ReadProc(pid, "status"),
                      "waits in ", spaced(ReadProc(pid, "wchan")), "\n");
}

// Waits until none of them runs; a description of those that still do after `limit`.
inline std::vector<std::string> StillRunning(const std::vector<pid_t>& pids, absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  std::vector<std::string> left;
  do {
    left.clear();
    for (pid_t pid : pids) {
      if (Runs(pid)) left.push_back(DescribeProcess(pid));
    }
    if (left.empty()) break;
    absl::SleepFor(absl::Milliseconds(20));
  } while (absl::Now() < until);
  return left;
}

// Those of `pids` that run strata's `verb` ("node", "worker").
inline std::vector<pid_t> OfVerb(const std::vector<pid_t>& pids, absl::string_view verb) {
  std::vector<pid_t> found;
  for (pid_t pid : pids) {
    const std::vector<std::string> argv = absl::StrSplit(ReadProc(pid, "cmdline"), '\0');
    if (argv.size() > 1 && argv[1] == verb) found.push_back(pid);
  }
  return found;
}

// Sockets that any of them has open, by inode.
inline std::set<std::string> SocketsHeldBy(const std::vector<pid_t>& pids) {
  std::set<std::string> inodes;
  for (const pid_t pid : pids) {
    const std::string folder = absl::StrCat("/proc/", pid, "/fd");
    DIR* const dir = opendir(folder.c_str());
    while (const dirent* entry = dir != nullptr ? readdir(dir) : nullptr) {
      char target[64] = {};
      if (readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof target - 1) <=
          0) {
        continue;
      }
      absl::string_view socket = target;
      if (absl::ConsumePrefix(&socket, "socket:[") && absl::ConsumeSuffix(&socket, "]")) {
        inodes.emplace(socket);
      }
    }
    if (dir != nullptr) closedir(dir);
  }
  return inodes;
}

}  // namespace strata
