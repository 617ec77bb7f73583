// A text as a call of wire.Coordinator.Generate: what its source says is written to the caller.
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

// Lives until both the text and the call have ended.
class GenerateReactor final : public grpc::ServerWriteReactor<wire::GenerateEvent> {
 public:
  // Among `texts` until the text has ended.
  explicit GenerateReactor(std::shared_ptr<ActiveGenerations> texts);

  // Who hears of the text. To be given to exactly one source.
  const std::shared_ptr<GenerationSink>& sink() const { return sink_; }
  // When the caller goes, the text is cancelled; FinishGeneration finishes it. Once, before the
  // stream is given to gRPC.
  void SetControl(std::shared_ptr<GenerationHandle> control);
  // Let go of when the stream goes. Before it is given to gRPC.
  void Keep(std::shared_ptr<void> place) { place_ = std::move(place); }

 private:
  class Sink;
  ~GenerateReactor() override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Put(wire::GenerateEvent event);
  void End(const absl::Status& status);  // the source's last word
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unref();

  const std::shared_ptr<ActiveGenerations> texts_;  // shared by all streams
  const uint64_t number_;
  const std::shared_ptr<GenerationSink> sink_;  // shared with the text's source
  std::shared_ptr<GenerationHandle> control_;   // shared with the text's source
  std::shared_ptr<void> place_;                 // shared with nobody

  absl::Mutex mu_;
  int refs_ ABSL_GUARDED_BY(mu_) = 2;  // the source's, until End(); the call's, until OnDone()
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;      // nobody reads any more
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // no more events come
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // gRPC has been told
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  wire::GenerateEvent event_ ABSL_GUARDED_BY(mu_);  // being written
  // At most one for each token of a text: a caller that reads slowly delays nobody else.
  std::deque<wire::GenerateEvent> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
