// One completion request in flight: starts a generation for each choice through the gateway, and
// writes their output to the client, as a stream or at their end. Ends them at a stop string, or
// when the client goes.
//
// A thought whose budget is used, or behind which the answer has a grammar, is a generation of its
// own: a second one goes on from the prompt and the thought, whose KV is cached then.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "node/api/answer_check.h"
#include "node/api/api_request.h"
#include "node/api/api_response.h"
#include "node/api/request_record.h"
#include "node/api/stop_string_filter.h"
#include "node/chat/chat_format.h"
#include "node/chat/output_reader.h"
#include "node/gateway/gateway.h"
#include "node/http/http_server.h"

namespace strata {

struct ApiCounters {
  std::atomic<uint64_t> requests{0}, running{0}, failed{0}, client_gone{0}, tokens{0};

  // Time to first token, of each request that had one: how many, up to so many milliseconds.
  static constexpr std::array<int64_t, 10> kFirstTokenMs = {50,    100,   250,    500,    1'000,
                                                            2'500, 5'000, 10'000, 30'000, 60'000};
  std::array<std::atomic<uint64_t>, kFirstTokenMs.size() + 1> first_tokens = {};
  std::atomic<uint64_t> first_token_us{0};  // of all of them
  void CountFirstToken(absl::Duration after);
};

// Thread-safe; lives until its generations have ended.
class CompletionSession final : public std::enable_shared_from_this<CompletionSession> {
 public:
  struct Options {
    ApiRequest request;  // its prompts are the final ones
    std::unique_ptr<ResponseWriter> writer;
    std::string request_id;
    std::shared_ptr<RequestRecord> record;  // shared with the responder
    std::string client;
    std::string cache_scope;
    std::string model_name;
    std::string model_id;  // in hex
    uint32_t n_ctx = 0;    // of the model
    uint32_t tokens_max = 0;
    ChatFormat format;                // of a chat
    size_t calls_before = 0;          // in its messages
    std::vector<int32_t> prediction;  // tokens that the output is expected to repeat
    bool parse_special = false;       // of the prompts
    bool no_special = false;
    // Called on a handler's thread instead of an answer, where the model was unloaded before it
    // began to generate; null: that is an error as others.
    std::function<void()> when_gone;
  };
  // `counters`: shared with the API. `source` outlives the generations.
  static void Start(GenerationSource* source, Options options,
                    std::shared_ptr<HttpResponder> responder,
                    std::shared_ptr<ApiCounters> counters);
  ~CompletionSession();

 private:
  class Sink;
  struct Choice {
    std::optional<StopStringFilter> filter;
    std::unique_ptr<OutputReader> reader;  // of a chat
    std::optional<AnswerCheck> check;      // where no grammar keeps what is strict
    // While the model may think and something is to be done behind it: the output so far.
    bool may_think = false;
    std::string thinking;
    uint32_t thought_tokens = 0;
    std::optional<std::string> next_prompt;   // the generation is ended, and goes on from here
    uint32_t generation = 0;                  // 1: that of the answer behind a thought's
    double logprob = 0;                       // sum over all its tokens
    ApiPiece piece;                           // not sent yet; without a stream, all of it
    CharacterCount characters;                // with logprobs: of the text, up to the last token
    std::vector<wire::SampledToken> pending;  // with logprobs: tokens not shown yet
    size_t tokens_shown = 0;
    bool started = false;
    bool has_prompt_scores = false;
    bool ended = false;
    uint32_t tokens = 0;
    std::shared_ptr<GenerationHandle> control;  // until the generation has ended

    // At a stop string, or once all tool calls are complete.
    bool complete() const { return filter->stopped() || (reader != nullptr && reader->done()); }
  };

  CompletionSession(GenerationSource* source, Options options,
                    std::shared_ptr<HttpResponder> responder,
                    std::shared_ptr<ApiCounters> counters);
  void Run();
  // Starts the choice's generation. Without mu_.
  void Generate(size_t index, uint32_t generation, const wire::GenerateRequest& request);
  // Of all choices, but for their prompts.
  wire::GenerateRequest NewRequest() const;

  void OnStarted(size_t index, const std::vector<int32_t>& prompt);
  void OnProgress(size_t index, const PromptProgress& progress);
  void OnToken(size_t index, const wire::SampledToken& token);
  void OnEnd(size_t index, const absl::Status& status, FinishReason reason,
             const GenerationUsage& usage);
  // Of the choice's first generation.
  void CountCached(size_t index, uint32_t cached) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnClientGone();

  using Controls = std::vector<std::shared_ptr<GenerationHandle>>;
  enum class Last { kNo, kEnded, kCut };
  bool has_tokens() const { return options_.request.logprobs || options_.request.returns_tokens; }
  // With its times.
  ApiUsage UsageNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StopStringFilter::Options FilterOptions() const;
  std::unique_ptr<OutputReader> NewReader(size_t index, bool begins_answer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The prompt of the choice, which came with its first token.
  void EchoTokens(Choice* choice, const wire::SampledToken& token)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  OutputPiece ReadPiece(Choice* choice, std::string text, Last last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts a thought's tokens; sets `next_prompt` where it has to end, or has ended.
  void FollowThought(size_t index, absl::string_view piece, OutputPiece* read)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets `next_prompt`; `ends_it`: the thought is cut where it is, and ended as the template would.
  void GoOnBehindThought(size_t index, bool ends_it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The request that goes on behind the thought.
  wire::GenerateRequest AnswerRequest(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<ApiPiece> BestChoices() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string NewCallId(const ToolPiece::Call& call) const;
  void Append(Choice* choice, OutputPiece next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of a stream; before its head, they wait for it.
  void WriteEvents(const std::string& events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(Choice* choice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the generations that the caller cancels once it has released the lock.
  Controls Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Controls RunningControls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  GenerationSource* const source_;
  absl::Mutex mu_;
  const std::unique_ptr<ResponseWriter> writer_ ABSL_PT_GUARDED_BY(mu_);
  const Options options_;
  const std::shared_ptr<HttpResponder> responder_;    // shared with the connection
  const std::shared_ptr<ApiCounters> counters_;       // shared with the API
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mu_);  // prompts × n, those of a prompt together
  ApiUsage usage_ ABSL_GUARDED_BY(mu_);
  // Of each prompt: one of its choices feeds it, and the others take it from that one's cache.
  std::map<size_t, std::optional<uint32_t>> cached_ ABSL_GUARDED_BY(mu_);
  size_t started_ ABSL_GUARDED_BY(mu_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  bool begun_ ABSL_GUARDED_BY(mu_) = false;   // the stream has its head
  bool over_ ABSL_GUARDED_BY(mu_) = false;    // nothing more is written to the client
  std::string pending_ ABSL_GUARDED_BY(mu_);  // events before its head: a few tokens
  std::string outcome_ ABSL_GUARDED_BY(mu_) = "unanswered";
  std::string error_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Duration> first_token_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
