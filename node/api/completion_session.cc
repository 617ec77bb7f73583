#include "node/api/completion_session.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "node/api/api_error.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// Nine letters and digits: some models' templates accept no other ids.
std::string RandomCallId() {
  constexpr absl::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local absl::BitGen random;
  std::string id;
  for (int i = 0; i < 9; ++i) id += kLetters[absl::Uniform<size_t>(random, 0, kLetters.size())];
  return id;
}

}  // namespace

void ApiCounters::CountFirstToken(absl::Duration after) {
  const auto limit = std::lower_bound(kFirstTokenMs.begin(), kFirstTokenMs.end(),
                                      absl::ToInt64Milliseconds(after));
  ++first_tokens[static_cast<size_t>(limit - kFirstTokenMs.begin())];
  first_token_us += static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Microseconds(after)));
}

class CompletionSession::Sink final : public GenerationListener {
 public:
  Sink(std::shared_ptr<CompletionSession> session, size_t index)
      : session_(std::move(session)), index_(index) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    session_->OnStarted(index_, prompt);
  }
  void OnProgress(const PromptProgress& progress) override {
    session_->OnProgress(index_, progress);
  }
  void OnToken(const wire::SampledToken& token) override { session_->OnToken(index_, token); }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    session_->OnEnd(index_, status, reason, usage);
  }

 private:
  const std::shared_ptr<CompletionSession> session_;  // shared with the other choices' sinks
  const size_t index_;
};

void CompletionSession::Start(GenerationSource* source, Options options,
                              std::shared_ptr<HttpResponder> responder,
                              std::shared_ptr<ApiCounters> counters) {
  std::shared_ptr<CompletionSession> session(
      new CompletionSession(source, std::move(options), std::move(responder), std::move(counters)));
  session->Run();
}

CompletionSession::CompletionSession(GenerationSource* source, Options options,
                                     std::shared_ptr<HttpResponder> responder,
                                     std::shared_ptr<ApiCounters> counters)
    : source_(source),
      writer_(std::move(options.writer)),
      options_(std::move(options)),
      responder_(std::move(responder)),
      counters_(std::move(counters)) {
  ++counters_->requests;
  ++counters_->running;
  const ApiRequest& request = options_.request;
  const size_t n_choices = request.prompts.size() * request.n;
  for (size_t i = 0; i < n_choices; ++i) {
    Choice& choice = choices_.emplace_back();
    choice.filter.emplace(FilterOptions());
    choice.piece.index = static_cast<uint32_t>(i);
    choice.piece.first = true;
    choice.piece.logprobs = request.logprobs;
    const std::string& prompt = request.prompts[i / request.n].text;
    if (request.echo) {
      choice.piece.text = prompt;
      choice.characters.Add(choice.piece.text);
    }
    if (AnswerCheck::IsNeeded(request)) choice.check.emplace(&request);
    if (!request.chat) continue;
    const ThoughtForm& thoughts = options_.format.thoughts;
    const bool is_open = !options_.format.is_harmony && thoughts.IsOpenIn(prompt);
    const bool begins_answer = request.continues_last && !is_open;
    choice.reader = NewReader(i, begins_answer);
    const bool may_follow =
        options_.format.is_harmony || (thoughts.is_taught && thoughts.MayFollow(prompt));
    choice.may_think = (request.thought_tokens_max || request.constrains_answer) &&
                       !begins_answer && may_follow && request.splits_thoughts;
  }
}

StopStringFilter::Options CompletionSession::FilterOptions() const {
  return {.stops = options_.request.stops,
          .show_stop = options_.request.show_stop,
          .tokens_min = options_.request.sampler.tokens_min()};
}

std::unique_ptr<OutputReader> CompletionSession::NewReader(size_t index, bool begins_answer) const {
  const ApiRequest& request = options_.request;
  const Choice& choice = choices_[index];
  return std::make_unique<OutputReader>(OutputReader::Options{
      .format = options_.format,
      .prompt = choice.next_prompt ? *choice.next_prompt : request.prompts[index / request.n].text,
      .tools = &request.tools,
      .splits_thoughts = request.splits_thoughts,
      .begins_answer = begins_answer});
}

CompletionSession::~CompletionSession() {
  --counters_->running;
  counters_->tokens += usage_.completion_tokens;
  options_.record->SetCompletion({.model = options_.model_name,
                                  .choices = choices_.size(),
                                  .prompt_tokens = usage_.prompt_tokens,
                                  .cached_tokens = usage_.cached_tokens,
                                  .tokens = usage_.completion_tokens,
                                  .first_token = first_token_,
                                  .outcome = outcome_,
                                  .error = error_});
}

wire::GenerateRequest CompletionSession::NewRequest() const {
  const ApiRequest& api_request = options_.request;
  wire::GenerateRequest request;
  request.set_model(options_.model_id);
  request.set_tokens_max(options_.tokens_max);
  request.set_client(options_.client);
  request.set_cache_scope(options_.cache_scope);
  request.set_parse_special(options_.parse_special);
  request.set_no_special(options_.no_special);
  request.set_shift_context(api_request.shift_context);
  request.set_keep_tokens(api_request.keep_tokens);
  request.set_with_progress(api_request.with_progress && api_request.stream);
  request.set_no_cache(api_request.no_cache);
  if (api_request.speculation) request.set_speculation(*api_request.speculation);
  request.mutable_prediction()->Assign(options_.prediction.begin(), options_.prediction.end());
  if (api_request.keep_alive_ms) request.set_keep_alive_ms(*api_request.keep_alive_ms);
  *request.mutable_sampler() = api_request.sampler;
  if (!api_request.chat) return request;
  for (std::string& mark : MarksOf(options_.format, api_request.tools.offered())) {
    request.mutable_sampler()->add_shown_marks(std::move(mark));
  }
  return request;
}

void CompletionSession::Run() {
  responder_->OnGone([weak = weak_from_this()] {
    if (const auto session = weak.lock()) session->OnClientGone();
  });
  const ApiRequest& api_request = options_.request;
  wire::GenerateRequest request = NewRequest();
  const size_t n_choices = api_request.prompts.size() * api_request.n;
  for (size_t i = 0; i < n_choices; ++i) {
    const ApiPrompt& prompt = api_request.prompts[i / api_request.n];
    request.set_prompt(prompt.text);
    request.mutable_tokens()->Assign(prompt.tokens.begin(), prompt.tokens.end());
    request.set_id(i == 0 ? options_.request_id : absl::StrCat(options_.request_id, "/", i));
    request.mutable_sampler()->set_seed(api_request.sampler.seed() + i % api_request.n);
    request.mutable_sampler()->set_grammar(api_request.sampler.grammar());
    {
      absl::MutexLock lock(mu_);
      // A thought needs no grammar: its answer has it.
      if (choices_[i].may_think && api_request.constrains_answer) {
        request.mutable_sampler()->clear_grammar();
      }
    }
    Generate(i, /*generation=*/0, request);
  }
}

void CompletionSession::Generate(size_t index, uint32_t generation,
                                 const wire::GenerateRequest& request) {
  auto control = source_->Generate(request, std::make_shared<Sink>(shared_from_this(), index), {});
  bool over = false, complete = false;
  {
    absl::MutexLock lock(mu_);
    over = over_;
    Choice& choice = choices_[index];
    // Its tokens, its end and even the next one may come before Generate() returns.
    if (choice.generation != generation) return;
    if (!choice.ended) choice.control = control;
    complete = choice.complete() || choice.next_prompt.has_value();
  }
  if (over) {
    control->Cancel();
  } else if (complete) {
    control->Finish();
  }
}

wire::GenerateRequest CompletionSession::AnswerRequest(size_t index) {
  Choice& choice = choices_[index];
  wire::GenerateRequest request = NewRequest();
  request.set_prompt(*choice.next_prompt);
  request.set_id(absl::StrCat(options_.request_id, "/", index, "/answer"));
  request.set_tokens_max(options_.tokens_max - choice.tokens);
  request.mutable_sampler()->set_seed(request.sampler().seed() + index % options_.request.n);
  const uint32_t tokens_min = options_.request.sampler.tokens_min();
  request.mutable_sampler()->set_tokens_min(tokens_min - std::min(tokens_min, choice.tokens));
  request.mutable_sampler()->clear_prompt_logprobs();  // they have come
  choice.filter.emplace(FilterOptions());
  choice.reader = NewReader(index, /*begins_answer=*/true);
  choice.next_prompt.reset();
  choice.pending.clear();
  choice.tokens_shown = 0;
  return request;
}

void CompletionSession::OnStarted(size_t index, const std::vector<int32_t>& prompt) {
  absl::MutexLock lock(mu_);
  if (std::exchange(choices_[index].started, true)) return;  // goes on behind a thought
  if (index % options_.request.n == 0) usage_.prompt_tokens += prompt.size();
  if (options_.request.returns_tokens) choices_[index].piece.prompt_tokens = prompt;
  if (++started_ < choices_.size() || !options_.request.stream || over_) return;
  // Until all generations have started, one may still be refused, with a status of its own.
  begun_ = true;
  std::vector<ApiPiece> firsts;
  for (Choice& choice : choices_) {
    if (std::exchange(choice.piece.first, false)) {
      firsts.push_back({.index = choice.piece.index,
                        .first = true,
                        .logprobs = choice.piece.logprobs,
                        .prompt_tokens = std::exchange(choice.piece.prompt_tokens, {}),
                        .usage = usage_});
    }
  }
  HttpResponse head = writer_->Begin(firsts, usage_);
  head.body += std::exchange(pending_, {});
  responder_->Begin(std::move(head));
}

void CompletionSession::OnProgress(size_t index, const PromptProgress& progress) {
  absl::MutexLock lock(mu_);
  // The answer behind a thought has a prompt that is the client's no more.
  if (over_ || choices_[index].generation > 0) return;
  WriteEvents(writer_->Progress({.index = static_cast<uint32_t>(index),
                                 .prompt = progress,
                                 .time = SteadyTime::Now() - options_.record->since()}));
}

void CompletionSession::OnToken(size_t index, const wire::SampledToken& token) {
  std::shared_ptr<GenerationHandle> complete;
  {
    absl::MutexLock lock(mu_);
    Choice& choice = choices_[index];
    if (over_ || choice.ended || choice.complete() || choice.next_prompt) return;
    // A request that is taken over may report its prompt again.
    if (token.prompt_size() > 0 && !std::exchange(choice.has_prompt_scores, true)) {
      if (options_.request.echo) EchoTokens(&choice, token);
      if (options_.request.prompt_top) {
        choice.piece.prompt_scores.assign(token.prompt().begin(), token.prompt().end());
      }
    }
    if (token.end_of_generation() || options_.request.tokens_max == 0) return;
    choice.logprob += token.logprob();
    ++choice.tokens;
    ++usage_.completion_tokens;
    if (!first_token_) {
      first_token_ = SteadyTime::Now() - options_.record->since();
      counters_->CountFirstToken(*first_token_);
    }
    if (has_tokens()) choice.pending.push_back(token);
    OutputPiece piece = ReadPiece(&choice, choice.filter->Add(token.piece()), Last::kNo);
    if (choice.reader != nullptr) FollowThought(index, token.piece(), &piece);
    Append(&choice, std::move(piece));
    if (options_.request.stream) Send(&choice);
    if (choice.complete() || choice.next_prompt) complete = choice.control;
  }
  if (complete != nullptr) complete->Finish();
}

void CompletionSession::EchoTokens(Choice* choice, const wire::SampledToken& token) {
  std::vector<wire::SampledToken> echoed;
  std::string text;
  for (const wire::PromptToken& of_prompt : token.prompt()) {
    wire::SampledToken& one = echoed.emplace_back();
    one.set_token(of_prompt.token().token());
    one.set_piece(of_prompt.token().piece());
    one.set_logprob(of_prompt.token().logprob());
    *one.mutable_top() = of_prompt.top();
    text += one.piece();
  }
  ApiPiece& piece = choice->piece;
  if (piece.text.empty()) {  // the client has sent tokens
    choice->characters.Add(text);
    piece.text = text;
  } else if (text == absl::StrCat(" ", piece.text)) {  // some vocabularies put it there
    for (wire::SampledToken& one : echoed) {
      if (one.piece().empty()) continue;
      one.mutable_piece()->erase(0, 1);
      break;
    }
  }
  if (!options_.request.logprobs) return;
  CharacterCount characters;
  for (wire::SampledToken& one : echoed) {
    piece.text_offsets.push_back(characters.PositionOf(one.piece()));
    characters.Add(one.piece());
    piece.tokens.push_back(std::move(one));
  }
  piece.begins_prompt = true;
}

void CompletionSession::FollowThought(size_t index, absl::string_view piece, OutputPiece* read) {
  Choice& choice = choices_[index];
  const ApiRequest& request = options_.request;
  const OutputReader& reader = *choice.reader;
  if (reader.in_thought()) {
    ++choice.thought_tokens;
    ++usage_.reasoning_tokens;
  }
  if (!choice.may_think) return;
  choice.thinking.append(piece);
  if (request.thought_tokens_max && reader.in_thought() &&
      choice.thought_tokens >= *request.thought_tokens_max) {
    OutputPiece rest = choice.reader->Finish(/*is_cut=*/true);
    read->thought += rest.thought;
    GoOnBehindThought(index, /*ends_it=*/true);
  } else if (request.constrains_answer && (reader.answers() || reader.thought_end() > 0)) {
    read->tools = {};  // it had no grammar, so it is written again
    GoOnBehindThought(index, /*ends_it=*/false);
  } else if (reader.answers()) {
    choice.may_think = false;
    choice.thinking.clear();
  }
}

void CompletionSession::GoOnBehindThought(size_t index, bool ends_it) {
  Choice& choice = choices_[index];
  const ApiRequest& request = options_.request;
  const size_t end = choice.reader->thought_end();
  choice.may_think = false;
  choice.next_prompt = request.prompts[index / request.n].text;
  if (ends_it) {
    const bool may_call = request.tools.offered() || request.constrains_answer;
    absl::StrAppend(&*choice.next_prompt, choice.thinking,
                    ThoughtEnding(options_.format, may_call));
  } else if (end > 0) {
    absl::StrAppend(&*choice.next_prompt, choice.thinking.substr(0, end),
                    BehindThought(options_.format));
  }
  choice.thinking.clear();
}

void CompletionSession::CountCached(size_t index, uint32_t cached) {
  std::optional<uint32_t>& least = cached_[index / options_.request.n];
  usage_.cached_tokens -= least.value_or(0);
  least = std::min(least.value_or(cached), cached);
  usage_.cached_tokens += *least;
}

void CompletionSession::OnEnd(size_t index, const absl::Status& status, FinishReason reason,
                              const GenerationUsage& usage) {
  Controls cancel;
  std::optional<wire::GenerateRequest> next;
  {
    absl::MutexLock lock(mu_);
    Choice& choice = choices_[index];
    choice.control = nullptr;
    if (!over_ && status.ok() && reason == FinishReason::kEndOfGeneration && choice.may_think &&
        options_.request.constrains_answer && !choice.complete()) {
      GoOnBehindThought(index, /*ends_it=*/choice.reader->in_thought());
    }
    const bool goes_on = !over_ && choice.next_prompt.has_value();
    if (goes_on && choice.tokens < options_.tokens_max) {
      next = AnswerRequest(index);
      ++choice.generation;
    } else {
      choice.ended = true;
      ++ended_;
    }
    usage_.draft_tokens += usage.draft_tokens;
    usage_.accepted_tokens += usage.accepted_tokens;
    if (over_) return;
    const bool stopped = choice.complete();
    if (next) {
      CountCached(index, usage.cached_tokens);
    } else if (!stopped && !goes_on && !status.ok()) {
      cancel = Fail(status);
    } else if (!stopped && !goes_on && reason == FinishReason::kCancelled) {
      cancel = Fail(absl::UnavailableError("the request was cancelled"));
    } else {
      if (choice.generation == 0) CountCached(index, usage.cached_tokens);
      const bool is_whole = stopped || (!goes_on && reason == FinishReason::kEndOfGeneration &&
                                        options_.request.tokens_max != 0);
      Append(&choice,
             ReadPiece(&choice, choice.filter->Finish(), is_whole ? Last::kEnded : Last::kCut));
      choice.piece.finish_reason = is_whole ? "stop" : "length";
      if (choice.check && is_whole && !choice.filter->stopped()) {
        if (absl::Status met = choice.check->Finish(); !met.ok()) cancel = Fail(met);
      }
      choice.piece.stop_string = choice.filter->stop();
      const auto& stop_tokens = options_.request.sampler.stop_tokens();
      if (!stopped && usage.end_token &&
          std::find(stop_tokens.begin(), stop_tokens.end(), *usage.end_token) !=
              stop_tokens.end()) {
        choice.piece.stop_token = usage.end_token;
      }
      if (choice.reader != nullptr && choice.reader->calls() > 0 &&
          choice.piece.finish_reason == "stop") {
        choice.piece.finish_reason = "tool_calls";
      }
      if (options_.request.stream && !over_) Send(&choice);
      if (ended_ == choices_.size() && !over_) Complete();
    }
  }
  for (const auto& control : cancel) control->Cancel();
  if (next) Generate(index, /*generation=*/1, *next);
}

void CompletionSession::OnClientGone() {
  Controls cancel;
  {
    absl::MutexLock lock(mu_);
    if (std::exchange(over_, true)) return;
    ++counters_->client_gone;
    outcome_ = "client_gone";
    cancel = RunningControls();
  }
  for (const auto& control : cancel) control->Cancel();
}

OutputPiece CompletionSession::ReadPiece(Choice* choice, std::string text, Last last) {
  OutputPiece piece;
  if (choice->reader == nullptr) {
    piece.tools.content = std::move(text);
    return piece;
  }
  piece = choice->reader->Add(text);
  if (last == Last::kNo) return piece;
  OutputPiece rest = choice->reader->Finish(/*is_cut=*/last == Last::kCut);
  piece.thought += rest.thought;
  piece.tools.content += rest.tools.content;
  for (ToolPiece::Call& call : rest.tools.calls) piece.tools.AddCall(std::move(call));
  return piece;
}

std::string CompletionSession::NewCallId(const ToolPiece::Call& call) const {
  // The templates of models that number their calls show the id alone, which has the name.
  const std::string& number_mark = options_.format.calls.number_mark;
  if (number_mark.empty()) return RandomCallId();
  return absl::StrCat("functions.", call.name, number_mark, options_.calls_before + call.index);
}

void CompletionSession::Append(Choice* choice, OutputPiece next) {
  if (choice->check) choice->check->Add(next.tools);
  choice->piece.text += next.tools.content;
  if (options_.request.shows_thoughts) choice->piece.thought += next.thought;
  std::vector<ApiCallPiece>& calls = choice->piece.calls;
  for (ToolPiece::Call& call : next.tools.calls) {
    if (!calls.empty() && calls.back().index == call.index && call.name.empty()) {
      calls.back().arguments += call.arguments;
      continue;
    }
    calls.push_back({.index = call.index,
                     .id = call.name.empty() ? "" : NewCallId(call),
                     .name = std::move(call.name),
                     .arguments = std::move(call.arguments)});
  }
  if (!has_tokens()) return;
  const size_t shown = choice->filter->tokens_shown() - choice->tokens_shown;
  choice->tokens_shown += shown;
  const auto end = choice->pending.begin() + static_cast<ptrdiff_t>(shown);
  for (auto token = choice->pending.begin(); token != end; ++token) {
    choice->piece.text_offsets.push_back(choice->characters.PositionOf(token->piece()));
    choice->characters.Add(token->piece());
  }
  choice->piece.tokens.insert(choice->piece.tokens.end(), choice->pending.begin(), end);
  choice->pending.erase(choice->pending.begin(), end);
}

void CompletionSession::WriteEvents(const std::string& events) {
  if (!begun_) {
    pending_ += events;
  } else if (!events.empty()) {
    responder_->Write(events);
  }
}

void CompletionSession::Send(Choice* choice) {
  ApiPiece& piece = choice->piece;
  if (piece.text.empty() && piece.thought.empty() && piece.tokens.empty() &&
      piece.finish_reason.empty() && piece.calls.empty()) {
    return;
  }
  piece.usage = options_.request.timings_in_pieces ? UsageNow() : usage_;
  WriteEvents(writer_->Piece(piece));
  piece.first = piece.begins_prompt = false;
  piece.text.clear();
  piece.thought.clear();
  piece.tokens.clear();
  piece.prompt_tokens.clear();
  piece.text_offsets.clear();
  piece.calls.clear();
}

ApiUsage CompletionSession::UsageNow() const {
  ApiUsage usage = usage_;
  usage.total = SteadyTime::Now() - options_.record->since();
  usage.first_token = first_token_.value_or(usage.total);
  return usage;
}

void CompletionSession::Complete() {
  over_ = true;
  outcome_ = "ok";
  usage_ = UsageNow();
  if (options_.request.stream) {
    responder_->Write(writer_->End(usage_));
    responder_->End();
    return;
  }
  responder_->Answer(writer_->Whole(BestChoices(), usage_));
}

// With best_of the likeliest choices of each prompt, by the mean logprob of their tokens.
std::vector<ApiPiece> CompletionSession::BestChoices() {
  const size_t generated = options_.request.n;
  const size_t returned = options_.request.best_of == 0 ? generated : options_.request.best_of;
  std::vector<ApiPiece> best;
  for (size_t from = 0; from < choices_.size(); from += generated) {
    std::vector<Choice*> order;
    for (size_t i = from; i < from + generated; ++i) order.push_back(&choices_[i]);
    const auto mean = [](const Choice* choice) {
      return choice->logprob / std::max<uint32_t>(choice->tokens, 1);
    };
    if (returned < generated) {
      std::stable_sort(order.begin(), order.end(),
                       [&](const Choice* a, const Choice* b) { return mean(a) > mean(b); });
    }
    for (size_t i = 0; i < returned; ++i) {
      order[i]->piece.index = static_cast<uint32_t>(best.size());
      best.push_back(std::move(order[i]->piece));
    }
  }
  return best;
}

CompletionSession::Controls CompletionSession::Fail(const absl::Status& status) {
  over_ = true;
  if (!begun_ && absl::IsNotFound(status) && options_.when_gone != nullptr) {
    responder_->Run([again = options_.when_gone] { again(); });
    return RunningControls();
  }
  ++counters_->failed;
  outcome_ = absl::StatusCodeToString(status.code());
  // An error of the request may quote its content, which must not go to the log.
  if (HttpStatusOf(status) >= 500) error_ = std::string(status.message());
  if (begun_) {
    responder_->Write(writer_->Failure(status));
    responder_->End();
  } else {
    responder_->Answer(writer_->Error(status));
  }
  return RunningControls();
}

CompletionSession::Controls CompletionSession::RunningControls() {
  Controls controls;
  for (const Choice& choice : choices_) {
    if (choice.control != nullptr) controls.push_back(choice.control);
  }
  return controls;
}

}  // namespace strata
