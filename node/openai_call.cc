#include "node/openai_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "node/openai_error.h"

namespace strata {

void ApiCounters::CountFirstToken(absl::Duration after) {
  const auto limit = std::lower_bound(kFirstTokenMs.begin(), kFirstTokenMs.end(),
                                      absl::ToInt64Milliseconds(after));
  ++first_tokens[static_cast<size_t>(limit - kFirstTokenMs.begin())];
  first_token_us += static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Microseconds(after)));
}

class ApiCall::Sink final : public TextSink {
 public:
  Sink(std::shared_ptr<ApiCall> call, size_t index) : call_(std::move(call)), index_(index) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    call_->OnStarted(index_, prompt.size());
  }
  void OnToken(const wire::SampledToken& token) override { call_->OnToken(index_, token); }
  void OnEnd(absl::Status status, FinishReason reason, const TextUsage& usage) override {
    call_->OnEnd(index_, status, reason, usage);
  }

 private:
  const std::shared_ptr<ApiCall> call_;  // shared with the other texts' sinks
  const size_t index_;
};

void ApiCall::Start(TextSource* source, Options options, std::shared_ptr<HttpResponder> responder,
                    std::shared_ptr<ApiCounters> counters) {
  std::shared_ptr<ApiCall> call(
      new ApiCall(std::move(options), std::move(responder), std::move(counters)));
  call->Run(source);
}

ApiCall::ApiCall(Options options, std::shared_ptr<HttpResponder> responder,
                 std::shared_ptr<ApiCounters> counters)
    : options_(std::move(options)),
      responder_(std::move(responder)),
      counters_(std::move(counters)) {
  ++counters_->requests;
  ++counters_->running;
  const size_t texts = options_.request.prompts.size() * options_.request.n;
  for (size_t i = 0; i < texts; ++i) {
    Choice& choice = choices_.emplace_back(options_.request.stops);
    choice.piece.index = static_cast<uint32_t>(i);
    choice.piece.first = true;
    choice.piece.logprobs = options_.request.logprobs;
  }
}

ApiCall::~ApiCall() {
  --counters_->running;
  counters_->tokens += usage_.completion_tokens;
  options_.record->SetTexts({.model = options_.answer.model,
                             .texts = choices_.size(),
                             .prompt_tokens = usage_.prompt_tokens,
                             .cached_tokens = usage_.cached_tokens,
                             .tokens = usage_.completion_tokens,
                             .first_token = first_token_,
                             .outcome = outcome_,
                             .error = error_});
}

void ApiCall::Run(TextSource* source) {
  responder_->OnGone([weak = weak_from_this()] {
    if (const auto call = weak.lock()) call->OnClientGone();
  });
  const ApiRequest& asked = options_.request;
  wire::GenerateTextRequest request;
  request.set_model(options_.model_id);
  request.set_tokens_max(options_.tokens_max);
  request.set_client(options_.client);
  request.set_parse_special(options_.parse_special);
  request.set_no_special(options_.no_special);
  request.set_shift_context(asked.shift_context);
  request.set_keep_tokens(asked.keep_tokens);
  *request.mutable_sampler() = asked.sampler;
  const size_t texts = asked.prompts.size() * asked.n;
  for (size_t i = 0; i < texts; ++i) {
    const ApiPrompt& prompt = asked.prompts[i / asked.n];
    request.set_prompt(prompt.text);
    request.mutable_tokens()->Assign(prompt.tokens.begin(), prompt.tokens.end());
    request.set_id(i == 0 ? options_.request_id : absl::StrCat(options_.request_id, "/", i));
    request.mutable_sampler()->set_seed(asked.sampler.seed() + i % asked.n);
    auto control = source->Generate(request, std::make_shared<Sink>(shared_from_this(), i), {});
    bool over = false;
    {
      absl::MutexLock lock(mu_);
      over = over_;
      if (!choices_[i].ended) choices_[i].control = control;
    }
    if (over) control->Cancel();
  }
}

void ApiCall::OnStarted(size_t index, size_t prompt_tokens) {
  absl::MutexLock lock(mu_);
  choices_[index].started = true;
  if (index % options_.request.n == 0) usage_.prompt_tokens += prompt_tokens;
  if (++started_ < choices_.size() || !options_.request.stream || over_) return;
  // Until all are taken, one may still be refused, which has a status of its own.
  begun_ = true;
  std::string head;
  if (options_.answer.chat) {
    for (Choice& choice : choices_) {
      if (!choice.piece.first) continue;
      head += PieceEvent(options_.answer, choice.piece, options_.request.include_usage);
      choice.piece.first = false;
    }
  }
  responder_->Begin({.status = 200,
                     .content_type = "text/event-stream; charset=utf-8",
                     .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
                     .body = head + std::exchange(pending_, {}),
                     .when_quiet = std::string(kQuietComment)});
}

void ApiCall::OnToken(size_t index, const wire::SampledToken& token) {
  std::shared_ptr<TextControl> complete;
  {
    absl::MutexLock lock(mu_);
    Choice& choice = choices_[index];
    if (over_ || choice.ended || choice.shaper.stopped()) return;
    ++choice.tokens;
    ++usage_.completion_tokens;
    if (!first_token_) {
      first_token_ = absl::Now() - options_.record->since();
      counters_->CountFirstToken(*first_token_);
    }
    if (options_.request.logprobs) choice.waiting.push_back(token);
    Take(&choice, choice.shaper.Add(token.piece()));
    if (options_.request.stream) Send(&choice);
    if (choice.shaper.stopped()) complete = choice.control;
  }
  if (complete != nullptr) complete->Finish();
}

void ApiCall::OnEnd(size_t index, const absl::Status& status, FinishReason reason,
                    const TextUsage& usage) {
  Controls cancel;
  {
    absl::MutexLock lock(mu_);
    Choice& choice = choices_[index];
    choice.ended = true;
    choice.control = nullptr;
    ++ended_;
    if (over_) return;
    const bool stopped = choice.shaper.stopped();
    if (!stopped && !status.ok()) {
      cancel = Fail(status);
    } else if (!stopped && reason == FinishReason::kCancelled) {
      cancel = Fail(absl::UnavailableError("the text was cancelled"));
    } else {
      if (index % options_.request.n == 0) usage_.cached_tokens += usage.cached_tokens;
      Take(&choice, choice.shaper.Finish());
      choice.piece.finish_reason =
          stopped || reason == FinishReason::kEndOfGeneration ? "stop" : "length";
      if (options_.request.stream) Send(&choice);
      if (ended_ == choices_.size()) Complete();
    }
  }
  for (const auto& control : cancel) control->Cancel();
}

void ApiCall::OnClientGone() {
  Controls cancel;
  {
    absl::MutexLock lock(mu_);
    if (std::exchange(over_, true)) return;
    ++counters_->client_gone;
    outcome_ = "client_gone";
    cancel = Controlled();
  }
  for (const auto& control : cancel) control->Cancel();
}

void ApiCall::Take(Choice* choice, std::string text) {
  choice->piece.text += text;
  if (!options_.request.logprobs) return;
  const size_t shown = choice->shaper.tokens_shown() - choice->tokens_shown;
  choice->tokens_shown += shown;
  const auto end = choice->waiting.begin() + static_cast<ptrdiff_t>(shown);
  choice->piece.tokens.insert(choice->piece.tokens.end(), choice->waiting.begin(), end);
  choice->waiting.erase(choice->waiting.begin(), end);
}

void ApiCall::Send(Choice* choice) {
  ApiPiece& piece = choice->piece;
  if (piece.text.empty() && piece.tokens.empty() && piece.finish_reason.empty()) return;
  piece.text_offset = choice->bytes;
  for (const wire::SampledToken& token : piece.tokens) choice->bytes += token.piece().size();
  const std::string event = PieceEvent(options_.answer, piece, options_.request.include_usage);
  if (begun_) {
    responder_->Write(event);
  } else {
    pending_ += event;
  }
  piece.first = false;
  piece.text.clear();
  piece.tokens.clear();
}

void ApiCall::Complete() {
  over_ = true;
  outcome_ = "ok";
  if (options_.request.stream) {
    if (options_.request.include_usage) responder_->Write(UsageEvent(options_.answer, usage_));
    responder_->Write(kDoneEvent);
    responder_->End();
    return;
  }
  std::vector<ApiPiece> texts;
  for (Choice& choice : choices_) texts.push_back(std::move(choice.piece));
  responder_->Answer({.status = 200, .body = WholeAnswer(options_.answer, texts, usage_)});
}

ApiCall::Controls ApiCall::Fail(const absl::Status& status) {
  over_ = true;
  ++counters_->failed;
  outcome_ = absl::StatusCodeToString(status.code());
  // What is wrong with a request may be said in its own words, which are not for a log.
  if (HttpStatusOf(status) >= 500) error_ = std::string(status.message());
  if (begun_) {
    responder_->Write(ErrorEvent(ErrorJson(status)));
    responder_->End();
  } else {
    responder_->Answer(ErrorResponse(status));
  }
  return Controlled();
}

ApiCall::Controls ApiCall::Controlled() {
  Controls controls;
  for (const Choice& choice : choices_) {
    if (choice.control != nullptr) controls.push_back(choice.control);
  }
  return controls;
}

}  // namespace strata
