// What was seen in rounds of chaos, a line each, and what they come to.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace strata {

// Times in s.
struct ChaosSeen {
  bool hit_coordinator = false;
  bool hit_gateway = false;  // a node that takes texts
  // The longest between two tokens of a text that another node than the victim takes, what loading
  // took of it, and that of the victim's own.
  double pause = 0, loading = 0, own_pause = 0;
  double ended = 0;  // the last text, since the fault was mended
  size_t texts = 0;
  size_t excused = 0;  // of them: their own node went
  size_t tokens = 0;
  size_t ties = 0;              // of them: as likely as the likeliest within rounding
  size_t longest_sequence = 0;  // tokens, with its prompt
};

class ChaosTotals {
 public:
  void Add(const std::string& fault, const ChaosSeen& seen);

  // 1 or more were added.
  std::string Text() const;
  // Whether it was each in a fifth of the rounds.
  bool HitCoordinatorOften() const { return 5 * hit_coordinator_ >= ended_.size(); }
  bool HitGatewayOften() const { return 5 * hit_gateway_ >= ended_.size(); }

 private:
  struct Pauses {
    std::vector<double> all, loading;
  };
  Pauses pauses_;                            // by round
  std::map<std::string, Pauses> pauses_of_;  // by fault
  std::vector<double> ended_;                // by round
  size_t hit_coordinator_ = 0, hit_gateway_ = 0;
  size_t texts_ = 0, excused_ = 0, tokens_ = 0, ties_ = 0, longest_sequence_ = 0;
};

}  // namespace strata
