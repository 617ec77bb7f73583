// How long each stage takes for a step of so many rows, learnt from what the stages report; and how
// many rows of prompts a step may carry so that nobody's next token waits too long behind them.
// BatchSlice of the scheduler: no I/O, one thread.
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

  // Never falls with `rows`. While only single rows are observed, that many of them.
  double Us(uint32_t stage, uint32_t rows) const;

 private:
  // Steps of nearly as many rows each, as a line: single ones are noisy, and a line has what all of
  // them say, of the sizes between and around them too. The latest count most.
  class Line {
   public:
    bool known() const { return weight_ > 0; }
    double Us(double rows) const;
    void Observe(double rows, double us);

   private:
    double weight_ = 0;
    double rows_ = 0;  // means
    double us_ = 0;
    double rows_rows_ = 0;
    double rows_us_ = 0;
    bool was_slow_ = false;  // the last one
  };
  // Steps of one row stand apart, as kernels for vectors are others than those for matrices.
  struct Stage {
    Line one;
    Line more;
    uint32_t ones = 0;  // since the last step of more rows
  };
  std::vector<Stage> stages_;
};

// A step that is on its way.
struct StepUnderWay {
  int64_t submitted_us = 0;
  uint32_t rows = 0;
  uint32_t samples = 0;  // so many rows come back as the next step, one for each sampled token
};

struct ChunkQuery {
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
uint32_t ChunkWithin(const StepCosts& costs, const ChunkQuery& question);

struct ThroughputQuery {
  uint32_t rows_left = 0;  // of all prompts
  uint32_t chunk_min = 0;  // what is always right
  uint32_t chunk_max = 0;
  int64_t stage_us_max = 0;  // no more than chunk_min where a stage would take longer for a step
};

// How many rows of prompts the step may carry while nobody decodes: those with which all rows that
// are left are through soonest, the fill and the drain of the pipeline counted. A GPU takes little
// longer for 512 rows than for 128.
uint32_t ChunkForThroughput(const StepCosts& costs, const ThroughputQuery& question);

}  // namespace strata
