// How good the ways from this node to the others of its cluster are, measured by itself: once for
// each way, again when a way changes or the figure has grown old. One measurement at a time, on a
// thread of its own, and none while this machine generates. The more ways there are the longer each
// waits for its turn, so that what all nodes measure in a minute grows with the nodes, and not with
// the ways between them.
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
  // Measures the way to an address. Blocks; on a thread of the benchmark's; `may_go` says when to
  // stop.
  using Measure = absl::AnyInvocable<absl::StatusOr<wire::LinkSpeed>(
      const std::string& address, absl::FunctionRef<bool()> may_go)>;

  struct Options {
    int64_t pause_ms = 200;    // between measurements, and up to as much again by chance:
                               // others measure, too
    int64_t retry_ms = 3'000;  // after one that failed
    int64_t old_after_ms = 900'000;
    size_t ways = 8;  // for so many; pauses, and how soon a figure is old, grow with more
  };
  // With MeasureLink() unless a test measures otherwise.
  LinkBenchmark(EventLoop* loop, Options options);
  LinkBenchmark(EventLoop* loop, Options options, Measure measure);
  // Waits for a measurement under way, which ends at its next frame.
  ~LinkBenchmark();

  struct Peer {
    NodeId id;
    std::string address;  // the best way to it; empty: none
  };
  // The nodes that matter, and how they are reached now. What is known of others is forgotten, and
  // what is known of another address of the same node.
  void SetPeers(const std::vector<Peer>& peers);

  // While true nothing is measured, and what is under way ends.
  void SetBusy(bool busy);
  // Everything again.
  void MeasureAgain();
  // Ways that MeasureAgain() asked for and that were not measured since.
  uint32_t asked() const;

  // When the next measurement is due, by the steady clock; kNever: not before something changes.
  static constexpr int64_t kNever = INT64_MAX;
  int64_t next_due_ms() const;
  // How long after one a figure is old, with so many ways.
  int64_t OldAfterMs() const { return options_.old_after_ms * Crowd(); }

  // Null when it was not measured yet.
  const wire::LinkSpeed* Find(const NodeId& id) const;

 private:
  struct Way {
    std::string address;
    wire::LinkSpeed speed;  // round_trip_p50_us 0: not measured
    int64_t due_ms = 0;     // by the steady clock, which stands while the machine sleeps
    bool asked = false;     // by MeasureAgain()
  };

  int64_t Crowd() const;
  int64_t Pause();
  void Arm();
  void Tick();
  void Begin(const NodeId& id, const std::string& address);
  void End(const NodeId& id, const std::string& address,
           const absl::StatusOr<wire::LinkSpeed>& speed);

  EventLoop* const loop_;
  const Options options_;
  Measure measure_;  // the thread's while one is under way
  std::map<NodeId, Way> ways_;
  uint64_t measurements_ = 0;
  bool under_way_ = false;
  std::thread thread_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::minstd_rand chance_{std::random_device{}()};
  std::unique_ptr<EventLoop::Handle> timer_;  // null: nothing is to be done
  const std::shared_ptr<const char> alive_ = std::make_shared<const char>();  // with posted work
};

}  // namespace strata
