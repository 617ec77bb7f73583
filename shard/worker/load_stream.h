// Streams the progress and the outcome of a load: the server side of Worker.LoadStage. The compute
// thread reports, gRPC's threads write; progress that comes faster than it can be written is
// skipped.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "proto/node.pb.h"
#include "shard/engine/stage.h"

namespace strata {

// Thread-safe. Deletes itself when both End() has been called and the call is done.
class LoadStream final : public grpc::ServerWriteReactor<wire::LoadStageEvent> {
 public:
  LoadStream() = default;

  // Returns false once the caller is gone: the load may stop.
  bool Progress(uint64_t bytes_done, uint64_t bytes_total);

  // Reports the loaded stage, or the error. Call exactly once, last.
  void End(absl::StatusOr<wire::StageInfo> outcome);

 private:
  ~LoadStream() override = default;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unref();

  absl::Mutex mu_;
  int refs_ ABSL_GUARDED_BY(mu_) = 2;  // the loader's, until End(); the call's, until OnDone()
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  wire::LoadStageEvent event_ ABSL_GUARDED_BY(mu_);  // being written
  std::optional<wire::LoadProgress> progress_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::StatusOr<wire::StageInfo>> outcome_ ABSL_GUARDED_BY(mu_);
};

// Opens the model, cuts the slice and loads it as the request says. Blocks; compute thread.
// kFailedPrecondition: the file is not, or no longer, the plan's; kDataLoss: the node's cached
// blocks are damaged; else as Slice::Make() and Stage::Load().
absl::StatusOr<std::unique_ptr<Stage>> LoadSpec(const wire::LoadStageRequest& request,
                                                LoadStream* stream);

// Gives a stage the store that the request names; a stage that cannot have one goes on without, and
// the log says why. Blocks on the disk; compute thread.
void OpenKvStore(const wire::LoadStageRequest& request, Stage* stage);

// The response of Worker.LoadStage for a loaded stage.
wire::StageInfo DescribeStage(const wire::StageSpec& spec, const Stage::Facts& facts,
                              const std::string& link_address);

}  // namespace strata
