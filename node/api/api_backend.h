// The cluster as all dialects of the API use it: its models, and generations of them.
//
//   dialect ─▶ ApiBackend::Generate ─▶ template_pool ─▶ answer_grammar ─▶ CompletionSession ─▶
//   Gateway
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "node/api/api_exchange.h"
#include "node/api/api_request.h"
#include "node/api/api_response.h"
#include "node/api/completion_session.h"
#include "node/api/model_names.h"
#include "node/api/prompt_batch.h"
#include "node/chat/template_check.h"
#include "node/chat/template_pool.h"
#include "node/gateway/gateway.h"

namespace strata {

// Thread-safe. Each call answers the exchange with an error where it cannot do what it says.
class ApiBackend {
 public:
  // REQUIRES: `gateway` outlives this.
  ApiBackend(Gateway* gateway, TemplatePool::Options templates, ModelNaming naming = {});

  // Calls `then` with the model that `name` means, on a handler's thread. One that is not loaded
  // and whose file a node has is loaded first, with `loads`, and the response waits for that; else
  // its status is as ListedModels() has it.
  struct ModelUse {
    bool loads = false;
    bool streams = false;                       // the response is a stream
    std::optional<int64_t> keep_alive_ms = {};  // as of a LoadModelRequest
  };
  using OnModel = std::function<void(const wire::ModelStatus&)>;
  void WithModel(const std::string& name, const ModelUse& use, const SharedExchange& exchange,
                 OnModel then);
  // Calls `then` with the models that are loaded, or with all that a request may name, as
  // ListedModels() says.
  using OnModels = std::function<void(const Gateway::Models&)>;
  enum class Models { kLoaded, kAll };
  void WithModels(Models which, const SharedExchange& exchange, OnModels then);
  // Calls `then` with the state of each model's chat template, in order.
  using OnChats = std::function<void(const std::vector<ChatSupport>&)>;
  void CheckChats(const Gateway::ModelList& models, OnChats then);

  // Generates, and answers by the writer of `new_writer`.
  struct ServedModel {
    std::string name;  // as it is shown
    uint32_t n_ctx = 0;
  };
  using NewWriter = std::function<std::unique_ptr<ResponseWriter>(const ServedModel& model)>;
  void Generate(const SharedExchange& exchange, ApiRequest request, NewWriter new_writer);

  // Calls `then` with the embeddings of the inputs, cut to the dimensions that are wanted.
  using OnEmbeddings = std::function<void(const ServedModel& model, const ApiEmbeddings&)>;
  void Embed(const SharedExchange& exchange, EmbeddingRequest request, OnEmbeddings then);

  // Calls `then` with each document's score: how likely the model's answer is "yes" and not "no",
  // as Qwen3-Reranker is asked (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B), in the model's
  // own chat template.
  using OnScores = std::function<void(const ServedModel& model, const ApiScores&)>;
  void Rank(const SharedExchange& exchange, RankRequest request, OnScores then);

  // The model stays for so long without requests from now on, as of wire::GenerateRequest.
  void KeepAlive(const SharedExchange& exchange, const wire::ModelStatus& model,
                 int64_t keep_alive_ms, std::function<void()> then);

  // Calls `then` with the chat as its template renders it.
  using OnPrompt = std::function<void(const std::string& prompt)>;
  void Render(SharedExchange exchange, ApiRequest chat, OnPrompt then);
  // Calls `then` with the tokens of the first prompt, or of the chat as its template renders it.
  using OnTokens = std::function<void(const std::vector<int32_t>& tokens)>;
  void Tokenize(const SharedExchange& exchange, ApiRequest request, OnTokens then);
  // Calls `then` with the text of the tokens.
  using OnText = std::function<void(const std::string& text)>;
  void Detokenize(const SharedExchange& exchange, const std::string& model,
                  std::vector<int32_t> tokens, OnText then);

  // Counts a request that was refused before Generate().
  void CountRefused();
  // And answers it with the error.
  void Refuse(const SharedExchange& exchange, const absl::Status& status);
  const ApiCounters& counters() const { return *counters_; }

 private:
  using SharedRequest = std::shared_ptr<const ApiRequest>;  // by callbacks that try it again
  struct Call {
    SharedExchange exchange;
    SharedRequest request;
    // Gets the session, which has its prompts, but no writer.
    std::function<void(CompletionSession::Options)> then;
    std::vector<int32_t> prediction;  // once its text is tokenized
  };
  using OnListedModel = std::function<void(const wire::ModelStatus&, bool fresh)>;

  struct Ranking;
  // The next of the two answers, then of the documents; then scores them.
  void Rank(const std::shared_ptr<Ranking>& ranking);
  // The use that a request has for the model that it names. Shared by its callbacks.
  struct Wanted {
    std::string name;
    ModelUse use;
    SharedExchange exchange;
    OnListedModel then;
  };
  using SharedWanted = std::shared_ptr<const Wanted>;
  void FindListedModel(Wanted wanted);
  // By the models that the cluster has now, and the files that nodes had at most so long ago.
  void FindAnyModel(const SharedWanted& wanted, absl::Duration known_age);
  void UseListedModel(const SharedWanted& wanted, const wire::ModelStatus& model, bool fresh);
  void LoadKnownModel(const SharedWanted& wanted, const wire::ModelStatus& model);
  // `again`: once more where the model was unloaded meanwhile.
  void Generate(const SharedExchange& exchange, const SharedRequest& request, NewWriter new_writer,
                bool again);
  void Prepare(SharedExchange exchange, ApiRequest request,
               std::function<void(CompletionSession::Options)> then);
  void Prepare(SharedExchange exchange, SharedRequest request,
               std::function<void(CompletionSession::Options)> then);
  // Tokenizes the prediction, if there is one.
  void Predict(const Call& call, const wire::ModelStatus& model, bool fresh);
  // `fresh`: the model's status is not an older list's.
  void Prepare(const Call& call, const wire::ModelStatus& model, bool fresh);
  void PrepareChat(const Call& call, const wire::ModelStatus& model, bool fresh,
                   CompletionSession::Options session);
  // Leaves the last tokens of each prompt from the `next` one on, then goes on with the call.
  void CutPrompts(const Call& call, const wire::ModelStatus& model,
                  const std::shared_ptr<CompletionSession::Options>& session, size_t next);
  // A chat template has failed that may have been replaced since.
  void PrepareAgain(const Call& call, const std::string& model_id,
                    const ChatTemplate::Source& failed, const absl::Status& status);
  void Start(const SharedExchange& exchange, CompletionSession::Options session);

  Gateway* const gateway_;
  const ModelNaming naming_;
  const std::shared_ptr<ApiCounters> counters_;  // shared with sessions in flight
  TemplateCheck template_check_;
  TemplatePool templates_;  // last: its threads use the others
};

}  // namespace strata
