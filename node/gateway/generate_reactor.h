// A request as a call of wire.Coordinator.Generate: writes the events of its source to the caller.
// Nothing here blocks; gRPC's threads.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/generation/generation_call.h"
#include "grpcpp/support/server_callback.h"
#include "node/gateway/active_generations.h"
#include "proto/coordinator.grpc.pb.h"

namespace strata {

// Lives until both the request and the call have ended.
class GenerateReactor final : public grpc::ServerWriteReactor<wire::GenerateEvent> {
 public:
  // In `active` until the request has ended.
  explicit GenerateReactor(std::shared_ptr<ActiveGenerations> active);

  // The listener to the request. REQUIRES: is given to exactly one source.
  const std::shared_ptr<GenerationListener>& sink() const { return sink_; }
  // Cancels the request when the caller goes; FinishGeneration finishes it. REQUIRES: called once,
  // before the stream is given to gRPC.
  void SetControl(std::shared_ptr<GenerationHandle> control);
  // Holds `place` until the stream ends. REQUIRES: the stream is not given to gRPC yet.
  void Keep(std::shared_ptr<void> place) { place_ = std::move(place); }

 private:
  class Sink;
  ~GenerateReactor() override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Put(wire::GenerateEvent event);
  void End(const absl::Status& status);  // the source's last event
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unref();

  const std::shared_ptr<ActiveGenerations> active_;  // shared by all streams
  const uint64_t number_;
  const std::shared_ptr<GenerationListener> sink_;  // shared with the request's source
  std::shared_ptr<GenerationHandle> control_;       // shared with the request's source
  std::shared_ptr<void> place_;                     // not shared

  absl::Mutex mu_;
  int refs_ ABSL_GUARDED_BY(mu_) = 2;  // the source's, until End(); the call's, until OnDone()
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;      // the caller reads no more
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // no more events come
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish() of gRPC was called
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  wire::GenerateEvent event_ ABSL_GUARDED_BY(mu_);  // being written
  // At most one for each token of a request and each chunk of its prompt: a caller that reads
  // slowly delays no other.
  std::deque<wire::GenerateEvent> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
