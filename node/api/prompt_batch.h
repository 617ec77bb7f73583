// One request of several prompts, each of which gets one result, not a text: starts a generation
// for each through the gateway, a few at a time. Ends them when the client goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "node/api/completion_session.h"
#include "node/api/request_record.h"
#include "node/gateway/gateway.h"
#include "node/http/http_server.h"
#include "proto/frame.pb.h"
#include "proto/node.pb.h"

namespace strata {

// Prompts of one request that run at a time: the others wait here, and leave the queue to other
// clients.
inline constexpr size_t kPromptsAtATime = 8;

// Thread-safe; lives until its generations have ended.
class PromptBatch final : public std::enable_shared_from_this<PromptBatch> {
 public:
  struct Options {
    std::vector<wire::GenerateRequest> requests;  // at least one, each of one token, without an id
    std::string request_id;
    std::shared_ptr<RequestRecord> record;  // shared with the responder
    std::string model_name;
  };
  struct Results {
    std::vector<wire::SampledToken> tokens;  // by request
    uint64_t prompt_tokens = 0;
  };
  using Done = std::function<void(const absl::StatusOr<Results>&)>;

  // Calls `done` once, on a thread of the gateway, unless the client goes; an error is the first
  // generation's that failed. `counters`: shared with the API. `source` outlives the generations.
  static void Start(GenerationSource* source, Options options,
                    const std::shared_ptr<HttpResponder>& responder,
                    std::shared_ptr<ApiCounters> counters, Done done);
  ~PromptBatch();

 private:
  class Sink;

  PromptBatch(GenerationSource* source, Options options, std::shared_ptr<ApiCounters> counters,
              Done done);
  // The next prompt, if there is one.
  void Next();
  void OnEnd(size_t index, size_t prompt_tokens, wire::SampledToken token,
             const absl::Status& status);
  // Ends what runs, and answers with the error; kCancelled: nobody is there to answer.
  void Abort(const absl::Status& status);

  GenerationSource* const source_;
  Options options_;
  const std::shared_ptr<ApiCounters> counters_;

  absl::Mutex mu_;
  Done done_ ABSL_GUARDED_BY(mu_);  // null: called
  Results results_ ABSL_GUARDED_BY(mu_);
  struct Running {
    std::shared_ptr<GenerationHandle> handle;  // shared with the gateway
    bool has_ended = false;
  };
  std::vector<Running> running_ ABSL_GUARDED_BY(mu_);  // by request
  size_t begun_ ABSL_GUARDED_BY(mu_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
