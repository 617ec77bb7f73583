// One request for embeddings in flight: starts a generation for each input through the gateway, a few at
// a time, and collects the vectors. Ends them when the client goes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "node/api/api_request.h"
#include "node/api/completion_session.h"
#include "node/api/request_record.h"
#include "node/gateway/gateway.h"
#include "node/http/http_server.h"

namespace strata {

// Inputs of one request that run at a time: the others wait here, and leave the queue to other clients.
inline constexpr size_t kEmbeddingsAtATime = 8;

// Thread-safe; lives until its generations have ended.
class EmbeddingSession final : public std::enable_shared_from_this<EmbeddingSession> {
 public:
  struct Options {
    std::vector<ApiPrompt> inputs;  // at least one
    std::string request_id;
    std::shared_ptr<RequestRecord> record;  // shared with the responder
    std::string client;
    std::string model_name;
    std::string model_id;  // in hex
  };
  struct Embeddings {
    std::vector<std::vector<float>> vectors;  // of each input, of length 1
    uint64_t prompt_tokens = 0;
  };
  using Done = std::function<void(absl::StatusOr<Embeddings>)>;

  // Calls `done` once, on a thread of the gateway, unless the client goes. `counters`: shared with the
  // API. `source` outlives the generations.
  static void Start(GenerationSource* source, Options options,
                    const std::shared_ptr<HttpResponder>& responder,
                    std::shared_ptr<ApiCounters> counters, Done done);
  ~EmbeddingSession();

 private:
  class Sink;

  EmbeddingSession(GenerationSource* source, Options options, std::shared_ptr<ApiCounters> counters,
                   Done done);
  // The next input, if there is one.
  void Next();
  void OnEnd(size_t index, size_t prompt_tokens, std::vector<float> vector,
             const absl::Status& status);
  // Ends what runs, and answers with the error; kCancelled: nobody is there to answer.
  void Abort(const absl::Status& status);

  GenerationSource* const source_;
  const Options options_;
  const std::shared_ptr<ApiCounters> counters_;

  absl::Mutex mu_;
  Done done_ ABSL_GUARDED_BY(mu_);  // null: called
  Embeddings embeddings_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<GenerationHandle>> running_
      ABSL_GUARDED_BY(mu_);  // by input; shared with the gateway
  size_t begun_ ABSL_GUARDED_BY(mu_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
