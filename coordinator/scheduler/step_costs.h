// How long each stage takes for a step of so many rows behind so much context, learnt from what the
// stages report; and how many rows of prompts a step may carry so that no request's next token
// waits too long behind them. Part of the scheduler: no I/O, one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace strata {

// The size of a step: the rows that it computes, and the context behind them.
struct StepSize {
  uint32_t rows = 0;
  uint64_t cells = 0;  // of the caches over which attention walks: of each row, those up to itself

  // `n` rows of one sequence, the first at `position`.
  static StepSize Of(uint32_t position, uint32_t n) {
    return {n, uint64_t{n} * position + uint64_t{n} * (n + 1) / 2};
  }
  StepSize& operator+=(const StepSize& other) {
    rows += other.rows;
    cells += other.cells;
    return *this;
  }
  friend StepSize operator+(StepSize a, const StepSize& b) { return a += b; }
};

class StepCosts {
 public:
  explicit StepCosts(uint32_t n_stages) : stages_(n_stages) {}

  // A stage took `us` for a step of one row or more.
  void Observe(uint32_t stage, StepSize size, int64_t us);

  // Whether every stage has been observed.
  bool known() const;
  uint32_t n_stages() const { return static_cast<uint32_t>(stages_.size()); }

  // Never falls with rows or cells. While only steps of one row are observed, `rows` times theirs.
  double Us(uint32_t stage, StepSize size) const;

 private:
  // A plane through steps of similar sizes: single observations are noisy, and the plane combines
  // them all, also for the sizes between and around them. The latest count most. Cells cost nothing
  // as long as all steps have about the same number: the rows have their cost.
  class Plane {
   public:
    bool known() const { return weight_ > 0; }
    double Us(double rows, double cells) const;
    void Observe(double rows, double cells, double us);

   private:
    double weight_ = 0;
    double rows_ = 0;  // means
    double cells_ = 0;
    double us_ = 0;
    double rows_rows_ = 0;
    double rows_cells_ = 0;
    double cells_cells_ = 0;
    double rows_us_ = 0;
    double cells_us_ = 0;
    bool was_slow_ = false;  // the last one
  };
  // Steps of one row have a plane of their own: kernels for vectors differ from those for matrices.
  struct Stage {
    Plane one;
    Plane more;
    uint32_t ones = 0;  // since the last step of more rows
  };
  std::vector<Stage> stages_;
};

// A step in flight.
struct PendingStep {
  int64_t submitted_us = 0;
  StepSize size;
  StepSize next;  // of its next step: a row for each sampled token
};

struct ChunkQuery {
  int64_t now_us = 0;
  int64_t last_result_us = 0;               // when the last step came back
  absl::Span<const PendingStep> in_flight;  // in order
  StepSize decodes;                         // of the step that is to be formed
  uint32_t prompt_position = 0;             // of the first row of a prompt that it would carry
  uint32_t chunk_max = 0;                   // rows of prompts it may carry at most
  uint32_t n_apart = 0;  // so many of a round's steps, like this one, are for prompts only; 0: all
                         // carry decodes, or any may
  int64_t wait_us = 0;   // how much later this step, and each one in flight, may come back than
                         // without prompts
  // The same on average, while chunks follow each other: the steps of a round that carry chunks
  // share it.
  int64_t mean_wait_us = std::numeric_limits<int64_t>::max();
};

// How many rows of prompts the step may carry: the most with which this step, and the next step of
// each one in flight, keep to `wait_us`, as a simulation of the stages says; and with which rounds
// of such steps keep to `mean_wait_us`.
uint32_t ChunkWithin(const StepCosts& costs, const ChunkQuery& query);

struct ThroughputQuery {
  uint32_t rows_left = 0;  // of all prompts
  uint32_t position = 0;   // of their rows, on average
  uint32_t chunk_min = 0;  // always allowed
  uint32_t chunk_max = 0;
  int64_t stage_us_max = 0;  // no more than chunk_min where a stage would take longer for a step
};

// How many rows of prompts the step may carry while no request decodes: as many as have all rows
// that are left through soonest, the fill and the drain of the pipeline included. A GPU takes
// little longer for 512 rows than for 128.
uint32_t ChunkForThroughput(const StepCosts& costs, const ThroughputQuery& query);

}  // namespace strata
