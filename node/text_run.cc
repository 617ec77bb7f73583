#include "node/text_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/generate.h"
#include "coordinator/pipeline.h"
#include "nlohmann/json.hpp"
#include "node/progress.h"
#include "node/standard_output.h"
#include "node/utf8_stream.h"
#include "transport/event_loop.h"

namespace strata {
namespace {

// Steps of a prompt in flight keep every stage busy; smaller chunks overlap more, larger ones
// compute better.
constexpr uint32_t kChunkTokens = 128;

// Ctrl-C ends the text in order; a second one ends the process, and its children with it.
class Interrupt {
 public:
  explicit Interrupt(Generator* generator) : generator_(generator), loop_(EventLoop::Create()) {
    const auto on_signal = [this] {
      if (requested_.exchange(true)) _exit(130);
      generator_->Cancel();
    };
    handles_.push_back(loop_->OnSignal(SIGINT, on_signal));
    handles_.push_back(loop_->OnSignal(SIGTERM, on_signal));
    handles_.push_back(loop_->OnSignal(SIGHUP, on_signal));
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~Interrupt() {
    loop_->Post([this] { handles_.clear(); });
    loop_->Stop();
    thread_.join();
  }
  bool requested() const { return requested_; }

 private:
  Generator* const generator_;
  std::atomic<bool> requested_{false};
  std::unique_ptr<EventLoop> loop_;
  std::vector<std::unique_ptr<EventLoop::Handle>> handles_;
  std::thread thread_;
};

// The text on stdout as it comes; stops the run when nobody reads it any more.
class TextOut {
 public:
  bool Write(absl::string_view piece) { return Put(utf8_.Add(piece)); }
  absl::Status Finish() {
    Put(utf8_.Flush() + "\n");
    return ok_ ? absl::OkStatus() : absl::UnavailableError("cannot write the text to stdout");
  }

 private:
  bool Put(const std::string& text) {
    ok_ = ok_ && std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
          std::fflush(stdout) == 0;
    return ok_;
  }
  Utf8Stream utf8_;
  bool ok_ = true;
};

double PerSecond(size_t count, int64_t us) {
  return us <= 0 ? 0.0 : static_cast<double>(count) * 1e6 / static_cast<double>(us);
}

absl::string_view FinishName(FinishReason finish) {
  switch (finish) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEndOfGeneration:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

}  // namespace

class TextRun::Impl {
 public:
  explicit Impl(TextOptions options) : options_(std::move(options)), interrupt_(&generator_) {}

  bool interrupted() const { return interrupt_.requested(); }
  absl::Status Explain(const absl::Status& status) const {
    return interrupt_.requested() ? absl::CancelledError("interrupted") : status;
  }

  absl::Status Run(TextStages stages) {
    to_ = std::move(stages);
    n_ctx_ = ContextFor(options_, *to_.model);
    absl::Cleanup unload = [this] { pipeline_.reset(); };
    if (auto s = BuildPipeline(); !s.ok()) return s;
    if (auto s = Generate(); !s.ok()) return s;
    return options_.json ? PrintJson() : PrintSummary();
  }

 private:
  absl::Status BuildPipeline();
  absl::Status Generate();
  absl::Status PrintSummary() const;
  absl::Status PrintJson() const;

  const TextOptions options_;
  Generator generator_;
  Interrupt interrupt_;
  TextStages to_;
  uint32_t n_ctx_ = 0;
  std::unique_ptr<Pipeline> pipeline_;
  GenerateRequest request_;
  GenerateResult result_;
};

absl::Status TextRun::Impl::BuildPipeline() {
  PipelineOptions build;
  build.model_path = to_.model_path;
  build.model_id = to_.model->id();
  build.source = to_.source;
  build.epoch = to_.epoch;
  build.stages = to_.layers;
  build.devices = to_.devices;
  build.listen_host = to_.listen_host;
  build.allow_mixed_versions = options_.allow_mixed_versions;
  build.n_ctx = n_ctx_;
  build.n_batch = std::min(n_ctx_, 512u);
  build.unverified = options_.unverified;
  build.use_mmap = options_.use_mmap;
  std::vector<std::string> labels;
  for (size_t i = 0; i < to_.layers.size(); ++i) {
    build.nodes.push_back(to_.nodes[i]);
    labels.push_back(absl::StrFormat("%s  layers %u-%u", to_.nodes[i]->name(), to_.layers[i].begin,
                                     to_.layers[i].end - 1));
  }
  absl::FPrintF(stderr, "%s: %u layers, %s, on %d node%s\n", to_.model->name(),
                to_.model->n_layer(), BytesString(to_.model->tensor_bytes()),
                static_cast<int>(to_.layers.size()), to_.layers.size() == 1 ? "" : "s");
  ProgressBars bars(stderr, isatty(STDERR_FILENO) != 0, std::move(labels));
  auto pipeline = Pipeline::Build(
      std::move(build), &generator_, [&](size_t stage, const wire::LoadProgress& progress) {
        bars.Update(stage, progress.bytes_done(), progress.bytes_total());
        return !interrupt_.requested();
      });
  if (!pipeline.ok()) return Explain(pipeline.status());
  pipeline_ = *std::move(pipeline);
  for (size_t i = 0; i < to_.layers.size(); ++i) {
    bars.Update(i, pipeline_->stages()[i].slice_bytes(), pipeline_->stages()[i].slice_bytes());
  }
  bars.Finish();
  return absl::OkStatus();
}

absl::Status TextRun::Impl::Generate() {
  wire::TokenizeRequest tokenize;
  tokenize.set_stage(0);
  *tokenize.mutable_epoch() = to_.epoch;
  tokenize.set_text(options_.prompt);
  tokenize.set_add_special(true);
  auto tokens = to_.nodes[0]->Tokenize(tokenize);
  if (!tokens.ok()) return Explain(pipeline_->Diagnose(tokens.status()));

  request_.prompt.assign(tokens->tokens().begin(), tokens->tokens().end());
  if (request_.prompt.size() + 1 > n_ctx_) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt has ", request_.prompt.size(), " tokens; a context of ", n_ctx_,
                     " has no room for it and an answer (see --ctx)"));
  }
  request_.tokens_max = options_.tokens_max;
  request_.n_ctx = n_ctx_;
  request_.chunk_tokens = std::min(kChunkTokens, n_ctx_);
  request_.sampler.set_seed(options_.seed);
  request_.sampler.set_temperature(options_.temperature);
  request_.sampler.set_top_k(options_.top_k);
  request_.sampler.set_top_p(options_.top_p);
  request_.sampler.set_min_p(options_.min_p);
  request_.sampler.set_ignore_eog(options_.ignore_eos);

  TextOut out;
  if (!options_.json) {
    absl::FPrintF(stderr, "\n");
    out.Write(options_.prompt);
  }
  auto result = generator_.Run(pipeline_.get(), request_, [&](const wire::SampledToken& token) {
    return options_.json || out.Write(token.piece());
  });
  absl::Status written = options_.json ? absl::OkStatus() : out.Finish();
  if (interrupt_.requested()) return absl::CancelledError("interrupted");
  if (!result.ok()) {
    return absl::IsInvalidArgument(result.status()) ? result.status()
                                                    : Explain(pipeline_->Diagnose(result.status()));
  }
  result_ = *std::move(result);
  return written;
}

absl::Status TextRun::Impl::PrintSummary() const {
  const size_t n = result_.tokens.size();
  absl::FPrintF(
      stderr, "\n%d node%s · %d prompt tokens, %d tokens · prompt %.1f tok/s · decode %.1f tok/s\n",
      static_cast<int>(to_.layers.size()), to_.layers.size() == 1 ? "" : "s",
      static_cast<int>(request_.prompt.size()), static_cast<int>(n),
      PerSecond(request_.prompt.size(), result_.prompt_us), PerSecond(n - 1, result_.decode_us));
  return absl::OkStatus();
}

absl::Status TextRun::Impl::PrintJson() const {
  using nlohmann::json;
  std::string text;
  json ids = json::array();
  for (const wire::SampledToken& token : result_.tokens) {
    text += token.piece();
    ids.push_back(token.token());
  }
  const auto times = [](const GenerateResult::StageTotal& total) {
    const double steps = static_cast<double>(std::max<uint64_t>(total.steps, 1)) * 1000;
    return json{{"steps", total.steps},
                {"queue_ms_per_step", static_cast<double>(total.queue_us) / steps},
                {"compute_ms_per_step", static_cast<double>(total.compute_us) / steps},
                {"sample_ms_per_step", static_cast<double>(total.sample_us) / steps}};
  };
  json stages = json::array();
  for (size_t i = 0; i < to_.layers.size(); ++i) {
    const wire::StageInfo& info = pipeline_->stages()[i];
    json stage = {{"stage", i},
                  {"node", to_.nodes[i]->name()},
                  {"worker_pid", info.worker_pid()},
                  {"layers", {to_.layers[i].begin, to_.layers[i].end}},
                  {"slice_bytes", info.slice_bytes()},
                  {"kv_bytes", info.kv_bytes()},
                  {"compute_bytes", info.compute_bytes()},
                  {"resident_bytes", info.resident_bytes()},
                  {"load_ms", info.load_ms()},
                  {"prompt", times(result_.prompt_stages[i])},
                  {"decode", times(result_.decode_stages[i])}};
    if (!to_.node_pids.empty()) stage["node_pid"] = to_.node_pids[i];
    stages.push_back(std::move(stage));
  }
  const json out = {
      {"model",
       {{"name", to_.model->name()},
        {"id", absl::BytesToHexString(to_.model->id())},
        {"architecture", to_.model->architecture()},
        {"layers", to_.model->n_layer()},
        {"tensor_bytes", to_.model->tensor_bytes()}}},
      {"stages", stages},
      {"prompt", {{"text", options_.prompt}, {"tokens", request_.prompt}}},
      {"text", text},
      {"tokens", ids},
      {"finish_reason", std::string(FinishName(result_.finish))},
      {"seed", options_.seed},
      {"prompt_ms", static_cast<double>(result_.prompt_us) / 1000},
      {"decode_ms", static_cast<double>(result_.decode_us) / 1000},
      {"prompt_tokens_per_second", PerSecond(request_.prompt.size(), result_.prompt_us)},
      {"decode_tokens_per_second", PerSecond(result_.tokens.size() - 1, result_.decode_us)}};
  // A text may end inside a character.
  const std::string line = out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return WriteToStdout(line);
}

uint32_t ContextFor(const TextOptions& options, const ModelFile& model) {
  if (options.n_ctx != 0) return options.n_ctx;
  const uint64_t trained =
      model.header().GetInteger(model.architecture() + ".context_length").value_or(512);
  return static_cast<uint32_t>(std::clamp<uint64_t>(trained, 16, kContextDefaultMax));
}

TextRun::TextRun(TextOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
TextRun::~TextRun() = default;
bool TextRun::interrupted() const { return impl_->interrupted(); }
absl::Status TextRun::Explain(const absl::Status& status) const { return impl_->Explain(status); }
absl::Status TextRun::Run(TextStages stages) { return impl_->Run(std::move(stages)); }

}  // namespace strata
