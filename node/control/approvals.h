// Approvals of new nodes that wait for a person, who sees a code here and there. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace strata {

class Approvals {
 public:
  // A new approval's id. Its caller ends it with End().
  std::string Begin();
  void End(const std::string& id);
  // REQUIRES: between Begin() and End(). Blocks until Answer(), which it returns; false after
  // kPairingUs, which no pairing lasts.
  bool Wait(const std::string& id);
  // The first answer counts. kNotFound: no such approval waits.
  absl::Status Answer(absl::string_view id, bool is_same);

 private:
  absl::Mutex mu_;
  std::map<std::string, std::optional<bool>, std::less<>> answers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
