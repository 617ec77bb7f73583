#include "node/workers/device_limits.h"

#include <memory>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/planner/placement_options.h"
#include "google/protobuf/util/json_util.h"
#include "node/workers/child_process.h"

namespace strata {
namespace {

constexpr absl::Duration kListTime = absl::Seconds(30);
constexpr size_t kDevicesListedMax = 64;

std::vector<std::string> Parts(const std::vector<std::string>& values) {
  std::vector<std::string> parts;
  for (const std::string& value : values) {
    for (const absl::string_view part : absl::StrSplit(value, ',')) {
      parts.emplace_back(absl::StripAsciiWhitespace(part));
    }
  }
  return parts;
}

}  // namespace

bool DeviceLimits::Has(absl::string_view device) const {
  return devices.empty() || absl::c_linear_search(devices, device);
}

uint64_t DeviceLimits::MemoryOf(const std::string& device) const {
  const auto found = memory_of.find(device);
  return found != memory_of.end() ? found->second : memory_of_others;
}

absl::StatusOr<DeviceLimits> ParseDeviceLimits(const std::vector<std::string>& devices,
                                               const std::vector<std::string>& memory) {
  DeviceLimits limits;
  for (std::string& name : Parts(devices)) {
    if (name.empty()) {
      return absl::InvalidArgumentError("--device: give the names of devices, such as CUDA0,CPU");
    }
    if (!limits.Has(name) || limits.devices.empty()) limits.devices.push_back(std::move(name));
  }
  for (const std::string& part : Parts(memory)) {
    const size_t equals = part.rfind('=');
    const std::string name = equals == std::string::npos ? "" : part.substr(0, equals);
    const auto bytes = ParseBytes(equals == std::string::npos ? part : part.substr(equals + 1));
    if (!bytes.ok() || *bytes == 0 || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--memory: \"", part, "\" is not a size of memory; write 6GiB or CUDA0=6GiB"));
    }
    if (name.empty()) {
      limits.memory_of_others = *bytes;
    } else if (!limits.Has(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--memory: ", name, " is not among the devices of --device"));
    } else {
      limits.memory_of[name] = *bytes;
    }
  }
  return limits;
}

absl::StatusOr<std::vector<wire::DeviceInfo>> ListMachineDevices(const std::string& program) {
  struct DeviceList {
    absl::Mutex mu;
    std::vector<wire::DeviceInfo> devices ABSL_GUARDED_BY(mu);
  };
  const auto found = std::make_shared<DeviceList>();  // shared with the child's thread
  ChildProcess::Options options;
  options.program = program;
  options.args = {"strata", "probe"};
  options.env = {"GGML_NO_BACKTRACE=1"};
  options.on_stdout_line = [found](absl::string_view line) {
    google::protobuf::util::JsonParseOptions parse;
    parse.ignore_unknown_fields = true;
    wire::DeviceInfo info;
    if (!google::protobuf::util::JsonStringToMessage(std::string(line), &info, parse).ok()) return;
    absl::MutexLock lock(found->mu);
    if (!info.name().empty() && found->devices.size() < kDevicesListedMax) {
      found->devices.push_back(std::move(info));
    }
  };
  auto child = ChildProcess::Start(std::move(options));
  if (!child.ok()) return child.status();
  if (!(*child)->WaitForExit(kListTime)) {
    (*child)->Kill();
    return absl::UnavailableError("listing this machine's devices takes too long (strata probe)");
  }
  absl::MutexLock lock(found->mu);
  if (found->devices.empty()) {
    return absl::UnavailableError(absl::StrCat("no devices were found: strata probe ",
                                               (*child)->exit().Words(), ": ",
                                               (*child)->exit().last_words));
  }
  return found->devices;
}

absl::Status CheckDeviceLimits(const DeviceLimits& limits, const std::string& program) {
  std::vector<std::pair<std::string, std::string>> named;  // name, option
  for (const std::string& name : limits.devices) named.emplace_back(name, "--device");
  for (const auto& [name, bytes] : limits.memory_of) named.emplace_back(name, "--memory");
  if (named.empty()) return absl::OkStatus();
  const auto devices = ListMachineDevices(program);
  if (!devices.ok()) return devices.status();
  std::set<std::string> names;
  for (const wire::DeviceInfo& device : *devices) names.insert(device.name());
  for (const auto& [name, option] : named) {
    if (names.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(option, ": this machine has no device \"", name,
                                                   "\"; it has ", absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace strata
