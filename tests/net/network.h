// A small network inside this machine, for tests of nodes that find each other: hosts are network
// namespaces, switches are bridges in namespaces of their own. Each namespace is held by a child of
// the test and dies with it, so nothing is left behind however the test ends.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/workers/child_process.h"
#include "tests/net/limits.h"
#include "tests/support/test_key.h"

namespace strata {

// A network namespace with loopback up.
class Host {
 public:
  // The /sys that programs inside see: this machine's, with its control groups, or the host's own,
  // with its interfaces, where UCX looks for them.
  enum class Sys { kShared, kOwn };
  explicit Host(std::string name, Sys sys = Sys::kShared);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Programs started inside from now on find an empty folder there.
  void Hide(const std::string& folder) { hidden_.push_back(folder); }

  const std::string& name() const { return name_; }
  pid_t holder() const { return holder_; }  // a process inside

  // The command that runs `args` inside.
  std::vector<std::string> Inside(std::vector<std::string> args) const;
  // Runs a shell script inside, to its end. Returns its output; a failure fails the test.
  std::string Shell(const std::string& script) const;
  // The same; false when the script failed, `out` may be null.
  bool TryShell(const std::string& script, std::string* out,
                absl::Duration limit = absl::Minutes(1)) const;

 private:
  const std::string name_;
  const Sys sys_;
  std::vector<std::string> hidden_;
  pid_t holder_ = 0;
};

class Switch {
 public:
  explicit Switch(std::string name) : host_(std::move(name)) {
    host_.Shell("ip link add br0 type bridge mcast_snooping 0 && ip link set br0 up");
  }
  // Connects the host's new interface, with addresses like "10.77.0.1/24" and no others; without
  // any it gets a link-local address of IPv6.
  void Plug(const Host& host, const std::string& interface,
            const std::vector<std::string>& addresses);
  // Plugs or unplugs the other end of the cable; the host sees its carrier come or go.
  void SetCable(const Host& host, const std::string& interface, bool plugged);

  // Makes the cable that slow, in both directions. Bursts are small, so that a small frame takes
  // its time, too.
  void SetSpeed(const Host& host, const std::string& interface, uint32_t mbit_per_s);
  void SetFullSpeed(const Host& host, const std::string& interface);

  // Drops so many of a hundred packets that `from` sends to `to`, or to any host if it is null.
  void Lose(const Host& from, const Host* to, const std::string& interface, int percent);
  void LoseNothing();

  const Host& host() const { return host_; }

 private:
  static std::string PortOf(const Host& host, const std::string& interface);
  Host host_;
};

// `strata node` on a host.
class NodeOn {
 public:
  // Waits until it listens. Measures nothing unless asked: it takes the cores for seconds.
  enum class Measure { kNo, kYes };
  // `limits`: for the node and its workers; null: none. The node keeps its id where `options` have
  // a --data-dir.
  NodeOn(const Host* host, std::string name, std::vector<std::string> options = {},
         Measure measure = Measure::kNo, const Limits* limits = nullptr);

  const std::string& id() const { return id_; }
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }  // as it reported when it listened
  uint16_t port() const { return port_; }
  std::string errors() const;
  absl::Time ready() const { return ready_; }

  // The cluster by its `strata nodes --json`; null when it does not answer.
  nlohmann::json Nodes() const;
  // Its entry for node `id`; null when it does not know that node.
  nlohmann::json Node(const std::string& id) const;
  static nlohmann::json Find(const nlohmann::json& nodes, const std::string& id);
  // The node is heard and has an address that works.
  static bool IsAlive(const nlohmann::json& node);
  bool Sees(const NodeOn& other) const;
  bool SeesGone(const NodeOn& other) const;

  pid_t pid() const { return process_ == nullptr ? 0 : process_->pid(); }
  // Ends the process: by SIGTERM, and by SIGKILL where that takes too long.
  void Stop() { process_.reset(); }

 private:
  struct Lines {
    absl::Mutex mu;
    std::vector<std::string> out ABSL_GUARDED_BY(mu);
    std::vector<std::string> err ABSL_GUARDED_BY(mu);
  };

  const Host* const host_;
  const std::string name_;
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();  // shared with the callbacks
  std::string id_;
  std::string address_;
  uint16_t port_ = 0;
  absl::Time ready_;
  std::unique_ptr<ChildProcess> process_;
};

// Whether all nodes name the same one of them as their coordinator, `coordinator`. Null ones are
// skipped.
bool AgreeOn(const std::vector<std::unique_ptr<NodeOn>>& nodes, size_t* coordinator);

// Waits until `is_so`, for at most `limit`, which is far more than it should take.
bool Eventually(const std::function<bool()>& is_so, absl::Duration limit = absl::Seconds(30));

// Why no network can be made here; OK where one can.
absl::Status CanMakeNetworks();

}  // namespace strata
