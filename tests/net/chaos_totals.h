// Figures of rounds of chaos, and a summary of them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace strata {

// Times in s.
struct RoundStats {
  bool hit_coordinator = false;
  bool hit_gateway = false;  // a node that clients use
  // The longest time between two tokens of a request at another node than the victim, the part of
  // it that loading took, and the longest time of the victim's own requests.
  double pause = 0, loading = 0, own_pause = 0;
  double ended = 0;  // the last request, since the fault was repaired
  size_t requests = 0;
  size_t excused = 0;  // of them: their own node died
  size_t tokens = 0;
  size_t ties = 0;              // of them: as likely as the likeliest within rounding
  size_t longest_sequence = 0;  // tokens, with its prompt
};

class ChaosTotals {
 public:
  void Add(const std::string& fault, const RoundStats& stats);

  // REQUIRES: 1 or more rounds were added.
  std::string Text() const;
  // Whether it was hit in a fifth of the rounds.
  bool HitCoordinatorOften() const { return 5 * hit_coordinator_ >= ended_.size(); }
  bool HitGatewayOften() const { return 5 * hit_gateway_ >= ended_.size(); }

 private:
  struct Pauses {
    std::vector<double> all, loading;
  };
  Pauses pauses_;                            // by round
  std::map<std::string, Pauses> pauses_of_;  // by fault; of those that hit the coordinator
  std::vector<double> ended_;                // by round
  size_t hit_coordinator_ = 0, hit_gateway_ = 0;
  size_t requests_ = 0, excused_ = 0, tokens_ = 0, ties_ = 0, longest_sequence_ = 0;
};

}  // namespace strata
