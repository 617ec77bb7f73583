#include "node/measure/device_benchmark.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"
#include "node/base/machine.h"
#include "shard/device/device_probe.h"
#include "shard/device/memory_pressure.h"
#include "shard/device/unified_memory.h"
#include "transport/base/version.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

#ifdef __APPLE__
constexpr bool kIsMac = true;
#else
constexpr bool kIsMac = false;
#endif
constexpr size_t kDevicesListedMax = 64;
constexpr size_t kProblemBytesMax = 256;
constexpr size_t kCacheLinesMax = 256;

// Ignores unknown fields: a newer strata may have written the file.
template <typename Message>
bool FromJson(const std::string& json, Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(json, message, options).ok();
}

// The last line that a process wrote to stderr, for people.
std::string LastLine(absl::string_view output) {
  std::vector<absl::string_view> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  if (lines.empty()) return "";
  return std::string(absl::StripPrefix(lines.back(), "strata: ").substr(0, kProblemBytesMax));
}

}  // namespace

DeviceBenchmark::DeviceBenchmark(EventLoop* loop, Options options)
    : loop_(loop), options_(std::move(options)) {}

DeviceBenchmark::~DeviceBenchmark() {
  if (child_ != nullptr) child_->Kill();
  child_.reset();  // its callbacks use what is destroyed next
}

void DeviceBenchmark::Start(absl::AnyInvocable<void()> changed) {
  changed_ = std::move(changed);
  List();
  const auto every_ms = static_cast<uint64_t>(options_.refresh_ms);
  refresh_ =
      loop_->StartTimer({.delay_ms = every_ms, .repeat_ms = every_ms}, [this] { Refresh(); });
}

void DeviceBenchmark::MeasureAgain() {
  if (measuring()) return;
  retries_ = 0;
  retry_.reset();
  for (wire::DeviceInfo& device : devices_) {
    device.clear_speed();
    device.clear_problem();
    to_measure_.insert(to_measure_.begin(), device.name());
  }
  if (refreshing_) return;  // the measurements come next
  if (devices_.empty()) {
    List();
  } else {
    MeasureNext();
  }
}

uint64_t DeviceBenchmark::BytesOn(const std::string& device) const {
  return options_.bytes_on == nullptr ? 0 : options_.bytes_on(device);
}

void DeviceBenchmark::Refresh() {
  const bool has_own_memory = absl::c_any_of(
      devices_, [](const wire::DeviceInfo& device) { return !device.shares_machine_memory(); });
  if (!has_own_memory || child_ != nullptr || (options_.busy != nullptr && options_.busy())) return;
  List();
  refreshing_ = child_ != nullptr;
}

std::vector<wire::DeviceInfo> DeviceBenchmark::Devices() const {
  std::vector<wire::DeviceInfo> devices = devices_;
  const MachineMemory memory = ReadMachineMemory();
  const MemoryPressure pressure = ReadMemoryPressure();
  for (wire::DeviceInfo& device : devices) {
    if (!device.shares_machine_memory()) {
      const auto listed = listed_bytes_.find(device.name());
      const uint64_t before = listed == listed_bytes_.end() ? 0 : listed->second;
      const uint64_t free_bytes = device.memory_free() + before;
      device.set_memory_free(std::min<uint64_t>(
          device.memory_total(), free_bytes - std::min(free_bytes, BytesOn(device.name()))));
      continue;
    }
    device.set_memory_total(std::min<uint64_t>(device.memory_total(), memory.total_bytes));
    device.set_memory_free(OfferedBytes(
        UnifiedFreeBytes({.machine_bytes = memory.total_bytes,
                          .available_bytes = memory.free_bytes,
                          .working_set_bytes = device.memory_total(),
                          .used_bytes = device.name() == kCpuDevice ? 0 : BytesOn(device.name())},
                         kIsMac),
        pressure));
  }
  return devices;
}

void DeviceBenchmark::List() {
  measuring_.clear();
  Run({"strata", "probe"});
}

void DeviceBenchmark::MeasureNext() {
  if (to_measure_.empty()) return;
  measuring_ = to_measure_.back();
  to_measure_.pop_back();
  Run({"strata", "probe", "--device", measuring_, "--threads", absl::StrCat(options_.n_threads)});
}

// Drops `fn` after the destruction.
void DeviceBenchmark::Post(absl::AnyInvocable<void()> fn) {
  loop_->Post([fn = std::move(fn), alive = std::weak_ptr<const char>(alive_)]() mutable {
    if (!alive.expired()) fn();
  });
}

void DeviceBenchmark::Run(std::vector<std::string> args) {
  answered_ = false;
  const uint64_t run = ++run_;
  ChildProcess::Options child;
  child.program = options_.program;
  child.args = std::move(args);
  child.env = {"GGML_NO_BACKTRACE=1"};
  child.on_stdout_line = [this, run](absl::string_view line) {
    Post([this, run, line = std::string(line)] {
      if (run == run_) OnLine(line);
    });
  };
  child.on_exit = [this, run](const ChildExit& exit) {
    Post([this, run, exit] {
      if (run == run_) OnExit(exit);
    });
  };
  absl::StatusOr<std::unique_ptr<ChildProcess>> started = ChildProcess::Start(std::move(child));
  if (!started.ok()) {
    LOG(WARNING) << "devices are not measured: " << started.status();
    Post([this] { RetryLater(); });  // this may be the callback of the timer that it replaces
    return;
  }
  child_ = *std::move(started);
  limit_ = loop_->StartTimer({.delay_ms = static_cast<uint64_t>(options_.device_limit_ms)},
                             [this] { child_->Kill(); });
}

void DeviceBenchmark::OnLine(const std::string& line) {
  wire::DeviceInfo info;
  if (!FromJson(line, &info) || info.name().empty()) return;
  answered_ = true;
  if (measuring_.empty()) return OnListed(std::move(info));
  for (wire::DeviceInfo& device : devices_) {
    if (device.name() != measuring_ || !info.has_speed()) continue;
    *device.mutable_speed() = info.speed();
    device.clear_problem();
  }
}

void DeviceBenchmark::OnListed(wire::DeviceInfo info) {
  const auto known = absl::c_find_if(
      devices_, [&info](const wire::DeviceInfo& device) { return device.name() == info.name(); });
  if (known != devices_.end()) {
    known->set_memory_total(info.memory_total());
    known->set_memory_free(info.memory_free());
    listed_bytes_[info.name()] = BytesOn(info.name());
    return;
  }
  if (refreshing_) return;
  // One card that two back ends show (CUDA and Vulkan) is one device, the first, as for libllama.
  const bool is_shown =
      !info.bus_id().empty() && absl::c_any_of(devices_, [&info](const wire::DeviceInfo& other) {
        return other.bus_id() == info.bus_id();
      });
  const bool is_used =
      options_.only.empty() ? !is_shown : absl::c_linear_search(options_.only, info.name());
  if (!is_used || devices_.size() >= kDevicesListedMax) return;
  listed_bytes_[info.name()] = BytesOn(info.name());
  devices_.push_back(std::move(info));
}

void DeviceBenchmark::OnExit(const ChildExit& exit) {
  child_.reset();
  limit_.reset();
  const bool was_refreshing = std::exchange(refreshing_, false);
  if (was_refreshing) {
    if (!answered_) LOG(INFO) << "devices cannot be listed: strata probe " << exit.Words();
  } else if (measuring_.empty()) {
    if (!answered_) {
      LOG(WARNING) << "no devices were found: strata probe " << exit.Words() << ": "
                   << LastLine(exit.last_words);
    }
    ReadCache();
    for (auto device = devices_.rbegin(); device != devices_.rend(); ++device) {
      if (options_.presumed.has_value()) *device->mutable_speed() = *options_.presumed;
      if (!device->has_speed()) to_measure_.push_back(device->name());
    }
  } else {
    for (wire::DeviceInfo& device : devices_) {
      if (device.name() != measuring_ || device.has_speed()) continue;
      const std::string words = LastLine(exit.last_words);
      device.set_problem(exit.killed_by_us ? "measuring it took too long"
                         : words.empty()   ? exit.Words()
                                           : words);
      LOG(WARNING) << device.name() << " is not measured: " << device.problem();
    }
    WriteCache();
  }
  // Refreshes of memory must not put off the retries.
  const bool only_refreshed = was_refreshing && to_measure_.empty();
  MeasureNext();
  if (!measuring() && !only_refreshed) RetryLater();
  changed_();
}

void DeviceBenchmark::RetryLater() {
  const bool failed = devices_.empty() ||
                      absl::c_any_of(devices_, [](const auto& each) { return !each.has_speed(); });
  if (!failed || retries_ >= options_.retry_ms.size()) return;
  retry_ = loop_->StartTimer({.delay_ms = static_cast<uint64_t>(options_.retry_ms[retries_])},
                             [this] { Retry(); });
}

void DeviceBenchmark::Retry() {
  if (child_ != nullptr) {
    Post([this] { RetryLater(); });
    return;
  }
  if (options_.busy != nullptr && options_.busy()) {
    Post([this] { RetryLater(); });  // the timer's callback must not end its timer
    return;
  }
  ++retries_;
  if (devices_.empty()) {
    List();
    return;
  }
  to_measure_.clear();
  for (const wire::DeviceInfo& device : devices_) {
    if (!device.has_speed()) to_measure_.insert(to_measure_.begin(), device.name());
  }
  MeasureNext();
}

// All that a measurement depends on.
std::string DeviceBenchmark::Key(const wire::DeviceInfo& device) const {
  const wire::Versions& versions = LocalVersions();
  std::string key =
      absl::StrCat(device.name(), "|", device.description(), "|", device.bus_id(), "|",
                   device.memory_total() >> 28, "|", versions.ggml(), "|", versions.strata());
  if (device.kind() == wire::DeviceInfo::CPU) {
    absl::StrAppend(&key, "|", options_.n_threads, " of ", MachineCores());
  }
  return key;
}

// The file has a line for each device: its key, a tab, its speed as JSON.
void DeviceBenchmark::ReadCache() {
  if (options_.cache_path.empty()) return;
  std::ifstream file(options_.cache_path);
  size_t lines = 0;
  for (std::string line; std::getline(file, line) && ++lines <= kCacheLinesMax;) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('\t', 1));
    for (wire::DeviceInfo& device : devices_) {
      wire::DeviceSpeed speed;
      if (parts.first == Key(device) && FromJson(std::string(parts.second), &speed)) {
        *device.mutable_speed() = std::move(speed);
      }
    }
  }
}

void DeviceBenchmark::WriteCache() const {
  if (options_.cache_path.empty()) return;
  std::string lines;
  for (const wire::DeviceInfo& device : devices_) {
    std::string speed;
    if (!device.has_speed() ||
        !google::protobuf::util::MessageToJsonString(device.speed(), &speed).ok()) {
      continue;
    }
    absl::StrAppend(&lines, Key(device), "\t", speed, "\n");
  }
  // Without the file the next start measures again, nothing worse.
  const absl::Status written =
      WritePrivateFile(options_.cache_path, lines, PrivateFileMode::kReplace);
  if (!written.ok()) LOG(WARNING) << "cannot store the measured speeds: " << written.message();
}

}  // namespace strata
