// Progress bars on a terminal, or one line for each finished stage if there is no terminal.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "node/base/speed_meter.h"
#include "transport/base/steady_time.h"

namespace strata {

// "11.3 MiB".
std::string BytesString(uint64_t bytes);

// One bar a row, redrawn in place, with its speed and the time left. Used by one thread at a time.
class ProgressBars {
 public:
  // `labels` are printed in front of the bars. `terminal` false: prints each row once, when done.
  ProgressBars(std::FILE* out, bool terminal, std::vector<std::string> labels);

  void Update(size_t row, uint64_t done, uint64_t total);
  // Shows all rows full.
  void Finish();

 private:
  struct Row {
    std::string label;
    uint64_t done = 0;
    uint64_t total = 0;
    int shown = -1;  // cells drawn
    SpeedMeter speed;
  };
  void Draw();
  void Print(const Row& row) const;

  std::FILE* const out_;
  const bool terminal_;
  std::vector<Row> rows_;
  bool drawn_ = false;
  SteadyTime drawn_at_;
};

}  // namespace strata
