// libllama in this process: starts it once, finds its back ends and devices, and captures its log.
// Facts that libllama reports only in its log (why a load failed, how large a buffer became) are
// parsed from there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ggml-backend.h"

namespace strata {

// Starts libllama, finds the back ends and directs the log: warnings and errors to stderr, the rest
// nowhere. The first call does it, later ones do nothing. Any thread.
void StartEngine();

// The device that ggml lists under this name; nullptr for the CPU, which every model can use.
// kInvalidArgument when there is none, with the names there are. Calls StartEngine().
absl::StatusOr<ggml_backend_dev_t> FindDevice(absl::string_view name);

// Captures what libllama and ggml log on this thread while it lives; an outer capture gets nothing
// meanwhile.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // The last lines of errors, one after the other; empty when there were none.
  std::string errors() const;

  // Bytes of the caches for keys and values and of recurrent states.
  uint64_t CacheBytes() const;
  // The share of one sequence in caches that forget: windows and states.
  struct SlotSamplers {
    uint32_t window = 0;  // positions
    uint32_t n_seq_max = 1;
    uint32_t n_caches = 1;  // n_seq_max, where each has a cache of its own
  };
  uint64_t ForgettingBytes(const SlotSamplers& of) const;
  // Bytes of the buffers for intermediate results.
  uint64_t ComputeBytes() const;
  // Bytes of weights that were copied out of a mapped file, for example to be repacked.
  uint64_t UnmappedWeightBytes() const;
  // Bytes of weights in the host's memory, whatever the device.
  uint64_t HostWeightBytes() const;

  void Add(int level, absl::string_view text);  // for the log callback

 private:
  // Sum of the figures after `mark` in the matching lines, in bytes.
  uint64_t Sum(absl::string_view mark,
               absl::FunctionRef<bool(absl::string_view line)> wanted) const;

  LogCapture* const outer_;  // of this thread, or nullptr
  std::vector<std::string> errors_;
  std::vector<std::string> sizes_;  // lines with sizes
  std::string line_;                // incomplete
  int level_ = 0;
};

}  // namespace strata
