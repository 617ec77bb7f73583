// `strata template`: the process in which chat templates run. Templates come in untrusted files,
// and can make their interpreter recurse, loop and fill the memory without end: only this process
// dies of that. It can open no files and start no processes. Started and watched by a node
// (template_pool.h); not for people.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace strata {

// Limits of one request: parsing the template, unless the process has it, and rendering the prompt.
struct TemplateLimits {
  int64_t time_ms = 5'000;                       // processor time
  uint64_t memory_bytes = 512ull * 1024 * 1024;  // growth since the process' start
};

// The process' exit status when a template has exceeded a limit.
inline constexpr int kTemplateMemoryExit = 101;
inline constexpr int kTemplateTimeExit = 102;
// Size of the stack that templates run on. Deeper nesting crashes the process, which limits depth.
inline constexpr uint64_t kTemplateStackBytes = 64ull * 1024 * 1024;

// Serves requests over kChildSocket (template_frames.h) until the other end closes. Blocks.
absl::Status RunTemplateProcess(const TemplateLimits& limits);

}  // namespace strata
