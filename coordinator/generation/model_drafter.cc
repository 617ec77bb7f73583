#include "coordinator/generation/model_drafter.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "transport/base/mutex.h"

namespace strata {
namespace {

// Tokens that a request to the draft model generates. The next one goes on from its cache, so short
// ones cost no more, and compute less that nobody needs.
constexpr uint32_t kTokensAtATime = 4;
// Fewer drafts than this ahead: more are generated.
constexpr size_t kTokensAhead = 4;
// After so many continuations in a row that came too late, or not at all, the draft model is asked
// again behind so many tokens.
constexpr uint32_t kUselessMax = 4;
constexpr size_t kPauseTokens = 64;

}  // namespace

// A continuation: tokens that the draft model generates behind a sequence. Owned by the drafter and
// by what it waits for.
class ModelDrafter::Continuation final : public GenerationListener,
                                         public std::enable_shared_from_this<Continuation> {
 public:
  Continuation(std::shared_ptr<const Options> options, size_t begin)
      : begin_(begin), options_(std::move(options)) {}

  // Generates behind `request`'s tokens. REQUIRES: neither `asks` nor `ended` of progress().
  void Ask(GenerationRequest request) {
    {
      MutexLock lock(&mu_);
      progress_.asks = true;
    }
    options_->post([self = shared_from_this(), request = std::move(request)]() mutable {
      if (!self->is_wanted()) return;
      const std::shared_ptr<GenerationEngine> engine = self->options_->find();
      absl::StatusOr<uint64_t> id = absl::UnavailableError("no draft model");
      if (engine != nullptr) id = engine->Add(std::move(request), self);
      bool wanted = false;
      {
        MutexLock lock(&self->mu_);
        wanted = self->is_wanted_;
        if (!id.ok()) {
          self->progress_.asks = false;
          self->progress_.ended = true;
        } else if (self->progress_.asks) {  // it has not ended already
          self->engine_ = engine;
          self->id_ = *id;
        }
      }
      if (id.ok() && !wanted) engine->Finish(*id);
    });
  }

  // No token is wanted any more.
  void Abandon() {
    std::shared_ptr<GenerationEngine> engine;
    uint64_t id = 0;
    {
      MutexLock lock(&mu_);
      is_wanted_ = false;
      engine = std::move(engine_);
      id = id_;
    }
    if (engine == nullptr) return;
    options_->post([engine = std::move(engine), id] { engine->Finish(id); });
  }

  void OnToken(const wire::SampledToken& token) override {
    {
      MutexLock lock(&mu_);
      if (!is_wanted_) return;
      progress_.tokens.push_back(token.token());
    }
    options_->on_drafted();
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage&) override {
    {
      MutexLock lock(&mu_);
      engine_.reset();
      progress_.asks = false;
      progress_.ended = !status.ok() || reason != FinishReason::kLength;
      if (!is_wanted_) return;
    }
    options_->on_drafted();
  }

  size_t begin() const { return begin_; }  // the length of the sequence before its first token
  struct Progress {
    std::vector<int32_t> tokens;
    bool asks = false;   // for more
    bool ended = false;  // nothing follows them
  };
  Progress progress() const {
    MutexLock lock(&mu_);
    return progress_;
  }

 private:
  bool is_wanted() const {
    MutexLock lock(&mu_);
    return is_wanted_;
  }

  const size_t begin_;
  const std::shared_ptr<const Options> options_;
  mutable Mutex mu_;
  Progress progress_ ABSL_GUARDED_BY(mu_);
  bool is_wanted_ ABSL_GUARDED_BY(mu_) = true;
  std::shared_ptr<GenerationEngine> engine_ ABSL_GUARDED_BY(mu_);  // as long as a request is there
  uint64_t id_ ABSL_GUARDED_BY(mu_) = 0;
};

ModelDrafter::ModelDrafter(Options options)
    : options_(std::make_shared<const Options>(std::move(options))) {}

ModelDrafter::~ModelDrafter() {
  for (auto& [id, state] : states_) GiveUp(&state);
}

void ModelDrafter::Begin(const Sequence& sequence) {
  State& state = states_[sequence.request];
  state.tokens.assign(sequence.tokens.begin(), sequence.tokens.end());
  state.prompt_tokens = sequence.prompt_tokens;
  state.scope = std::string(sequence.scope);
  state.is_kept = sequence.is_kept;
  state.sampler = *sequence.sampler;
  // Nothing is reported, and nobody has the running values behind what others generated.
  state.sampler.set_logprobs(0);
  state.sampler.set_report_logprob(false);
  state.sampler.clear_logprob_tokens();
  state.sampler.set_prompt_logprobs(false);
  state.sampler.set_mirostat(0);
}

void ModelDrafter::Append(uint64_t request, int32_t token) {
  states_.at(request).tokens.push_back(token);
}

void ModelDrafter::End(uint64_t request) {
  const auto found = states_.find(request);
  GiveUp(&found->second);
  states_.erase(found);
}

void ModelDrafter::GiveUp(State* state) {
  if (state->continuation == nullptr) return;
  state->continuation->Abandon();
  state->continuation.reset();
}

void ModelDrafter::Ask(const State& state, absl::Span<const int32_t> drafted) {
  GenerationRequest request;
  request.id = "draft";
  request.cache_scope = state.scope;
  const auto prompt_end = state.tokens.begin() + static_cast<ptrdiff_t>(state.prompt_tokens);
  const auto end = state.tokens.begin() + static_cast<ptrdiff_t>(state.continuation->begin());
  request.prompt.assign(state.tokens.begin(), prompt_end);
  request.generated.assign(prompt_end, end);
  request.generated.insert(request.generated.end(), drafted.begin(), drafted.end());
  request.tokens_max = static_cast<uint32_t>(request.generated.size()) + kTokensAtATime;
  request.sampler = state.sampler;
  request.speculation = wire::SPECULATION_OFF;
  state.continuation->Ask(std::move(request));
}

std::optional<int32_t> ModelDrafter::Draft(uint64_t request, absl::Span<const int32_t> drafts) {
  State& state = states_.at(request);
  if (!state.is_kept) return std::nullopt;  // the draft model's caches would keep it
  if (state.continuation != nullptr) {
    const auto [tokens, asks, ended] = state.continuation->progress();
    const auto known = absl::MakeConstSpan(state.tokens).subspan(state.continuation->begin());
    const size_t n = std::min(known.size(), tokens.size());
    const bool is_right =
        std::equal(known.begin(), known.begin() + static_cast<ptrdiff_t>(n), tokens.begin());
    if (is_right && tokens.size() >= known.size()) {
      if (tokens.size() > known.size()) state.useless = 0;
      const auto ahead = absl::MakeConstSpan(tokens).subspan(known.size());
      if (ahead.size() < drafts.size() + kTokensAhead && !asks && !ended) Ask(state, tokens);
      const bool is_next = drafts.size() < ahead.size() &&  // else they are of another drafter
                           std::equal(drafts.begin(), drafts.end(), ahead.begin());
      return is_next ? std::optional(ahead[drafts.size()]) : std::nullopt;
    }
    // It comes too late, but the next one will go on from its cache: say, behind a long prompt.
    if (is_right && asks) return std::nullopt;
    state.useless = tokens.empty() || is_right ? state.useless + 1 : 0;
    if (state.useless >= kUselessMax) {
      state.useless = 0;
      state.pause_until = state.tokens.size() + kPauseTokens;
    }
    GiveUp(&state);
  }
  if (state.tokens.size() < state.pause_until) return std::nullopt;
  state.continuation = std::make_shared<Continuation>(options_, state.tokens.size());
  Ask(state, {});
  return std::nullopt;
}

}  // namespace strata
