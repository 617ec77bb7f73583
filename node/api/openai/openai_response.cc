#include "node/api/openai/openai_response.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "coordinator/models/model_state.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/openai/openai_error.h"
#include "node/api/server_sent_events.h"
#include "transport/base/utf8.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Token pieces may be parts of characters: "bytes" has them as they are.
OrderedJson BytesOf(const std::string& piece) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

// A token's text, or vLLM's form of its id.
std::string NameOf(const ApiAnswer& answer, int32_t token, const std::string& piece) {
  return answer.tokens_as_ids ? absl::StrCat("token_id:", token) : piece;
}

// The likeliest tokens, which come first; at most so many.
template <typename Token>
absl::Span<const wire::TokenLogprob* const> TopOf(const Token& token, size_t n) {
  const auto& top = token.top();
  return absl::MakeConstSpan(top.data(), std::min<size_t>(n, static_cast<size_t>(top.size())));
}

OrderedJson ChatLogprobs(const ApiAnswer& answer, const std::vector<wire::SampledToken>& tokens) {
  OrderedJson content = OrderedJson::array();
  for (const wire::SampledToken& token : tokens) {
    OrderedJson top = OrderedJson::array();
    for (const wire::TokenLogprob* other : TopOf(token, answer.top_logprobs)) {
      top.push_back({{"token", NameOf(answer, other->token(), other->piece())},
                     {"logprob", other->logprob()},
                     {"bytes", BytesOf(other->piece())}});
    }
    content.push_back({{"token", NameOf(answer, token.token(), token.piece())},
                       {"logprob", token.logprob()},
                       {"bytes", BytesOf(token.piece())},
                       {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson CompletionLogprobs(const ApiAnswer& answer, const ApiPiece& piece) {
  OrderedJson pieces = OrderedJson::array(), logprobs = OrderedJson::array(),
              tops = OrderedJson::array();
  // Keys must be UTF-8 already.
  const auto key_of = [](const std::string& piece) {
    return OrderedJson::parse(JsonText(piece)).get<std::string>();
  };
  for (const wire::SampledToken& token : piece.tokens) {
    const std::string name = NameOf(answer, token.token(), token.piece());
    pieces.push_back(name);
    if (piece.begins_prompt && pieces.size() == 1) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(token.logprob());
    OrderedJson top = OrderedJson::object();
    for (const wire::TokenLogprob* other : TopOf(token, answer.top_logprobs)) {
      const std::string key = key_of(NameOf(answer, other->token(), other->piece()));
      if (!top.contains(key)) top[key] = other->logprob();
    }
    // The sampled token, likely or not; it replaces one that reads alike.
    top[key_of(name)] = token.logprob();
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(pieces)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", piece.text_offsets}};
}

OrderedJson LogprobsOf(const ApiAnswer& answer, const ApiPiece& piece) {
  if (!piece.logprobs) return nullptr;
  return answer.chat ? ChatLogprobs(answer, piece.tokens) : CompletionLogprobs(answer, piece);
}

// vLLM's: of each place, by token id, the prompt's token and the likeliest ones.
OrderedJson PromptLogprobs(const ApiAnswer& answer, const std::vector<wire::PromptToken>& prompt) {
  OrderedJson list = OrderedJson::array();
  for (const wire::PromptToken& place : prompt) {
    OrderedJson at = OrderedJson::object();
    const auto add = [&at](const wire::TokenLogprob& token, OrderedJson rank) {
      OrderedJson& entry = at[absl::StrCat(token.token())];
      if (entry.is_null()) {
        entry = {{"logprob", token.logprob()},
                 {"rank", std::move(rank)},
                 {"decoded_token", token.piece()}};
      }
    };
    size_t rank = 0;
    for (const wire::TokenLogprob* token : TopOf(place, answer.prompt_top)) add(*token, ++rank);
    add(place.token(), nullptr);  // which rank it has is not known
    list.push_back(list.empty() ? OrderedJson() : std::move(at));
  }
  return list;
}

// vLLM's: the tokens of a choice, or of a piece of it, and of its prompt. A chat has the prompt's
// beside its choices.
void AddTokens(const ApiAnswer& answer, const ApiPiece& piece, OrderedJson* choice,
               OrderedJson* frame) {
  OrderedJson& with_prompt = answer.chat ? *frame : *choice;
  if (!piece.prompt_scores.empty() && !with_prompt.contains("prompt_logprobs")) {
    with_prompt["prompt_logprobs"] = PromptLogprobs(answer, piece.prompt_scores);
  }
  if (!answer.returns_tokens) return;
  if (!piece.prompt_tokens.empty()) with_prompt["prompt_token_ids"] = piece.prompt_tokens;
  OrderedJson ids = OrderedJson::array();
  for (const wire::SampledToken& token : piece.tokens) ids.push_back(token.token());
  (*choice)["token_ids"] = std::move(ids);
}

OrderedJson FinishOf(const ApiAnswer& answer, const ApiPiece& piece) {
  if (piece.finish_reason.empty()) return nullptr;
  if (answer.calls_functions && piece.finish_reason == "tool_calls") return "function_call";
  return piece.finish_reason;
}

// vLLM's: the stop string or token that ended the choice, null where the model did.
void AddStopReason(const ApiPiece& piece, OrderedJson* choice) {
  if (!piece.stop_string.empty()) {
    (*choice)["stop_reason"] = piece.stop_string;
  } else if (piece.stop_token) {
    (*choice)["stop_reason"] = *piece.stop_token;
  } else if (!piece.finish_reason.empty()) {
    (*choice)["stop_reason"] = nullptr;
  }
}

// As OpenAI streams them: a call's id and name are in its first piece.
OrderedJson CallsOf(const std::vector<ApiCallPiece>& calls, bool chunk) {
  OrderedJson list = OrderedJson::array();
  for (const ApiCallPiece& call : calls) {
    OrderedJson one = OrderedJson::object(), function = OrderedJson::object();
    if (chunk) one["index"] = call.index;
    if (!call.id.empty()) {
      one["id"] = call.id;
      one["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    one["function"] = std::move(function);
    list.push_back(std::move(one));
  }
  return list;
}

// Adds the calls, or the next pieces of them, to a message or a delta.
void AddCalls(const ApiAnswer& answer, const ApiPiece& piece, bool chunk, OrderedJson* message) {
  if (piece.calls.empty()) return;
  OrderedJson calls = CallsOf(piece.calls, chunk);
  if (answer.calls_functions) {
    (*message)["function_call"] = std::move(calls[0]["function"]);
  } else {
    (*message)["tool_calls"] = std::move(calls);
  }
}

OrderedJson UsageOf(const ApiUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.reasoning_tokens},
            {"accepted_prediction_tokens", usage.accepted_tokens},
            {"rejected_prediction_tokens", usage.draft_tokens - usage.accepted_tokens}}}};
}

// llama.cpp's.
OrderedJson TimingsOf(const ApiUsage& usage) {
  const double prompt_ms = absl::ToDoubleMilliseconds(usage.first_token);
  const double answer_ms = absl::ToDoubleMilliseconds(usage.total - usage.first_token);
  const uint64_t prompt_tokens =
      usage.prompt_tokens - std::min(usage.cached_tokens, usage.prompt_tokens);
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : 0; };
  const auto rate = [&](uint64_t tokens, double ms) {
    return ratio(1000 * static_cast<double>(tokens), ms);
  };
  return {
      {"cache_n", usage.cached_tokens},
      {"prompt_n", prompt_tokens},
      {"prompt_ms", prompt_ms},
      {"prompt_per_token_ms", ratio(prompt_ms, static_cast<double>(prompt_tokens))},
      {"prompt_per_second", rate(prompt_tokens, prompt_ms)},
      {"predicted_n", usage.completion_tokens},
      {"predicted_ms", answer_ms},
      {"predicted_per_token_ms", ratio(answer_ms, static_cast<double>(usage.completion_tokens))},
      {"predicted_per_second", rate(usage.completion_tokens, answer_ms)}};
}

OrderedJson Frame(const ApiAnswer& answer, bool chunk, OrderedJson choices) {
  const char* object = !answer.chat ? "text_completion"
                       : chunk      ? "chat.completion.chunk"
                                    : "chat.completion";
  return {{"id", answer.id},
          {"object", object},
          {"created", answer.created_s},
          {"model", answer.model},
          {"system_fingerprint", absl::StrCat("strata-", LocalVersions().strata())},
          {"choices", std::move(choices)}};
}

}  // namespace

OrderedJson PromptProgressJson(const ApiProgress& progress) {
  return {{"total", progress.prompt.prompt_tokens},
          {"cache", progress.prompt.cached_tokens},
          {"processed", progress.prompt.done_tokens},
          {"time_ms", absl::ToInt64Milliseconds(progress.time)}};
}

std::string PieceEvent(const ApiAnswer& answer, const ApiPiece& piece) {
  OrderedJson choice = {{"index", piece.index}};
  if (answer.chat) {
    OrderedJson delta = OrderedJson::object();
    if (piece.first) delta["role"] = "assistant";
    if (piece.first || !piece.text.empty()) delta["content"] = piece.text;
    if (!piece.thought.empty()) delta["reasoning_content"] = piece.thought;
    AddCalls(answer, piece, /*chunk=*/true, &delta);
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = piece.text;
  }
  choice["logprobs"] = LogprobsOf(answer, piece);
  choice["finish_reason"] = FinishOf(answer, piece);
  AddStopReason(piece, &choice);
  OrderedJson frame = Frame(answer, /*chunk=*/true, OrderedJson::array());
  AddTokens(answer, piece, &choice, &frame);
  frame["choices"].push_back(std::move(choice));
  if (answer.usage == ApiAnswer::Usage::kAtEnd) frame["usage"] = nullptr;
  if (answer.usage == ApiAnswer::Usage::kInPieces) frame["usage"] = UsageOf(piece.usage);
  if (answer.timings_in_pieces) frame["timings"] = TimingsOf(piece.usage);
  return ServerSentEvent(JsonText(frame));
}

std::string UsageEvent(const ApiAnswer& answer, const ApiUsage& usage) {
  OrderedJson frame = Frame(answer, /*chunk=*/true, OrderedJson::array());
  frame["usage"] = UsageOf(usage);
  frame["timings"] = TimingsOf(usage);
  return ServerSentEvent(JsonText(frame));
}

std::string WholeResponse(const ApiAnswer& answer, const std::vector<ApiPiece>& choices,
                          const ApiUsage& usage) {
  OrderedJson frame = Frame(answer, /*chunk=*/false, OrderedJson::array());
  for (const ApiPiece& piece : choices) {
    OrderedJson choice = {{"index", piece.index}};
    if (answer.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", piece.text}, {"refusal", nullptr}};
      if (!piece.thought.empty()) choice["message"]["reasoning_content"] = piece.thought;
      if (!piece.calls.empty()) {
        if (piece.text.empty()) choice["message"]["content"] = nullptr;
        AddCalls(answer, piece, /*chunk=*/false, &choice["message"]);
      }
    } else {
      choice["text"] = piece.text;
    }
    choice["logprobs"] = LogprobsOf(answer, piece);
    choice["finish_reason"] = FinishOf(answer, piece);
    AddStopReason(piece, &choice);
    AddTokens(answer, piece, &choice, &frame);
    frame["choices"].push_back(std::move(choice));
  }
  frame["usage"] = UsageOf(usage);
  frame["timings"] = TimingsOf(usage);
  return JsonText(frame);
}

HttpResponse OpenAiWriter::Begin(const std::vector<ApiPiece>& firsts, const ApiUsage& /*usage*/) {
  HttpResponse head = EventStream();
  for (const ApiPiece& piece : firsts) {
    if (answer_.chat || !piece.prompt_tokens.empty()) head.body += Piece(piece);
  }
  return head;
}

std::string OpenAiWriter::Progress(const ApiProgress& progress) {
  OrderedJson choice = {{"index", progress.index}};
  if (answer_.chat) {
    choice["delta"] = OrderedJson::object();
  } else {
    choice["text"] = "";
  }
  choice["finish_reason"] = nullptr;
  OrderedJson frame = Frame(answer_, /*chunk=*/true, OrderedJson::array({std::move(choice)}));
  frame["prompt_progress"] = PromptProgressJson(progress);
  return ServerSentEvent(JsonText(frame));
}

std::string OpenAiWriter::Piece(const ApiPiece& piece) { return PieceEvent(answer_, piece); }

std::string OpenAiWriter::End(const ApiUsage& usage) {
  const bool has_usage = answer_.usage != ApiAnswer::Usage::kNone;
  return absl::StrCat(has_usage ? UsageEvent(answer_, usage) : "", ServerSentEvent("[DONE]"));
}

std::string OpenAiWriter::Failure(const absl::Status& status) {
  return ServerSentEvent(OpenAiError(ErrorOf(status)));
}

HttpResponse OpenAiWriter::Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) {
  return {.body = WholeResponse(answer_, choices, usage)};
}

HttpResponse OpenAiWriter::Error(const absl::Status& status) {
  return ErrorResponse(status, OpenAiError);
}

namespace {

// The word that llama-server has for it where it loads models itself.
const char* LoadedWord(const wire::ModelStatus& model) {
  switch (model.state()) {
    case wire::ModelStatus::UNKNOWN:
      return "unloaded";
    case wire::ModelStatus::LOADING:
      return "loading";
    case wire::ModelStatus::FAILED:
      return "failed";
    default:
      return "loaded";
  }
}

OrderedJson ModelOf(const wire::ModelStatus& model, const ChatSupport& chat, int64_t now_s) {
  const bool serving = model.state() == wire::ModelStatus::SERVING;
  OrderedJson json = {{"id", model.name()},
                      {"object", "model"},
                      {"created", now_s - std::max<int64_t>(model.loaded_s_ago(), 0)},
                      {"owned_by", "strata"},
                      {"status", {{"value", LoadedWord(model)}}}};
  if (model.state() == wire::ModelStatus::UNKNOWN) {
    json["strata"] = {{"serving", false}, {"state", "unloaded"}, {"bytes", model.tensor_bytes()}};
    return json;
  }
  // The context under the names that clients of other servers read.
  json["context_length"] = model.n_ctx();
  json["max_model_len"] = model.n_ctx();
  json["meta"] = {{"n_ctx", model.n_ctx()}, {"n_vocab", model.n_vocab()}};
  json["strata"] = {{"model_id", absl::BytesToHexString(model.model_id())},
                    {"architecture", model.architecture()},
                    {"context_tokens", model.n_ctx()},
                    {"requests_at_a_time", model.n_seqs()},
                    {"exact", model.exact()},
                    {"serving", serving},
                    {"state", ModelStateText(model.state())},
                    {"chat", chat.status.ok()}};
  if (chat.status.ok()) {
    json["strata"]["tools"] = chat.tools_in_words ? "in words" : "as its template";
  } else {
    json["strata"]["chat_problem"] = ValidUtf8(chat.status.message());
  }
  if (model.status().code() != 0) {
    json["strata"]["problem"] = ValidUtf8(FromWire(model.status()).message());
  }
  return json;
}

}  // namespace

std::string ModelsJson(const std::vector<wire::ModelStatus>& models,
                       const std::vector<ChatSupport>& chat, int64_t now_s) {
  OrderedJson data = OrderedJson::array();
  for (size_t i = 0; i < models.size(); ++i) data.push_back(ModelOf(models[i], chat[i], now_s));
  return JsonText({{"object", "list"}, {"data", std::move(data)}});
}

std::string ModelJson(const wire::ModelStatus& model, const ChatSupport& chat, int64_t now_s) {
  return JsonText(ModelOf(model, chat, now_s));
}

}  // namespace strata
