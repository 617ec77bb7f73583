// A client that holds the model by a lease, as `strata run` does: while it is there, the model is
// loaded; where the coordinator goes, its node calls the next one. A model of
// CoordinatorService::LoadModel() (node/rpc/coordinator_service.h). One thread; shared with its
// calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_wire.h"

namespace strata {

class SimRun : public std::enable_shared_from_this<SimRun> {
 public:
  struct Options {
    SimProcesses* processes = nullptr;
    size_t node = 0;    // of the client
    size_t source = 0;  // with the file
    std::function<SimCoordinator*(size_t node)> coordinator_of;
  };
  explicit SimRun(Options options) : options_(std::move(options)) {}

  size_t node() const { return options_.node; }
  bool is_over() const { return is_over_; }
  // In the process of its node.
  void Begin() {
    if (is_over_) return;
    const ClusterView& view = cluster().View(node());
    if (!view.is_coordinator && view.coordinator.is_nobody()) return Again();
    const size_t to = view.is_coordinator ? node() : cluster().NumberOf(view.coordinator);
    const auto lease = std::make_shared<Lease>();  // shared by what may end it
    connection_ = SimConnection::Open(options_.processes,
                                      {node(), [self = shared_from_this()] { self->OnClosed(); }},
                                      {to, [self = shared_from_this(), lease, to] {
                                         lease->is_over = true;
                                         self->coordinator(to)->Release(lease->id);
                                       }});
    connection_->Send(0, [self = shared_from_this(), connection = connection_, lease, to] {
      self->Serve(connection, lease, to);
    });
  }
  // The client ends, or its node has gone.
  void End() {
    is_over_ = true;
    if (const auto connection = std::exchange(connection_, nullptr)) connection->Close(0);
  }

 private:
  using ConnectionPtr = std::shared_ptr<SimConnection>;
  struct Lease {
    uint64_t id = 0;  // 0: there is none
    bool is_over = false;
  };
  static constexpr int64_t kAgainUs = 500'000, kWatchUs = 100'000;

  ClusterSim& cluster() const { return options_.processes->cluster(); }
  SimCoordinator* coordinator(size_t n) const { return options_.coordinator_of(n); }
  void Again() {
    options_.processes->After(node(), kAgainUs, [self = shared_from_this()] { self->Begin(); });
  }
  void OnClosed() {
    connection_ = nullptr;
    if (was_loaded_) return Again();
    is_over_ = true;
  }

  // On the node that coordinates.
  void Serve(const ConnectionPtr& connection, const std::shared_ptr<Lease>& lease, size_t to) {
    coordinator(to)->Load(
        options_.source, /*hold=*/true,
        [self = shared_from_this(), connection, lease, to](const absl::StatusOr<uint64_t>& id) {
          if (!id.ok()) return connection->Close(1);
          lease->id = *id;
          if (lease->is_over) return self->coordinator(to)->Release(lease->id);
          connection->Send(1, [self] { self->was_loaded_ = true; });
          self->Watch(connection, lease, to);
        });
  }
  void Watch(const ConnectionPtr& connection, const std::shared_ptr<Lease>& lease, size_t to) {
    if (connection->closed()) return;
    if (coordinator(to)->HasLease(lease->id)) {
      options_.processes->After(to, kWatchUs, [self = shared_from_this(), connection, lease, to] {
        self->Watch(connection, lease, to);
      });
      return;
    }
    // The model was unloaded or is loaded to stay; else it went with the role.
    if (coordinator(to)->is_leader())
      connection->Send(1, [self = shared_from_this()] { self->was_loaded_ = false; });
    connection->Close(1);
  }

  const Options options_;
  ConnectionPtr connection_;  // shared with messages in flight
  bool was_loaded_ = false;
  bool is_over_ = false;
};

}  // namespace strata
