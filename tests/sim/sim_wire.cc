#include "tests/sim/sim_wire.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

constexpr int64_t kDelayMinUs = 100;
constexpr int64_t kDelayMaxUs = 5'000;
constexpr int64_t kLocalDelayMaxUs = 200;
constexpr int64_t kResendUs = 200'000;  // a lost message comes so much later
constexpr int64_t kWatchUs = 250'000;
constexpr int64_t kSilenceUs = 1'000'000;

}  // namespace

void SimProcesses::ForgetConnections() {
  for (const std::weak_ptr<SimConnection>& connection : connections_) {
    if (const auto still = connection.lock()) still->Forget();
  }
}

void SimProcesses::In(size_t n, int64_t at_us, std::function<void()> fn) {
  cluster_->At(at_us, [this, n, start = starts_[n], fn = std::move(fn)] { Run(n, start, fn); });
}

void SimProcesses::Run(size_t n, uint64_t start, const std::function<void()>& fn) {
  if (!IsAlive(n, start)) return;
  const int64_t until_us = cluster_->paused_until_us(n);
  if (until_us > cluster_->now_us()) {
    cluster_->At(until_us, [this, n, start, fn] { Run(n, start, fn); });
  } else {
    fn();
  }
}

SimConnection::SimConnection(SimProcesses* processes, End a, End b)
    : processes_(processes),
      ends_{std::move(a), std::move(b)},
      starts_{processes->start(ends_[0].node), processes->start(ends_[1].node)} {}

std::shared_ptr<SimConnection> SimConnection::Open(SimProcesses* processes, End a, End b) {
  // The constructor is private.
  std::shared_ptr<SimConnection> connection(
      new SimConnection(processes, std::move(a), std::move(b)));
  if (processes->connections_.size() % 256 == 255) {
    std::erase_if(processes->connections_, [](const auto& other) { return other.expired(); });
  }
  processes->connections_.push_back(connection);
  connection->Watch();
  return connection;
}

bool SimConnection::Reaches() const {
  const size_t a = ends_[0].node, b = ends_[1].node;
  return a == b || (!processes_->cluster().IsCut(a, b) && !processes_->cluster().IsCut(b, a));
}

void SimConnection::Send(int from, std::function<void()> fn) {
  if (closed_ || !IsAlive(from)) return;
  ClusterSim& cluster = processes_->cluster();
  const bool local = ends_[0].node == ends_[1].node;
  int64_t delay_us = kDelayMinUs + static_cast<int64_t>(cluster.Random(static_cast<size_t>(
                                       local ? kLocalDelayMaxUs : kDelayMaxUs)));
  if (!local && cluster.loss() > 0 &&
      cluster.Random(1000) < static_cast<size_t>(cluster.loss() * 1000)) {
    delay_us += kResendUs;
  }
  const int to = 1 - from;
  last_us_[to] = std::max(last_us_[to], cluster.now_us() + delay_us);
  in_flight_[to].push_back(std::move(fn));
  cluster.At(last_us_[to], [self = shared_from_this(), to] { self->Arrive(to); });
}

// There is one call for each message in flight, whichever message it was scheduled for.
void SimConnection::Arrive(int to) {
  if (closed_ || !IsAlive(to)) return;
  ClusterSim& cluster = processes_->cluster();
  int64_t at_us = cluster.paused_until_us(ends_[to].node);
  if (!Reaches()) at_us = std::max(at_us, cluster.now_us() + kResendUs);
  if (at_us > cluster.now_us()) {
    last_us_[to] = std::max(last_us_[to], at_us);
    cluster.At(at_us, [self = shared_from_this(), to] { self->Arrive(to); });
    return;
  }
  const std::function<void()> fn = std::move(in_flight_[to].front());
  in_flight_[to].pop_front();
  fn();
}

void SimConnection::NotifyClosed(int end) {
  if (!IsAlive(end) || ends_[end].on_closed == nullptr) return;
  processes_->In(ends_[end].node, processes_->cluster().now_us(),
                 std::exchange(ends_[end].on_closed, nullptr));
}

void SimConnection::Break() {
  if (std::exchange(closed_, true)) return;
  NotifyClosed(0);
  NotifyClosed(1);
  Forget();
}

void SimConnection::Forget() {
  closed_ = true;
  for (int end = 0; end < 2; ++end) {
    ends_[end].on_closed = nullptr;
    // The messages may hold the connection.
    const auto forgotten = std::exchange(in_flight_[end], {});
  }
}

void SimConnection::Close(int from) {
  ends_[from].on_closed = nullptr;
  Send(from, [self = shared_from_this()] { self->Break(); });
}

void SimConnection::Watch() {
  if (closed_) return;
  ClusterSim& cluster = processes_->cluster();
  const bool dead = !IsAlive(0) || !IsAlive(1);
  if (!IsAlive(0) && !IsAlive(1)) return Forget();
  if (Reaches()) {
    silent_us_ = -1;
    if (dead) return Break();
  } else if (silent_us_ < 0) {
    silent_us_ = cluster.now_us();
  } else if (cluster.now_us() - silent_us_ >= kSilenceUs) {
    return Break();
  }
  cluster.At(cluster.now_us() + kWatchUs - static_cast<int64_t>(cluster.Random(50'000)),
             [weak = weak_from_this()] {
               if (const auto self = weak.lock()) self->Watch();
             });
}

void SimCall(SimProcesses* processes, size_t from, size_t to, int64_t timeout_us,
             std::function<void(const SimReply&)> serve, std::function<void(bool)> done,
             bool repeatable) {
  struct Call {
    std::shared_ptr<SimConnection> connection;
    std::function<void(bool)> done;
    void End(bool answered) {
      if (const auto fn = std::exchange(done, nullptr)) {
        if (connection != nullptr) connection->Close(0);
        fn(answered);
      }
    }
  };
  const auto call = std::make_shared<Call>();  // shared by all that may end it
  call->done = std::move(done);
  if (!processes->cluster().running(to)) {
    processes->In(from, processes->cluster().now_us() + kDelayMaxUs, [call] { call->End(false); });
    return;
  }
  call->connection =
      SimConnection::Open(processes, {from, [call] { call->End(false); }}, {to, nullptr});
  const bool arrives_twice = repeatable && processes->cluster().Doubles();
  for (int i = 0; i < (arrives_twice ? 2 : 1); ++i) {
    call->connection->Send(0, [connection = call->connection, call, serve] {
      serve([connection, call](std::function<void()> reply) {
        connection->Send(1, [call, reply = std::move(reply)] {
          if (call->done != nullptr) reply();
          call->End(true);
        });
      });
    });
  }
  processes->After(from, timeout_us, [call] { call->End(false); });
}

}  // namespace strata
