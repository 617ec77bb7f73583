#include "node/api/llama/llama_response.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/llama/llama_error.h"
#include "node/api/llama/llama_request.h"
#include "node/api/openai/openai_response.h"
#include "node/api/server_sent_events.h"
#include "transport/base/utf8.h"
#include "transport/base/version.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson IdsOf(const std::vector<wire::SampledToken>& tokens) {
  OrderedJson ids = OrderedJson::array();
  for (const wire::SampledToken& token : tokens) ids.push_back(token.token());
  return ids;
}

OrderedJson ProbabilityOf(int32_t id, const std::string& piece, float logprob) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return {{"id", id}, {"token", piece}, {"bytes", std::move(bytes)}, {"logprob", logprob}};
}

OrderedJson ProbabilitiesOf(const std::vector<wire::SampledToken>& tokens) {
  OrderedJson list = OrderedJson::array();
  for (const wire::SampledToken& token : tokens) {
    OrderedJson one = ProbabilityOf(token.token(), token.piece(), token.logprob());
    one["top_logprobs"] = OrderedJson::array();
    for (const wire::TokenLogprob& top : token.top()) {
      one["top_logprobs"].push_back(ProbabilityOf(top.token(), top.piece(), top.logprob()));
    }
    list.push_back(std::move(one));
  }
  return list;
}

OrderedJson RateOf(const char* name, uint64_t tokens, absl::Duration time) {
  const double ms = absl::ToDoubleMilliseconds(time);
  const double n = static_cast<double>(tokens);
  return {{absl::StrCat(name, "_n"), tokens},
          {absl::StrCat(name, "_ms"), ms},
          {absl::StrCat(name, "_per_token_ms"), tokens > 0 ? ms / n : 0},
          {absl::StrCat(name, "_per_second"), ms > 0 ? n * 1000 / ms : 0}};
}

// The time to the first token is the prompt's: its wait in the queue is part of it.
OrderedJson TimingsOf(const ApiUsage& usage) {
  const uint64_t read = usage.prompt_tokens - std::min(usage.cached_tokens, usage.prompt_tokens);
  OrderedJson timings = {{"cache_n", usage.cached_tokens}};
  timings.update(RateOf("prompt", read, usage.first_token));
  timings.update(RateOf("predicted", usage.completion_tokens, usage.total - usage.first_token));
  return timings;
}

// The request that has the slot, and its text, are not told.
OrderedJson SlotOf(const wire::ModelStatus& model, uint32_t id, bool is_processing) {
  return {{"id", id},
          {"id_task", is_processing ? static_cast<int64_t>(id) : -1},
          {"n_ctx", model.n_ctx()},
          {"speculative", false},
          {"is_processing", is_processing}};
}

}  // namespace

void LlamaWriter::Count(const ApiPiece& piece) {
  Choice& choice = choices_[piece.index];
  choice.tokens += piece.tokens.size();
  choice.has_new_line |= absl::StrContains(piece.text, '\n');
  if (piece.finish_reason.empty()) return;
  choice.finish_reason = piece.finish_reason;
  choice.stop_string = piece.stop_string;
}

std::string LlamaWriter::Final(size_t index, const ApiPiece* whole, const ApiUsage& usage) const {
  const Choice& choice = choices_[index];
  const bool is_only = choices_.size() == 1;  // then the usage is its own
  const bool is_full = choice.finish_reason == "length";
  OrderedJson json = {{"index", index}, {"content", ""}, {"tokens", OrderedJson::array()}};
  if (whole != nullptr) {
    json["content"] = whole->text;
    if (answer_.return_tokens) json["tokens"] = IdsOf(whole->tokens);
  }
  json["stop"] = true;
  json["model"] = answer_.model;
  json["tokens_predicted"] = is_only ? usage.completion_tokens : choice.tokens;
  json["generation_settings"] = OrderedJson::parse(answer_.settings_json);
  json["generation_settings"]["n_ctx"] = answer_.n_ctx;
  json["has_new_line"] = choice.has_new_line;
  json["stop_type"] = !choice.stop_string.empty() ? "word" : is_full ? "limit" : "eos";
  json["stopping_word"] = choice.stop_string;
  if (is_only) {
    json["tokens_evaluated"] = usage.prompt_tokens;
    json["tokens_cached"] = usage.cached_tokens;
    json["truncated"] = is_full && usage.prompt_tokens + usage.completion_tokens >= answer_.n_ctx;
    json["timings"] = TimingsOf(usage);
  }
  if (whole != nullptr && answer_.n_probs > 0) {
    json["completion_probabilities"] = ProbabilitiesOf(whole->tokens);
  }
  return JsonText(json);
}

HttpResponse LlamaWriter::Begin(const std::vector<ApiPiece>& /*firsts*/,
                                const ApiUsage& /*usage*/) {
  return EventStream();
}

std::string LlamaWriter::Progress(const ApiProgress& progress) {
  return ServerSentEvent(JsonText({{"index", progress.index},
                                   {"content", ""},
                                   {"tokens", OrderedJson::array()},
                                   {"stop", false},
                                   {"tokens_predicted", 0},
                                   {"tokens_evaluated", progress.prompt.prompt_tokens},
                                   {"prompt_progress", PromptProgressJson(progress)}}));
}

std::string LlamaWriter::Piece(const ApiPiece& piece) {
  Count(piece);
  if (piece.text.empty() && piece.tokens.empty()) return "";
  OrderedJson json = {{"index", piece.index},
                      {"content", piece.text},
                      {"tokens", IdsOf(piece.tokens)},
                      {"stop", false},
                      {"tokens_predicted", choices_[piece.index].tokens}};
  if (choices_.size() == 1) {
    json["tokens_evaluated"] = piece.usage.prompt_tokens;
    if (answer_.timings_in_pieces) json["timings"] = TimingsOf(piece.usage);
  }
  if (answer_.n_probs > 0) json["completion_probabilities"] = ProbabilitiesOf(piece.tokens);
  return ServerSentEvent(JsonText(json));
}

std::string LlamaWriter::End(const ApiUsage& usage) {
  std::string events;
  for (size_t i = 0; i < choices_.size(); ++i) events += ServerSentEvent(Final(i, nullptr, usage));
  return events;
}

std::string LlamaWriter::Failure(const absl::Status& status) {
  return ServerSentEvent(LlamaError(ErrorOf(status)));
}

HttpResponse LlamaWriter::Whole(const std::vector<ApiPiece>& choices, const ApiUsage& usage) {
  std::string body;
  for (size_t i = 0; i < choices.size(); ++i) {
    Count(choices[i]);
    absl::StrAppend(&body, i == 0 ? "" : ",", Final(i, &choices[i], usage));
  }
  return {.body = answer_.is_list ? absl::StrCat("[", body, "]") : body};
}

HttpResponse LlamaWriter::Error(const absl::Status& status) {
  return ErrorResponse(status, LlamaError);
}

std::string LlamaEmbeddingJson(const ApiEmbeddings& embeddings) {
  OrderedJson json = OrderedJson::array();
  for (const std::vector<float>& vector : embeddings.vectors) {
    json.push_back(
        {{"index", json.size()}, {"embedding", OrderedJson::array({FloatsJson(vector)})}});
  }
  return JsonText(json);
}

std::string LlamaSlotsJson(const wire::ModelStatus& model) {
  OrderedJson slots = OrderedJson::array();
  for (uint32_t i = 0; i < model.n_seqs(); ++i) {
    slots.push_back(SlotOf(model, i, /*is_processing=*/i < model.requests_running()));
  }
  return JsonText(slots);
}

std::string LlamaPropsJson(const wire::ModelStatus& model) {
  const std::string name = ValidUtf8(model.name());
  const std::string path = ValidUtf8(model.source().path());
  const auto defaults = ParseLlamaCompletion(R"({"prompt":"","seed":4294967294})");
  OrderedJson params = OrderedJson::parse(LlamaSettingsJson(*defaults));
  params["seed"] = 4294967295;  // random
  params["n_ctx"] = model.n_ctx();
  OrderedJson settings = SlotOf(model, /*id=*/0, /*is_processing=*/false);
  settings["params"] = std::move(params);
  return JsonText({{"default_generation_settings", std::move(settings)},
                   {"total_slots", model.n_seqs()},
                   {"model_alias", name},
                   {"model_path", path.substr(path.rfind('/') + 1)},  // not where it is
                   {"modalities", {{"vision", false}, {"audio", false}}},
                   {"endpoint_slots", true},
                   {"endpoint_props", false},  // they cannot be changed
                   {"endpoint_metrics", true},
                   {"is_sleeping", false},
                   {"build_info", absl::StrCat("strata-", LocalVersions().strata())},
                   {"chat_template", ValidUtf8(model.chat_template())},
                   {"bos_token", ValidUtf8(model.bos_text())},
                   {"eos_token", ValidUtf8(model.eos_text())}});
}

}  // namespace strata
