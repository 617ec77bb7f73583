// Self-test results of stages (shard/engine/self_test.h) that this node knows: of its own stages,
// and of all stages that it coordinated. Kept in a file of the data folder, so that they outlive
// this process and the node that coordinated. A damaged file counts as none.
//
// Thread-safe. Only the constructor and the destructor wait for the disk.
#pragma once

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "proto/node.pb.h"

namespace strata {

// Most results that are kept, and their bytes in the file; the oldest are dropped.
inline constexpr size_t kSelfTestsMax = 512;
inline constexpr size_t kSelfTestsBytesMax = 768 << 10;

class SelfTestFile {
 public:
  // `path` empty: the results do not outlive this object.
  explicit SelfTestFile(std::string path);
  ~SelfTestFile();

  // Replaces an earlier result of the same layers on the same device. A result without points is
  // not kept.
  void Keep(const wire::SelfTest& test);

  std::vector<wire::SelfTest> Of(absl::string_view model_id) const;

 private:
  void Read();
  void WriteChanges();  // thread

  const std::string path_;
  mutable absl::Mutex mu_;
  wire::SelfTestList tests_ ABSL_GUARDED_BY(mu_);  // the oldest first
  bool changed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread writer_;  // started by the first Keep(), under mu_
};

}  // namespace strata
