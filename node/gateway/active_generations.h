// The texts that this node writes or passes on for callers of wire.Coordinator.Generate, by the
// numbers by which wire.Coordinator.FinishGeneration names them. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/generation/generation_call.h"

namespace strata {

class ActiveGenerations {
 public:
  ActiveGenerations();

  // A text's number; never 0, and none that a node before this one gave out.
  uint64_t Open();
  // Once, and maybe after Finish(). Nothing where it is closed.
  void SetControl(uint64_t text, std::shared_ptr<GenerationHandle> control);
  // Finishes it, now or once it has its control; nothing where it is closed, or never was.
  void Finish(uint64_t text);
  void Close(uint64_t text);

 private:
  struct Text {
    std::shared_ptr<GenerationHandle> control;  // shared with the text's source
    bool finished = false;
  };

  absl::Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Text> texts_ ABSL_GUARDED_BY(mu_);  // at most one for each call
};

}  // namespace strata
