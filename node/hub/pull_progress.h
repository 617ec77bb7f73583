// Shows how a file is fetched: a line that is redrawn on a terminal, else a line at each tenth.
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "node/base/speed_meter.h"

namespace strata {

// "model.gguf  ████░░░░  40 %  1.2 GiB of 3.0 GiB  35.0 MB/s  0:52 left"; a speed of 0 is unknown.
std::string PullProgressText(absl::string_view label, uint64_t done, uint64_t total,
                             double bytes_per_s);

class PullProgress {
 public:
  PullProgress(std::FILE* out, bool terminal, std::string label);
  ~PullProgress();  // ends the line

  void Update(uint64_t done, uint64_t total);
  // A line for people, above the progress.
  void Note(absl::string_view note);

 private:
  void Print(uint64_t done, uint64_t total);

  std::FILE* const out_;
  const bool terminal_;
  const std::string label_;
  SpeedMeter speed_;
  uint64_t tenth_ = 0;
  bool drawn_ = false;
};

}  // namespace strata
