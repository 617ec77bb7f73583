// `strata template`: the process in which chat templates run. They come in the files of strangers,
// and what reads them can be made to recurse, to loop and to fill the memory without end: this
// process is what dies of that. Started and watched by a node (template_pool.h); not for people.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace strata {

// Of one request: reading the template, unless it is known there, and making the prompt.
struct TemplateLimits {
  int64_t time_ms = 5'000;                       // of a processor
  uint64_t memory_bytes = 512ull * 1024 * 1024;  // more than the process has at first
};

// Its exit status when a template has passed a limit.
inline constexpr int kTemplateMemoryExit = 101;
inline constexpr int kTemplateTimeExit = 102;
// Of the stack that templates run on. What nests deeper crashes, which is the limit on depth.
inline constexpr uint64_t kTemplateStackBytes = 64ull * 1024 * 1024;

// Answers what comes over kChildSocket (template_frames.h) until nobody is at the other end.
// Blocks.
absl::Status RunTemplateProcess(const TemplateLimits& limits);

}  // namespace strata
