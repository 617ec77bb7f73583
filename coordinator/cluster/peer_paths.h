// The ways to one other node: each of its addresses is asked who answers there, timed, and the
// fastest that works is kept. No input or output: the cluster runtime does what is said here and
// tells what came of it. Loop thread. Times are microseconds of one clock that never goes back.
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
    int64_t silent_ms = 400;          // a request unanswered for so long: look for another way
    int64_t retry_min_ms = 500;       // between probes of an address that does not answer
    int64_t retry_max_ms = 2'000;     // the same, after some failures
    int64_t retry_wrong_ms = 10'000;  // where another node answered
    int64_t remeasure_ms = 5'000;     // between probes of an address that works and is not the best
    double faster_by = 0.8;           // another becomes the best below this share of its time
    size_t addresses_max = 32;        // told and observed ones together
  };
  explicit PeerPaths(const Options& options) : options_(options) {}

  // The addresses that are told now; those no longer told are forgotten. What is known of the
  // others stays.
  void SetTold(const std::vector<std::string>& addresses);
  // An address that was seen to be the node's, but that it does not tell itself. The oldest goes
  // when there are too many.
  void Observe(const std::string& address);
  // Something suggests that the addresses are worth trying at once: it is on the network again.
  void TryAgain();

  // Addresses to probe now. Each counts as asked until Answered() or Failed().
  std::vector<std::string> TakeProbes(int64_t now_us);
  // Where to send a request now; empty: nowhere works. The best one, unless it has been silent.
  // Counts as asked from now on.
  std::string TakeBest(int64_t now_us);

  // What came of a probe or a request to `address`, sent at `sent_us`. An unknown address is fine.
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
    bool told = false;
    int64_t observed = 0;          // rank of the observation; 0: never
    bool works = false;            // the last answer is newer than the last failure
    int64_t connected_us = 0;      // when it first worked since; what was sent later is timed
    int64_t round_trip_us = 0;     // smoothed; 0: not measured
    int64_t answered_sent_us = 0;  // when the newest request that was answered was sent
    int failures = 0;              // in a row
    bool probed = false;           // ever
    int64_t probed_us = 0;         // when last
    int64_t wait_us = 0;           // before the next probe, while it does not work
    int asked = 0;                 // requests under way
    int64_t asked_us = 0;          // since when nothing has come of them
  };

  bool Silent(const Path& path, int64_t now_us) const;
  bool Due(const std::string& address, const Path& path, bool trouble, int64_t now_us) const;
  static void Ask(Path* path, int64_t now_us);
  static void Settle(Path* path, int64_t now_us);
  void Choose();
  void DropUnwanted();

  const Options options_;
  std::map<std::string, Path> paths_;
  std::string best_;
  int64_t observations_ = 0;
};

}  // namespace strata
