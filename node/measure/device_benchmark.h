// The devices of this node's machine and their measured speeds. Listing and measuring happen in
// short-lived `strata probe` processes, one device after the other, so that a driver that aborts or
// hangs costs the node nothing but that device. The results are stored in a file, by hardware and
// version, and measured again only on request.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "node/workers/child_process.h"
#include "proto/probe.pb.h"
#include "transport/base/event_loop.h"

namespace strata {

// Loop thread only.
class DeviceBenchmark {
 public:
  struct Options {
    std::string program;                        // strata; run as `program probe …`
    std::string cache_path;                     // empty: stores nothing
    uint32_t n_threads = 1;                     // of the CPU, as its stages will have
    std::vector<std::string> only;              // these devices; empty: all
    std::optional<wire::DeviceSpeed> presumed;  // of every device, instead of measuring it
    // For one process; killed if it takes longer. Drivers compile shaders for a minute or two the
    // first time.
    int64_t device_limit_ms = 180'000;
    // Delays of the retries after a failure: memory may be short, or a machine busy, for a while
    // only.
    std::vector<int64_t> retry_ms = {5'000, 20'000, 60'000};
    std::function<bool()> busy;  // retries wait while it is true; null: never
    // Bytes that this node has loaded on a device; null: none.
    std::function<uint64_t(const std::string& device)> bytes_on;
    // How often devices with memory of their own are listed again, unless busy: other programs use
    // them, too.
    int64_t refresh_ms = 30'000;
  };
  DeviceBenchmark(EventLoop* loop, Options options);
  // Kills a process that is measuring.
  ~DeviceBenchmark();

  // Lists the devices, then measures those that are not in the file. Calls `changed` after each
  // step, until destruction.
  void Start(absl::AnyInvocable<void()> changed);
  // Measures all devices again. Does nothing while a measurement is in progress.
  void MeasureAgain();

  // Free memory is current for devices that use the machine's; for others it is that of the latest
  // listing, less what this node has loaded since.
  std::vector<wire::DeviceInfo> Devices() const;
  bool measuring() const { return child_ != nullptr && (!refreshing_ || !to_measure_.empty()); }

 private:
  void List();
  void MeasureNext();
  void RetryLater();
  void Retry();
  void Refresh();
  void OnListed(wire::DeviceInfo info);
  uint64_t BytesOn(const std::string& device) const;
  void Run(std::vector<std::string> args);
  void OnLine(const std::string& line);
  void OnExit(const ChildExit& exit);
  void Post(absl::AnyInvocable<void()> fn);
  std::string Key(const wire::DeviceInfo& device) const;
  void ReadCache();
  void WriteCache() const;

  EventLoop* const loop_;
  const Options options_;
  absl::AnyInvocable<void()> changed_;
  std::vector<wire::DeviceInfo> devices_;
  std::vector<std::string> to_measure_;           // names, the next one last
  std::string measuring_;                         // name; empty while listing
  bool refreshing_ = false;                       // lists known devices again
  std::map<std::string, uint64_t> listed_bytes_;  // BytesOn() when the device was listed
  bool answered_ = false;                         // the process has printed a result
  uint64_t run_ = 0;  // of the running process; output of older ones is dropped
  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<EventLoop::Handle> limit_;
  size_t retries_ = 0;
  std::unique_ptr<EventLoop::Handle> retry_, refresh_;
  const std::shared_ptr<const char> alive_ =
      std::make_shared<const char>();  // shared with posted work
};

}  // namespace strata
