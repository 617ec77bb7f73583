// The requests that this node runs or forwards for callers of wire.Coordinator.Generate, by the
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
  // Numbers begin behind `last`: at a random place, so that none is one of an earlier process.
  ActiveGenerations();
  explicit ActiveGenerations(uint64_t last) : last_(last) {}

  // Adds a request and returns its number; never 0.
  uint64_t Open();
  // Once per request, and maybe after Finish(). No effect when the request is closed.
  void SetControl(uint64_t number, std::shared_ptr<GenerationHandle> control);
  // Finishes the request, now or once it has its control; no effect when it is closed or unknown.
  void Finish(uint64_t number);
  void Close(uint64_t number);

 private:
  struct Entry {
    std::shared_ptr<GenerationHandle> control;  // shared with the request's source
    bool finished = false;
  };

  absl::Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Entry> requests_ ABSL_GUARDED_BY(mu_);  // at most one for each call
};

}  // namespace strata
