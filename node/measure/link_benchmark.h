// Measures the links from this node to the others of its cluster: each once, and again when the
// peer's address changes or the result has grown old. One measurement at a time, on a thread of its
// own, and none while this machine generates. The more links there are the longer each waits for
// its turn, so that the measurements of all nodes in a minute grow with the number of nodes, and
// not with the number of links.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "coordinator/membership/membership_types.h"
#include "proto/probe.pb.h"
#include "transport/base/event_loop.h"

namespace strata {

// Loop thread only.
class LinkBenchmark {
 public:
  // Measures the link to an address. Blocks; on a thread of the benchmark; stops once
  // `should_continue` is false.
  using Measure = absl::AnyInvocable<absl::StatusOr<wire::LinkSpeed>(
      const std::string& address, absl::FunctionRef<bool()> should_continue)>;

  struct Options {
    int64_t pause_ms = 200;    // between measurements, and up to as much again by chance:
                               // others measure, too
    int64_t retry_ms = 3'000;  // after a failed one
    int64_t old_after_ms = 900'000;
    size_t links = 8;  // with more, pauses and old_after_ms grow in proportion
  };
  // Measures with MeasureLink(), unless a test passes another function.
  LinkBenchmark(EventLoop* loop, Options options);
  LinkBenchmark(EventLoop* loop, Options options, Measure measure);
  // Waits for a measurement in flight, which ends at its next frame.
  ~LinkBenchmark();

  struct Peer {
    NodeId id;
    std::string address;  // its best address; empty: unreachable
  };
  // The nodes to measure, and their addresses now. Drops the results of other nodes, and of other
  // addresses of the same node.
  void SetPeers(const std::vector<Peer>& peers);

  // While true nothing is measured, and a measurement in flight ends.
  void SetBusy(bool busy);
  // Measures all links again.
  void MeasureAgain();
  // The number of links that were not measured since MeasureAgain().
  uint32_t pending() const;

  // When the next measurement is due, by the steady clock; kNever: not before something changes.
  static constexpr int64_t kNever = INT64_MAX;
  int64_t next_due_ms() const;
  // How long after its measurement a result is old, with the present number of links.
  int64_t OldAfterMs() const { return options_.old_after_ms * PauseFactor(); }

  // Null if the link was not measured yet.
  const wire::LinkSpeed* Find(const NodeId& id) const;

 private:
  struct PeerLink {
    std::string address;
    wire::LinkSpeed speed;  // round_trip_p50_us 0: not measured
    int64_t due_ms = 0;     // by the steady clock, which stops while the machine sleeps
    bool pending = false;   // since MeasureAgain()
  };

  int64_t PauseFactor() const;
  int64_t Pause();
  void Arm();
  void Tick();
  void Begin(const NodeId& id, const std::string& address);
  void End(const NodeId& id, const std::string& address,
           const absl::StatusOr<wire::LinkSpeed>& speed);

  EventLoop* const loop_;
  const Options options_;
  Measure measure_;  // used by the thread while one is in flight
  std::map<NodeId, PeerLink> links_;
  uint64_t measurements_ = 0;
  bool in_flight_ = false;
  std::thread thread_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::minstd_rand chance_{std::random_device{}()};
  std::unique_ptr<EventLoop::Handle> timer_;  // null: nothing is due
  const std::shared_ptr<const char> alive_ = std::make_shared<const char>();  // with posted work
};

}  // namespace strata
