#include "node/demo/local_cluster.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster_stub.h"
#include "nlohmann/json.hpp"
#include "node/keys/key_file.h"
#include "node/keys/node_security.h"
#include "node/workers/child_process.h"
#include "proto/cluster.pb.h"
#include "transport/base/own_program.h"
#include "transport/base/steady_time.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

constexpr absl::Duration kStartTime = absl::Seconds(30);
constexpr absl::Duration kJoinPoll = absl::Milliseconds(20);

// Whether `n` nodes have one coordinator.
bool HaveJoined(const wire::GetClusterResponse& cluster, uint32_t n) {
  return !cluster.coordinator().empty() &&
         absl::c_count_if(cluster.nodes(), [](const auto& node) { return node.member(); }) == n;
}

class LocalClusterImpl final : public LocalCluster {
 public:
  ~LocalClusterImpl() override {
    // All are asked to stop before the first wait.
    for (auto& child : children_) child->process->Terminate();
  }

  absl::Status StartAll(Options options) {
    // Exists until all nodes have read it.
    const absl::StatusOr<std::string> folder = NewPrivateFolder();
    if (!folder.ok()) return folder.status();
    const absl::Cleanup remove = [&folder] {
      std::error_code error;
      std::filesystem::remove_all(*folder, error);
    };
    const std::string key_file = KeyFilePath(*folder);
    const absl::StatusOr<ClusterKey> key = ClusterKey::New();
    if (!key.ok()) return key.status();
    if (absl::Status status = CreateKeyFile(key_file, *key); !status.ok()) return status;
    if (absl::Status status = SecureClient(*key); !status.ok()) return status;
    const SteadyTime until = SteadyTime::Now() + kStartTime;
    for (uint32_t i = 0; i < options.nodes; ++i) {
      if (absl::Status status = StartNode(options, key_file); !status.ok()) return status;
      if (i > 0) continue;
      // The others join it, at the port that it got.
      if (absl::Status status = Await(0, until, options.cancelled); !status.ok()) return status;
    }
    return Join(until, options.cancelled);
  }

  const std::vector<NodeProcess>& nodes() const override { return nodes_; }

 private:
  absl::Status StartNode(const Options& options, const std::string& key_file) {
    const std::string name = absl::StrCat("node-", nodes_.size() + 1);
    auto child = std::make_unique<Child>();
    ChildProcess::Options start;
    start.program = OwnProgram();
    start.args = {"strata",     "node",      "--listen",          "127.0.0.1:0",
                  "--name",     name,        "--threads",         absl::StrCat(options.threads),
                  "--no-mdns",  "--in-demo", "--no-http",         "--ephemeral",
                  "--key-file", key_file,    "--stop-with-parent"};
    if (!nodes_.empty()) {
      start.args.insert(start.args.end(), {"--peer", nodes_.front().address});
    }
    if (options.verbose) start.args.push_back("--verbose");
    start.on_stdout_line = [ready = child->ready](absl::string_view line) { ready->Read(line); };
    if (options.verbose) {
      start.on_stderr_line = [name](absl::string_view line) {
        absl::FPrintF(stderr, "%s: %s\n", name, line);
      };
    }
    start.on_exit = [ready = child->ready](const ChildExit& exit) { ready->End(exit); };
    auto process = ChildProcess::Start(std::move(start));
    if (!process.ok()) return process.status();
    child->process = *std::move(process);
    nodes_.push_back({.name = name, .address = "", .pid = child->process->pid()});
    children_.push_back(std::move(child));
    return absl::OkStatus();
  }

  // Waits until that node listens; not where it does. kUnavailable: it has ended.
  absl::Status Await(size_t i, SteadyTime until, absl::AnyInvocable<bool()>& cancelled) {
    auto address = children_[i]->ready->Wait(until, cancelled);
    if (!address.ok()) {
      return absl::Status(address.status().code(),
                          absl::StrCat(nodes_[i].name, ": ", address.status().message()));
    }
    nodes_[i].address = *std::move(address);
    return absl::OkStatus();
  }

  absl::Status Join(SteadyTime until, absl::AnyInvocable<bool()>& cancelled) {
    const int64_t timeout_ms = absl::ToInt64Milliseconds(kStartTime);
    ClusterStub first(nodes_.front().address, timeout_ms);
    while (true) {
      for (size_t i = 0; i < nodes_.size(); ++i) {
        if (absl::Status status = Await(i, until, cancelled); !status.ok()) return status;
      }
      const auto cluster = first.GetCluster();
      if (!cluster.ok()) return cluster.status();
      if (HaveJoined(*cluster, static_cast<uint32_t>(nodes_.size()))) return absl::OkStatus();
      if (cancelled()) return absl::CancelledError("interrupted");
      if (SteadyTime::Now() >= until) {
        return absl::DeadlineExceededError("the nodes did not join each other");
      }
      absl::SleepFor(kJoinPoll);
    }
  }

  // Waits for the line that a node prints when it listens. Shared by the child's thread and the
  // waiting one.
  class Ready {
   public:
    void Read(absl::string_view line) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("node")) return;
      absl::MutexLock lock(mu_);
      address_ = json["node"].value("address", "");
    }
    void End(const ChildExit& exit) {
      absl::MutexLock lock(mu_);
      ended_ = absl::UnavailableError(absl::StrCat(
          "the node ", exit.Words(), exit.last_words.empty() ? "" : ": ", exit.last_words));
    }
    absl::StatusOr<std::string> Wait(SteadyTime until, absl::AnyInvocable<bool()>& cancelled) {
      while (SteadyTime::Now() < until) {
        absl::MutexLock lock(mu_);
        const auto settled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
          return !address_.empty() || !ended_.ok();
        };
        mu_.AwaitWithTimeout(absl::Condition(&settled), absl::Milliseconds(100));
        if (!ended_.ok()) return ended_;
        if (!address_.empty()) return address_;
        if (cancelled()) return absl::CancelledError("interrupted");
      }
      return absl::DeadlineExceededError("the node did not report that it is ready");
    }

   private:
    absl::Mutex mu_;
    std::string address_ ABSL_GUARDED_BY(mu_);
    absl::Status ended_ ABSL_GUARDED_BY(mu_);
  };
  struct Child {
    std::shared_ptr<Ready> ready = std::make_shared<Ready>();  // shared with the child's callbacks
    std::unique_ptr<ChildProcess> process;
  };

  std::vector<NodeProcess> nodes_;
  std::vector<std::unique_ptr<Child>> children_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(Options options) {
  auto cluster = std::make_unique<LocalClusterImpl>();
  if (auto s = cluster->StartAll(std::move(options)); !s.ok()) return s;
  return cluster;
}

}  // namespace strata
