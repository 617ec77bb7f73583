// How long each stage takes for a step of so many rows, learnt from what the stages report; and how
// many rows of prompts a step may carry so that nobody's next token waits too long behind them.
// Part of the scheduler: no I/O, one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace strata {

class StepCosts {
 public:
  explicit StepCosts(uint32_t n_stages) : stages_(n_stages) {}

  // A stage took `us` for a step of `rows` rows, 1 or more.
  void Observe(uint32_t stage, uint32_t rows, int64_t us);

  // Whether every stage has been observed.
  bool known() const;
  uint32_t n_stages() const { return static_cast<uint32_t>(stages_.size()); }

  // Between what was observed, and on a line through nothing beyond. Never falls with `rows`.
  double Us(uint32_t stage, uint32_t rows) const;

  // What it takes at least: what a few rows less took, where so many were not tried, or not lately.
  // Whoever goes by that tries them: often a few rows more cost nothing.
  double LeastUs(uint32_t stage, uint32_t rows) const;

 private:
  struct Point {
    double rows = 0;  // running means of what fell into the bucket; 0: nothing did
    double us = 0;
    uint64_t observed = 0;  // the stage's count of observations then
  };
  // One for each small number of rows, four to each power of two beyond: a step costs about as much
  // as one of nearly as many rows.
  static constexpr uint32_t kSingles = 16;
  static constexpr size_t kBuckets = 128;
  static size_t BucketOf(uint32_t rows);

  struct Stage {
    Point points[kBuckets];
    uint64_t n_observed = 0;
  };
  std::vector<Stage> stages_;
};

// A step that is on its way.
struct StepUnderWay {
  int64_t submitted_us = 0;
  uint32_t rows = 0;
  uint32_t samples = 0;  // so many rows come back as the next step, one for each sampled token
};

struct ChunkQuestion {
  int64_t now_us = 0;
  int64_t last_result_us = 0;                // when the last step came back
  absl::Span<const StepUnderWay> in_flight;  // in order
  uint32_t decode_rows = 0;                  // of the step that is to be formed
  uint32_t chunk_max = 0;                    // rows of prompts it may carry at most
  uint32_t n_apart = 0;  // of a round's steps, so many like this one are for prompts only; 0: all
                         // carry decodes, or any may
  int64_t wait_us = 0;   // by so much may it, and each that is under way, come back later than it
                         // would if nobody had a prompt
  // And by so much on average, where chunks go on and on: those of a round's steps that carry
  // chunks share it.
  int64_t mean_wait_us = std::numeric_limits<int64_t>::max();
};

// How many rows of prompts the step may carry: the most with which the step, and the next step of
// each one that is under way, keep to `wait_us`, which is found by playing through what the stages
// will do; and with which rounds of such steps keep to `mean_wait_us`.
uint32_t ChunkWithin(const StepCosts& costs, const ChunkQuestion& question);

}  // namespace strata
