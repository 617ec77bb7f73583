// The paths to one other node: each of its addresses is probed for the node that answers there, and
// timed, and the fastest that works is kept. No input or output: the cluster runtime sends the
// probes and requests, and reports their outcomes. Loop thread. Times are microseconds of one clock
// that never goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace strata {

class PeerPaths {
 public:
  struct Options {
    int64_t silent_ms = 400;          // a request unanswered for so long: try another path
    int64_t retry_min_ms = 500;       // between probes of an address that does not answer
    int64_t retry_max_ms = 2'000;     // the same, after some failures
    int64_t retry_wrong_ms = 10'000;  // where another node answered
    int64_t remeasure_ms = 5'000;     // between probes of an address that works and is not the best
    double faster_by = 0.8;           // another is the best below this share of the best one's time
    size_t addresses_max = 32;        // announced and observed ones together
  };
  explicit PeerPaths(const Options& options) : options_(options) {}

  // The addresses that the node announces now; those no longer announced are forgotten. The state
  // of the others stays.
  void SetAnnounced(const std::vector<std::string>& addresses);
  // An address that was seen to be the node's, but that it does not announce. The oldest is dropped
  // when there are too many.
  void Observe(const std::string& address);
  // The addresses are worth trying at once: say, the node is on the network again.
  void TryAgain();

  // Addresses to probe now. Each has a request in flight until Answered() or Failed().
  std::vector<std::string> TakeProbes(int64_t now_us);
  // The address for a request now; empty: none works. The best one, unless it has been silent. Has
  // a request in flight from now on.
  std::string TakeBest(int64_t now_us);

  // The outcome of a probe or a request to `address`, sent at `sent_us`. Unknown addresses are
  // ignored.
  void Answered(const std::string& address, int64_t sent_us, int64_t now_us);
  void Failed(const std::string& address, int64_t sent_us, int64_t now_us);
  // Another node answered there.
  void Wrong(const std::string& address, int64_t now_us);

  // The best working address; empty: none.
  std::string best() const { return best_; }
  int64_t round_trip_us() const;  // over the best; 0: not measured
  // All that have answered lately, whether or not the last request failed.
  std::vector<std::string> Answering(int64_t now_us) const;
  std::vector<std::string> addresses() const;

 private:
  struct Path {
    bool announced = false;
    int64_t observed = 0;          // rank of the observation; 0: never
    bool works = false;            // the last answer is newer than the last failure
    int64_t connected_us = 0;      // when it began to work; requests sent later are timed
    int64_t round_trip_us = 0;     // smoothed; 0: not measured
    int64_t answered_sent_us = 0;  // when the newest request that was answered was sent
    int failures = 0;              // in a row
    bool probed = false;           // ever
    int64_t probed_us = 0;         // when last
    int64_t wait_us = 0;           // before the next probe, while it does not work
    int in_flight = 0;             // requests
    int64_t waiting_since_us = 0;  // since when none of them has ended
  };

  bool Silent(const Path& path, int64_t now_us) const;
  bool Due(const std::string& address, const Path& path, bool trouble, int64_t now_us) const;
  static void AddRequest(Path* path, int64_t now_us);
  static void EndRequest(Path* path, int64_t now_us);
  void Choose();
  void DropUnwanted();

  const Options options_;
  std::map<std::string, Path> paths_;
  std::string best_;
  int64_t observations_ = 0;
};

}  // namespace strata
