// Texts as calls of wire.Coordinator.GenerateText: written by this node's coordinator, or passed on
// from the one that another node has. Nothing here blocks; gRPC's threads.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/server_callback.h"
#include "node/text_call.h"
#include "proto/coordinator.grpc.pb.h"

namespace strata {

// Lives until both the text and the call have ended. One of call(), Forward() and Refuse() is used,
// once.
class TextStream final : public grpc::ServerWriteReactor<wire::GenerateTextEvent> {
 public:
  TextStream();

  // The text that this call is about; when its caller goes, it is cancelled.
  const std::shared_ptr<TextCall>& call() const { return call_; }
  // Another node writes it. `context` ends with the call that it carries on.
  void Forward(std::unique_ptr<wire::Coordinator::Stub> stub,
               std::shared_ptr<grpc::ClientContext> context,
               const wire::GenerateTextRequest& request);
  void Refuse(const absl::Status& status);

 private:
  class Sink;
  class Reader;
  ~TextStream() override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Put(wire::GenerateTextEvent event);
  void End(const absl::Status& status);  // the source's last word
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unref();

  const std::shared_ptr<TextCall> call_;  // shared with the text's server
  std::unique_ptr<Reader> reader_;        // Forward()

  absl::Mutex mu_;
  int refs_ ABSL_GUARDED_BY(mu_) = 2;  // the source's, until End(); the call's, until OnDone()
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;      // nobody reads any more
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // no more events come
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // gRPC has been told
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  wire::GenerateTextEvent event_ ABSL_GUARDED_BY(mu_);  // being written
  // At most one for each token of a text: a caller that reads slowly delays nobody else.
  std::deque<wire::GenerateTextEvent> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
