// Tokenizes prompts on the node that holds a model's first stage: a few at a time, while the others
// wait here, so that a burst of prompts is neither refused by the node nor delays its steps.
//
// Thread-safe; nothing blocks. Always made by make_shared: calls in flight share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/request/fair_queue.h"
#include "proto/node.pb.h"

namespace strata {

class RemoteTokenizer final : public std::enable_shared_from_this<RemoteTokenizer> {
 public:
  struct Options {
    size_t in_flight_max = 8;
    size_t waiting_max = 1024;
  };
  // REQUIRES: `node` outlives every call, say because `done` holds it.
  RemoteTokenizer(NodeClient* node, Options options)
      : node_(node), options_(options), queue_(options.waiting_max) {}

  // `done` is called once, on this thread or one of gRPC's. kResourceExhausted: the queue is
  // full (RetryAfterMs), maybe this client's part (IsClientLimit); kCancelled; else the node's
  // response. The function returned cancels: any thread, any number of times, also after the end.
  struct Job {
    wire::TokenizeRequest request;
    std::string client;
    NodeClient::Tokenized done;
  };
  NodeClient::CancelCall Tokenize(Job job);

  size_t size() const;  // jobs that wait or are in flight

 private:
  void StartNext();
  void OnDone(uint64_t id, absl::StatusOr<wire::TokenizeResponse> tokens);
  void Cancel(uint64_t id);

  NodeClient* const node_;
  const Options options_;

  struct InFlightCall {
    std::string client;
    NodeClient::Tokenized done;
    NodeClient::CancelCall cancel;  // empty: it is just being started
    bool cancelled = false;
  };
  mutable absl::Mutex mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  FairQueue queue_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Job> waiting_ ABSL_GUARDED_BY(mu_);             // in queue_
  std::map<uint64_t, InFlightCall> in_flight_ ABSL_GUARDED_BY(mu_);  // at most in_flight_max
};

}  // namespace strata
