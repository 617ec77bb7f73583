// The desired state in a file of the node's data folder, so that models are loaded again after all
// nodes were off. What it decides is in DesiredStore; this has the thread that waits for the disk.
//
// Thread-safe. Only the constructor and the destructor wait for the disk.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/models/desired_store.h"

namespace strata {

class DesiredStateFile {
 public:
  // Reads it, or sets it aside if it cannot be used.
  DesiredStateFile(std::string path, const std::string& owner);
  // Writes the newest desired state first, if the disk lacks it.
  ~DesiredStateFile();

  // The desired state that it had at first; null: none.
  const DesiredStatePtr& opened() const { return opened_; }
  // Called on a thread of this when the disk has a version, or cannot have it. REQUIRES: before
  // Keep().
  void OnSettled(std::function<void(const DesiredVersion&)> fn) { on_settled_ = std::move(fn); }
  void Keep(const DesiredStatePtr& desired, const std::string& owner);
  // For people, a line each.
  std::vector<std::string> Problems() const;

 private:
  void WriteChanges();  // thread

  const std::string path_;
  DesiredStatePtr opened_;  // constant after the constructor, as the next
  std::function<void(const DesiredVersion&)> on_settled_;
  mutable absl::Mutex mu_;
  DesiredStore store_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread writer_;  // started by the first Keep(), under mu_
};

}  // namespace strata
