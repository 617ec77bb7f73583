// The desired state (coordinator/membership/membership.h) on a node's disk: the form of the file,
// which files count, and what is to be written when. A state machine without I/O, thread
// or clock; DesiredStateFile carries it out, and tests/sim on a simulated disk. Not thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/membership/membership_types.h"

namespace strata {

// The file's bytes. `owner`: the node, its cluster and the cluster's key, on one line.
std::string FormatDesiredState(const DesiredState& desired, absl::string_view owner);
// kDataLoss: damaged, or of a newer format; kFailedPrecondition: of another owner.
absl::StatusOr<DesiredState> ParseDesiredState(absl::string_view bytes, absl::string_view owner);

class DesiredStore {
 public:
  // The desired state that the disk has for `owner`, when the node starts; null: none. `file`: its
  // bytes, or why they cannot be read; kNotFound: there is none. An error: that file is to be set
  // aside, and the node goes on without it.
  absl::StatusOr<DesiredStatePtr> Open(const absl::StatusOr<std::string>& file,
                                       const std::string& owner);
  // The file was set aside as `name`, or could not be.
  void OnSetAside(const absl::Status& why, const absl::StatusOr<std::string>& name);

  // The newest that the disk is to have.
  void Keep(const DesiredStatePtr& desired, const std::string& owner);
  // It differs from what was written, and nothing is being written. One write at a time:
  bool is_due() const { return !writing_ && wanted_ != tried_; }
  std::string BeginWrite();
  void EndWrite(const absl::Status& status);
  // The last write failed: it is to be tried again later.
  bool has_failed() const { return !write_problem_.empty(); }
  void TryAgain() { tried_ = {}; }

  // The version that the disk has, or cannot have.
  const DesiredVersion& settled() const { return settled_; }
  // For people, a line each; empty: there is none.
  const std::string& problem() const { return problem_; }
  const std::string& write_problem() const { return write_problem_; }

 private:
  struct Content {
    DesiredStatePtr desired;
    std::string owner;
    friend bool operator==(const Content&, const Content&) = default;
  };
  Content wanted_, tried_;
  bool writing_ = false;
  DesiredVersion settled_;
  std::string problem_, write_problem_;
};

}  // namespace strata
