#include "node/api/api_backend.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/models/model_match.h"
#include "coordinator/request/request_status.h"
#include "node/api/answer_grammar.h"
#include "node/api/infill_prompt.h"
#include "node/api/patient_responder.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

std::string SaltedScope(const std::string& scope, const std::string& salt) {
  if (salt.empty()) return scope;
  const std::string text = absl::StrCat("strata salted cache scope\n", scope, "\n", salt);
  std::string salted(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(),
         reinterpret_cast<uint8_t*>(salted.data()));
  return salted;
}

// The age up to which a list of the cluster's models is used.
constexpr absl::Duration kModelsAge = absl::Seconds(1);
// The age up to which a name is looked up among the files that nodes had then.
constexpr absl::Duration kKnownModelsAge = absl::Seconds(30);
// The same for a list that a client asks for.
constexpr absl::Duration kListedModelsAge = absl::Seconds(2);
// A model that a request has loaded stays so long without requests, unless they say otherwise.
constexpr absl::Duration kRequestedKeepAlive = absl::Minutes(5);
// An upper bound on a token's bytes, more than any vocabulary has: a prompt that exceeds the
// context is refused before a stage has spent its time on it.
constexpr size_t kTokenBytesMax = 512;

// Checks that a token which a request names exists. `n_vocab` 0: not known.
absl::Status CheckToken(const char* param, int32_t token, uint32_t n_vocab) {
  if (n_vocab == 0 || static_cast<uint32_t>(token) < n_vocab) return absl::OkStatus();
  return BadParam(param, absl::StrCat("there is no token ", token, "; the model has ", n_vocab));
}

absl::Status CheckTokens(const wire::SamplerSettings& sampler, uint32_t n_vocab) {
  absl::Status status;
  for (const wire::LogitBias& bias : sampler.logit_bias()) {
    if (status.ok()) status = CheckToken("logit_bias", bias.token(), n_vocab);
  }
  for (const int32_t token : sampler.stop_tokens()) {
    if (status.ok()) status = CheckToken("stop_token_ids", token, n_vocab);
  }
  return status;
}

ChatTemplate::Source TemplateOf(const wire::ModelStatus& model, bool with_tools) {
  const bool other = with_tools && !model.tools_chat_template().empty();
  return {.text = other ? model.tools_chat_template() : model.chat_template(),
          .bos = model.bos_text(),
          .eos = model.eos_text()};
}

absl::StatusOr<ApiEmbeddings> EmbeddingsOf(const absl::StatusOr<PromptBatch::Results>& results,
                                           std::optional<uint32_t> dimensions) {
  if (!results.ok()) return results.status();
  ApiEmbeddings embeddings = {.prompt_tokens = results->prompt_tokens};
  for (const wire::SampledToken& token : results->tokens) {
    const auto& all = token.embedding();
    if (all.empty()) return absl::UnavailableError("the cluster gave no embedding; try again");
    std::vector<float>& vector = embeddings.vectors.emplace_back(all.begin(), all.end());
    if (!dimensions) continue;
    if (*dimensions > vector.size()) {
      return BadParam("dimensions", absl::StrCat("the model has ", vector.size()));
    }
    vector.resize(*dimensions);
    double squares = 0;
    for (const float value : vector) squares += double{value} * value;
    if (squares == 0) continue;
    for (float& value : vector) value = static_cast<float>(value / std::sqrt(squares));
  }
  return embeddings;
}

// The words are Qwen3-Reranker's.
ApiRequest RankChat(const RankRequest& request, const std::string& document) {
  const std::string instruction =
      request.instruction.empty()
          ? "Given a web search query, retrieve relevant passages that answer the query"
          : request.instruction;
  return {.chat = true,
          .model = request.model,
          .messages = {{.role = "system",
                        .content = "Judge whether the Document meets the requirements based on the "
                                   "Query and the Instruct provided. Note that the answer can only "
                                   "be \"yes\" or \"no\"."},
                       {.role = "user",
                        .content = absl::StrCat("<Instruct>: ", instruction, "\n<Query>: ",
                                                request.query, "\n<Document>: ", document)}},
          .template_variables = R"({"enable_thinking":false})",
          .thought_tokens_max = 0};
}

absl::StatusOr<ApiScores> ScoresOf(const absl::StatusOr<PromptBatch::Results>& results) {
  if (!results.ok()) return results.status();
  ApiScores scores = {.prompt_tokens = results->prompt_tokens};
  for (const wire::SampledToken& token : results->tokens) {
    if (token.top_size() < 2) return absl::UnavailableError("the cluster gave no score; try again");
    const double yes_over_no = double{token.top(0).logprob()} - token.top(1).logprob();
    scores.scores.push_back(1 / (1 + std::exp(-yes_over_no)));
  }
  return scores;
}

class TokenListener final : public GenerationListener {
 public:
  TokenListener(SharedExchange exchange, ApiBackend::OnTokens then)
      : exchange_(std::move(exchange)), then_(std::move(then)) {}

  void OnStarted(const std::vector<int32_t>& prompt) override { tokens_ = prompt; }
  void OnToken(const wire::SampledToken&) override {}
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    status.ok() ? then_(tokens_) : exchange_->Fail(status);
  }

 private:
  const SharedExchange exchange_;
  const ApiBackend::OnTokens then_;
  std::vector<int32_t> tokens_;
};

}  // namespace

ApiBackend::ApiBackend(Gateway* gateway, TemplatePool::Options templates, ModelNaming naming)
    : gateway_(gateway),
      naming_(naming),
      counters_(std::make_shared<ApiCounters>()),
      template_check_(&templates_),
      templates_(std::move(templates)) {}

void ApiBackend::CountRefused() {
  ++counters_->requests;
  ++counters_->failed;
}

void ApiBackend::Refuse(const SharedExchange& exchange, const absl::Status& status) {
  CountRefused();
  exchange->Fail(status);
}

void ApiBackend::WithModels(Models which, const SharedExchange& exchange, OnModels then) {
  const bool with_known = which == Models::kAll && naming_.loads_known;
  gateway_->ListModels(absl::ZeroDuration(), [this, with_known, exchange, then = std::move(then)](
                                                 const absl::StatusOr<Gateway::Models>& models) {
    if (!models.ok()) return exchange->Fail(models.status());
    if (!with_known) return then(*models);
    gateway_->ListKnownModels(
        kListedModelsAge,
        [exchange, then, models](const absl::StatusOr<Gateway::KnownModels>& known) {
          if (!known.ok()) return then(*models);
          then(std::make_shared<const Gateway::ModelList>(ListedModels(**models, **known)));
        });
  });
}

void ApiBackend::CheckChats(const Gateway::ModelList& models, OnChats then) {
  std::vector<ChatTemplate::Source> sources;
  for (const wire::ModelStatus& model : models) {
    sources.push_back(TemplateOf(model, /*with_tools=*/false));
  }
  template_check_.Check(std::move(sources), std::move(then));
}

void ApiBackend::WithModel(const std::string& name, const ModelUse& use,
                           const SharedExchange& exchange, OnModel then) {
  FindListedModel(
      {.name = name,
       .use = use,
       .exchange = exchange,
       .then = [then = std::move(then)](const wire::ModelStatus& model, bool) { then(model); }});
}

void ApiBackend::FindListedModel(Wanted wanted) {
  const auto shared = std::make_shared<const Wanted>(std::move(wanted));
  gateway_->ListModels(kModelsAge, [this, shared](const absl::StatusOr<Gateway::Models>& models) {
    // Continue on a handler's thread: this one serves all calls that wait for a list.
    shared->exchange->responder->Run([this, shared, models] {
      if (!models.ok()) return shared->exchange->Fail(models.status());
      const auto model = FindModel(**models, shared->name);
      if (model.ok()) return UseListedModel(shared, **model, /*fresh=*/false);
      // The model may have been loaded since.
      FindAnyModel(shared, kKnownModelsAge);
    });
  });
}

void ApiBackend::FindAnyModel(const SharedWanted& wanted, absl::Duration known_age) {
  const auto find = [this, wanted, known_age](const Gateway::Models& models,
                                              const Gateway::KnownModels& known) {
    const auto found = FindModelOrFile(*models, *known, wanted->name, naming_);
    if (absl::IsNotFound(found.status()) && naming_.loads_known &&
        known_age > absl::ZeroDuration()) {
      return FindAnyModel(wanted, absl::ZeroDuration());  // a file may have come since
    }
    if (!found.ok()) return wanted->exchange->Fail(found.status());
    if (found->loaded != nullptr) return UseListedModel(wanted, *found->loaded, /*fresh=*/true);
    const wire::ModelStatus unloaded = UnloadedModel(*found->known);
    wanted->use.loads ? LoadKnownModel(wanted, unloaded) : wanted->then(unloaded, /*fresh=*/true);
  };
  gateway_->ListModels(absl::ZeroDuration(), [this, wanted, known_age,
                                              find](const absl::StatusOr<Gateway::Models>& models) {
    if (!models.ok()) return wanted->exchange->Fail(models.status());
    const auto go_on = [wanted, find, models](const absl::StatusOr<Gateway::KnownModels>& known) {
      wanted->exchange->responder->Run([find, models, known] {
        static const auto kNone = std::make_shared<const wire::ListKnownModelsResponse>();
        find(*models, known.ok() ? *known : kNone);
      });
    };
    if (!naming_.loads_known) return go_on(absl::UnavailableError("not asked for"));
    gateway_->ListKnownModels(known_age, go_on);
  });
}

void ApiBackend::UseListedModel(const SharedWanted& wanted, const wire::ModelStatus& model,
                                bool fresh) {
  const bool is_loading = model.state() == wire::ModelStatus::LOADING && model.stages_size() > 0;
  if (is_loading && wanted->use.loads && naming_.loads_known) {
    LoadKnownModel(wanted, model);
  } else {
    wanted->then(model, fresh);
  }
}

void ApiBackend::LoadKnownModel(const SharedWanted& wanted, const wire::ModelStatus& model) {
  const SharedExchange& exchange = wanted->exchange;
  const auto waiting = std::make_shared<PatientResponder>(  // shared with the load's callbacks
      exchange->responder, wanted->use.streams ? exchange->stream_form : nullptr, wanted->name);
  exchange->responder = waiting;
  wire::LoadModelRequest load;
  *load.mutable_source() = model.source();
  load.set_make_room(true);
  load.set_keep_alive_ms(
      wanted->use.keep_alive_ms.value_or(absl::ToInt64Milliseconds(kRequestedKeepAlive)));
  LoadQueue::Waiter waiter = {
      .on_progress = [waiting](const std::string& words) { waiting->Say(words); },
      .on_end =
          [wanted](const absl::StatusOr<wire::ModelStatus>& loaded) {
            wanted->exchange->responder->Run([wanted, loaded] {
              loaded.ok() ? wanted->then(*loaded, /*fresh=*/true)
                          : wanted->exchange->Fail(loaded.status());
            });
          }};
  waiting->OnGone(gateway_->Load(load, model.name(), std::move(waiter)));
}

void ApiBackend::Generate(const SharedExchange& exchange, ApiRequest request,
                          NewWriter new_writer) {
  Generate(exchange, std::make_shared<const ApiRequest>(std::move(request)), std::move(new_writer),
           /*again=*/naming_.loads_known);
}

void ApiBackend::Generate(const SharedExchange& exchange, const SharedRequest& request,
                          NewWriter new_writer, bool again) {
  Prepare(exchange, request,
          [this, exchange, request, new_writer = std::move(new_writer),
           again](CompletionSession::Options session) {
            if (again) {  // with a writer that is new, too
              session.when_gone = [this, exchange, request, new_writer] {
                Generate(exchange, request, new_writer, /*again=*/false);
              };
            }
            session.writer = new_writer({.name = session.model_name, .n_ctx = session.n_ctx});
            Start(exchange, std::move(session));
          });
}

void ApiBackend::Embed(const SharedExchange& exchange, EmbeddingRequest request,
                       OnEmbeddings then) {
  const auto embed = [this, exchange, inputs = std::move(request.inputs),
                      truncates = request.truncates, dimensions = request.dimensions,
                      keep_alive_ms = request.keep_alive_ms,
                      then = std::move(then)](const wire::ModelStatus& model) {
    ServedModel served = {.name = model.name(), .n_ctx = model.n_ctx()};
    PromptBatch::Options batch = {
        .request_id = exchange->http.id, .record = exchange->record, .model_name = model.name()};
    for (const ApiPrompt& input : inputs) {
      wire::GenerateRequest& one = batch.requests.emplace_back();
      one.set_model(absl::BytesToHexString(model.model_id()));
      one.set_client(exchange->http.client);
      one.set_cache_scope(exchange->cache_scope);
      one.set_prompt(input.text);
      one.mutable_tokens()->Assign(input.tokens.begin(), input.tokens.end());
      one.set_truncate_prompt(truncates);
      if (keep_alive_ms) one.set_keep_alive_ms(*keep_alive_ms);
      one.set_tokens_max(1);
      one.mutable_sampler()->set_pooling(wire::POOLING_OF_MODEL);
    }
    PromptBatch::Start(gateway_, std::move(batch), exchange->responder, counters_,
                       [exchange, dimensions, then, served = std::move(served)](
                           const absl::StatusOr<PromptBatch::Results>& results) {
                         const auto embeddings = EmbeddingsOf(results, dimensions);
                         embeddings.ok() ? then(served, *embeddings)
                                         : exchange->Fail(embeddings.status());
                       });
  };
  WithModel(request.model, {.loads = true, .keep_alive_ms = request.keep_alive_ms}, exchange,
            embed);
}

struct ApiBackend::Ranking {
  SharedExchange exchange;
  RankRequest request;
  OnScores then;
  std::vector<int32_t> answers;  // the tokens that begin "yes" and "no"
  PromptBatch::Options batch;
  ServedModel model;
};

void ApiBackend::Rank(const SharedExchange& exchange, RankRequest request, OnScores then) {
  Rank(std::make_shared<Ranking>(  // by the callbacks
      Ranking{.exchange = exchange, .request = std::move(request), .then = std::move(then)}));
}

void ApiBackend::Rank(const std::shared_ptr<Ranking>& ranking) {
  Ranking& r = *ranking;
  if (r.answers.size() < 2) {
    ApiRequest word = {.model = r.request.model,
                       .prompts = {{.text = r.answers.empty() ? "yes" : "no"}},
                       .no_special = true};
    Tokenize(r.exchange, std::move(word), [this, ranking](const std::vector<int32_t>& tokens) {
      ranking->answers.push_back(tokens.empty() ? -1 : tokens[0]);
      Rank(ranking);
    });
    return;
  }
  if (r.answers[0] < 0 || r.answers[0] == r.answers[1]) {
    r.exchange->Fail(501, "this model has no tokens that tell \"yes\" from \"no\"");
    return;
  }
  if (r.batch.requests.size() < r.request.documents.size()) {
    ApiRequest chat = RankChat(r.request, r.request.documents[r.batch.requests.size()]);
    Prepare(r.exchange, std::move(chat),
            [this, ranking](const CompletionSession::Options& session) {
              ranking->model = {.name = session.model_name, .n_ctx = session.n_ctx};
              wire::GenerateRequest& one = ranking->batch.requests.emplace_back();
              one.set_model(session.model_id);
              one.set_client(session.client);
              one.set_cache_scope(session.cache_scope);
              one.set_prompt(session.request.prompts[0].text);
              one.set_parse_special(session.parse_special);
              one.set_no_special(session.no_special);
              one.set_tokens_max(1);
              for (const int32_t answer : ranking->answers) {
                one.mutable_sampler()->add_logprob_tokens(answer);
              }
              Rank(ranking);
            });
    return;
  }
  r.batch.model_name = r.model.name;
  r.batch.request_id = r.exchange->http.id;
  r.batch.record = r.exchange->record;
  PromptBatch::Start(gateway_, std::move(r.batch), r.exchange->responder, counters_,
                     [ranking](const absl::StatusOr<PromptBatch::Results>& results) {
                       const auto scores = ScoresOf(results);
                       scores.ok() ? ranking->then(ranking->model, *scores)
                                   : ranking->exchange->Fail(scores.status());
                     });
}

void ApiBackend::Render(SharedExchange exchange, ApiRequest chat, OnPrompt then) {
  Prepare(std::move(exchange), std::move(chat),
          [then = std::move(then)](const CompletionSession::Options& session) {
            then(session.request.prompts[0].text);
          });
}

void ApiBackend::Tokenize(const SharedExchange& exchange, ApiRequest request, OnTokens then) {
  Prepare(exchange, std::move(request),
          [this, exchange, then = std::move(then)](const CompletionSession::Options& session) {
            // A generation of no token ends once its prompt's tokens are known.
            wire::GenerateRequest generate;
            generate.set_model(session.model_id);
            generate.set_id(session.request_id);
            generate.set_client(session.client);
            generate.set_prompt(session.request.prompts[0].text);
            generate.set_parse_special(session.parse_special);
            generate.set_no_special(session.no_special);
            gateway_->Generate(generate, std::make_shared<TokenListener>(exchange, then), {});
          });
}

void ApiBackend::Detokenize(const SharedExchange& exchange, const std::string& model,
                            std::vector<int32_t> tokens, OnText then) {
  const auto detokenize = [this, exchange, tokens = std::move(tokens),
                           then = std::move(then)](const wire::ModelStatus& named) {
    for (const int32_t token : tokens) {
      if (absl::Status status = CheckToken("tokens", token, named.n_vocab()); !status.ok()) {
        return exchange->Fail(status);
      }
    }
    wire::DetokenizeRequest request;
    request.mutable_tokens()->Assign(tokens.begin(), tokens.end());
    gateway_->Detokenize(
        named, std::move(request),
        [exchange, then](const absl::StatusOr<wire::DetokenizeResponse>& response) {
          response.ok() ? then(response->text()) : exchange->Fail(response.status());
        });
  };
  WithModel(model, {.loads = true}, exchange, detokenize);
}

void ApiBackend::KeepAlive(const SharedExchange& exchange, const wire::ModelStatus& model,
                           int64_t keep_alive_ms, std::function<void()> then) {
  // A generation of no token.
  wire::GenerateRequest generate;
  generate.set_model(absl::BytesToHexString(model.model_id()));
  generate.set_id(exchange->http.id);
  generate.set_client(exchange->http.client);
  generate.set_prompt(" ");
  generate.set_keep_alive_ms(keep_alive_ms);
  gateway_->Generate(
      generate,
      std::make_shared<TokenListener>(
          exchange, [then = std::move(then)](const std::vector<int32_t>&) { then(); }),
      {});
}

void ApiBackend::Prepare(SharedExchange exchange, ApiRequest request,
                         std::function<void(CompletionSession::Options)> then) {
  Prepare(std::move(exchange), std::make_shared<const ApiRequest>(std::move(request)),
          std::move(then));
}

void ApiBackend::Prepare(SharedExchange exchange, SharedRequest request,
                         std::function<void(CompletionSession::Options)> then) {
  const Call call = {
      .exchange = std::move(exchange), .request = std::move(request), .then = std::move(then)};
  FindListedModel({.name = call.request->model,
                   .use = {.loads = true,
                           .streams = call.request->stream,
                           .keep_alive_ms = call.request->keep_alive_ms},
                   .exchange = call.exchange,
                   .then = [this, call](const wire::ModelStatus& model, bool fresh) {
                     call.request->prediction.empty() ? Prepare(call, model, fresh)
                                                      : Predict(call, model, fresh);
                   }});
}

void ApiBackend::Predict(const Call& call, const wire::ModelStatus& model, bool fresh) {
  wire::TokenizeRequest tokenize;
  tokenize.set_text(call.request->prediction);
  gateway_->Tokenize(
      model, std::move(tokenize),
      [this, call, model, fresh](const absl::StatusOr<wire::TokenizeResponse>& response) {
        Call with = call;
        // Without it the answer takes longer, and is the same.
        if (response.ok()) {
          with.prediction.assign(response->tokens().begin(), response->tokens().end());
        }
        call.exchange->responder->Run(
            [this, with = std::move(with), model, fresh] { Prepare(with, model, fresh); });
      });
}

void ApiBackend::Prepare(const Call& call, const wire::ModelStatus& model, bool fresh) {
  if (absl::Status status = CheckTokens(call.request->sampler, model.n_vocab()); !status.ok()) {
    call.exchange->Fail(status);
    return;
  }
  CompletionSession::Options session;
  session.request = *call.request;
  session.request_id = call.exchange->http.id;
  session.record = call.exchange->record;
  session.client = call.exchange->http.client;
  session.cache_scope = SaltedScope(call.exchange->cache_scope, session.request.cache_salt);
  session.prediction = call.prediction;
  session.model_name = model.name();
  session.model_id = absl::BytesToHexString(model.model_id());
  session.tokens_max = session.request.tokens_max.value_or(model.n_ctx());
  // The prompt's come with the first token.
  if (session.request.sampler.prompt_logprobs() && session.tokens_max == 0) session.tokens_max = 1;
  session.n_ctx = model.n_ctx();
  session.parse_special = session.request.parse_special;
  session.no_special = session.request.no_special;
  if (session.request.infill) {
    absl::Status status = FillPrompts(model, &session.request);
    if (!status.ok()) return call.exchange->Fail(status);
    session.parse_special = true;
  }
  if (session.request.chat) {
    PrepareChat(call, model, fresh, std::move(session));
    return;
  }
  if (absl::Status status = Constrain({}, &session.request); !status.ok()) {
    call.exchange->Fail(status);
    return;
  }
  if (session.request.prompt_tokens_max) {
    // Shared with the callbacks.
    CutPrompts(call, model, std::make_shared<CompletionSession::Options>(std::move(session)), 0);
    return;
  }
  call.then(std::move(session));
}

void ApiBackend::CutPrompts(const Call& call, const wire::ModelStatus& model,
                            const std::shared_ptr<CompletionSession::Options>& session,
                            size_t next) {
  ApiRequest& request = session->request;
  const size_t room = std::max<size_t>(session->n_ctx, 1) - 1;
  const size_t keep = *request.prompt_tokens_max == 0 ? room : *request.prompt_tokens_max;
  for (; next < request.prompts.size(); ++next) {
    ApiPrompt& prompt = request.prompts[next];
    if (prompt.tokens.empty()) break;
    if (prompt.tokens.size() <= keep) continue;
    prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.end() - static_cast<ptrdiff_t>(keep));
  }
  if (next == request.prompts.size()) return call.then(std::move(*session));
  wire::TokenizeRequest tokenize;
  tokenize.set_text(std::exchange(request.prompts[next].text, {}));
  tokenize.set_add_special(!session->no_special);
  tokenize.set_parse_special(session->parse_special);
  gateway_->Tokenize(
      model, std::move(tokenize),
      [this, call, model, session, next](const absl::StatusOr<wire::TokenizeResponse>& response) {
        if (!response.ok()) return call.exchange->Fail(response.status());
        if (response->tokens().empty()) return call.exchange->Fail(BadParam("prompt", "is empty"));
        session->request.prompts[next].tokens.assign(response->tokens().begin(),
                                                     response->tokens().end());
        call.exchange->responder->Run(
            [this, call, model, session, next] { CutPrompts(call, model, session, next); });
      });
}

void ApiBackend::PrepareChat(const Call& call, const wire::ModelStatus& model, bool fresh,
                             CompletionSession::Options session) {
  ChatTemplate::Source source = TemplateOf(model, session.request.tools.offered());
  if (source.text.empty()) {
    absl::Status status =
        BadParam("model", absl::StrCat(model.name(), " has no chat template; use /v1/completions"));
    fresh ? call.exchange->Fail(status) : PrepareAgain(call, session.model_id, source, status);
    return;
  }
  TemplateRequest render = {
      .source = source,
      .messages = std::exchange(session.request.messages, {}),
      .tools = session.request.tools,
      .now = WallNow(),
      .options = {.ends_with_opening = session.request.ends_with_opening,
                  .continues_last = session.request.continues_last,
                  .variables = std::move(session.request.template_variables)}};
  TemplateTurns::Owner owner = {.model = session.model_id, .client = session.client};
  templates_.Render(
      std::move(owner), std::move(render),
      [this, call, source = std::move(source), session = std::move(session),
       fresh](auto prompt) mutable {
        if (!prompt.ok()) {
          fresh ? call.exchange->Fail(prompt.status())
                : PrepareAgain(call, session.model_id, source, prompt.status());
          return;
        }
        session.format = DecodeChatFormat(prompt->format);
        if (absl::Status status = Constrain(session.format, &session.request); !status.ok()) {
          call.exchange->Fail(status);
          return;
        }
        // Some templates open a thought though none is wanted.
        if (session.request.thought_tokens_max == 0 && !session.format.is_harmony &&
            session.format.thoughts.IsOpenIn(prompt->text)) {
          absl::StrAppend(&prompt->text, ThoughtEnding(session.format, /*may_call=*/true));
        }
        for (const ChatMessage& message : call.request->messages) {
          session.calls_before += message.calls.size();
        }
        session.request.prompts.push_back({.text = std::move(prompt->text)});
        session.parse_special = true;
        session.no_special = prompt->has_bos;
        call.then(std::move(session));
      });
}

void ApiBackend::PrepareAgain(const Call& call, const std::string& model_id,
                              const ChatTemplate::Source& failed, const absl::Status& status) {
  gateway_->ListModels(absl::ZeroDuration(), [this, call, model_id, failed, status](
                                                 const absl::StatusOr<Gateway::Models>& models) {
    call.exchange->responder->Run([this, call, model_id, failed, status, models] {
      if (!models.ok()) return call.exchange->Fail(status);
      const auto model = FindModel(**models, model_id);
      if (!model.ok() || TemplateOf(**model, call.request->tools.offered()).Key() == failed.Key()) {
        call.exchange->Fail(status);
        return;
      }
      Prepare(call, **model, /*fresh=*/true);
    });
  });
}

void ApiBackend::Start(const SharedExchange& exchange, CompletionSession::Options session) {
  const ApiRequest& request = session.request;
  const uint32_t n_ctx = session.n_ctx;
  uint64_t bytes = 0;
  for (const ApiPrompt& prompt : request.prompts) {
    if (prompt.text.size() / kTokenBytesMax > n_ctx || prompt.tokens.size() > n_ctx) {
      exchange->Fail(WithErrorCode(
          BadParam(request.chat ? "messages" : "prompt",
                   absl::StrCat("the prompt is too long: it exceeds the context window; "
                                "this model's maximum context length is ",
                                n_ctx, " tokens")),
          "context_length_exceeded"));
      return;
    }
    bytes += (prompt.text.size() + prompt.tokens.size() * sizeof(int32_t)) * request.n;
  }
  if (bytes > kApiPromptBytesMax) {
    exchange->Fail(BadParam("n", absl::StrCat("times the prompt is ", bytes >> 20, " MiB; at most ",
                                              kApiPromptBytesMax >> 20, " are taken at a time")));
    return;
  }
  CompletionSession::Start(gateway_, std::move(session), exchange->responder, counters_);
}

}  // namespace strata
