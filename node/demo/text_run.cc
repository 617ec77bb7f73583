#include "node/demo/text_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/generation/generate.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/models/model_planner.h"
#include "node/base/interrupt.h"
#include "node/base/progress.h"
#include "node/base/standard_output.h"
#include "node/client/generated_output.h"
#include "node/client/generation_report.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// Steps of a prompt in flight keep every stage busy; smaller chunks overlap more, larger ones
// compute better.
constexpr uint32_t kChunkTokens = 128;

}  // namespace

class TextRun::Impl {
 public:
  explicit Impl(GenerateFlags options)
      : options_(std::move(options)), interrupt_([this] { generator_.Cancel(); }) {}

  bool interrupted() const { return interrupt_.requested(); }
  absl::Status Explain(const absl::Status& status) const {
    return interrupt_.requested() ? absl::CancelledError("interrupted") : status;
  }

  absl::Status Run(TextStages stages) {
    to_ = std::move(stages);
    n_ctx_ = ContextFor(options_.n_ctx, *to_.model);
    absl::Cleanup unload = [this] { pipeline_.reset(); };
    if (auto s = BuildPipeline(); !s.ok()) return s;
    if (auto s = Generate(); !s.ok()) return s;
    if (options_.json) return WriteToStdout(GenerationJson(report_));
    absl::FPrintF(stderr, "\n%s\n", GenerationSummary(report_));
    return absl::OkStatus();
  }

 private:
  absl::Status BuildPipeline();
  absl::Status Generate();

  const GenerateFlags options_;
  Generator generator_;
  Interrupt interrupt_;
  TextStages to_;
  uint32_t n_ctx_ = 0;
  std::unique_ptr<Pipeline> pipeline_;
  GenerateRequest request_;
  GenerationReport report_;
};

absl::Status TextRun::Impl::BuildPipeline() {
  PipelineOptions build;
  build.model_path = to_.model_path;
  build.model_name = to_.model->name();
  build.model_id = to_.model->id();
  build.source = to_.source;
  build.epoch = to_.epoch;
  build.listen_host = to_.listen_host;
  build.allow_mixed_versions = options_.allow_mixed_versions;
  build.n_ctx = n_ctx_;
  build.n_batch = std::min(n_ctx_, 512u);
  build.unverified = options_.unverified;
  build.use_mmap = options_.use_mmap;
  GenerationReport::Model& model = report_.model;
  model.name = to_.model->name();
  model.id = to_.model->id();
  model.architecture = to_.model->architecture();
  model.n_layer = to_.model->n_layer();
  model.tensor_bytes = to_.model->tensor_bytes();
  for (size_t i = 0; i < to_.layers.size(); ++i) {
    build.stages.push_back({.layers = to_.layers[i], .node = to_.nodes[i]});
    if (!to_.devices.empty()) build.stages[i].device = to_.devices[i];
    report_.stages.push_back({.node = to_.nodes[i]->name(), .layers = to_.layers[i]});
    if (!to_.node_pids.empty()) report_.stages[i].node_pid = to_.node_pids[i];
  }
  absl::FPrintF(stderr, "%s\n", ModelLine(report_));
  ProgressBars bars(stderr, isatty(STDERR_FILENO) != 0, StageLabels(report_));
  auto pipeline = Pipeline::Build(
      std::move(build), &generator_, [&](size_t stage, const wire::LoadProgress& progress) {
        bars.Update(stage, progress.bytes_done(), progress.bytes_total());
        return !interrupt_.requested();
      });
  if (!pipeline.ok()) return Explain(pipeline.status());
  pipeline_ = *std::move(pipeline);
  for (size_t i = 0; i < to_.layers.size(); ++i) {
    report_.stages[i].info = pipeline_->stages()[i];
    bars.Update(i, report_.stages[i].info.slice_bytes(), report_.stages[i].info.slice_bytes());
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
  request_.sampler = SamplerOf(options_);

  GeneratedOutput out;
  if (!options_.json) {
    absl::FPrintF(stderr, "\n");
    out.Write(options_.prompt);
  }
  auto result = generator_.Run(pipeline_.get(), request_, [&](const wire::SampledToken& token) {
    report_.OnToken(SteadyTime::Now());
    return options_.json || out.Write(token.piece());
  });
  absl::Status written = options_.json ? absl::OkStatus() : out.Finish();
  if (interrupt_.requested()) return absl::CancelledError("interrupted");
  if (!result.ok()) {
    return absl::IsInvalidArgument(result.status()) ? result.status()
                                                    : Explain(pipeline_->Diagnose(result.status()));
  }
  report_.prompt = options_.prompt;
  report_.prompt_tokens = request_.prompt;
  report_.tokens = std::move(result->tokens);
  report_.finish_reason = FinishName(result->finish);
  report_.seed = options_.seed;
  report_.prompt_us = result->prompt_us;
  report_.decode_us = result->decode_us;
  for (size_t i = 0; i < report_.stages.size(); ++i) {
    report_.stages[i].prompt = result->prompt_stages[i];
    report_.stages[i].decode = result->decode_stages[i];
  }
  return written;
}

wire::SamplerSettings SamplerOf(const GenerateFlags& options) {
  wire::SamplerSettings sampler;
  sampler.set_seed(options.seed);
  sampler.set_temperature(options.temperature);
  sampler.set_top_k(options.top_k);
  sampler.set_top_p(options.top_p);
  sampler.set_min_p(options.min_p);
  sampler.set_ignore_eog(options.ignore_eos);
  return sampler;
}

TextRun::TextRun(GenerateFlags options) : impl_(std::make_unique<Impl>(std::move(options))) {}
TextRun::~TextRun() = default;
bool TextRun::interrupted() const { return impl_->interrupted(); }
absl::Status TextRun::Explain(const absl::Status& status) const { return impl_->Explain(status); }
absl::Status TextRun::Run(TextStages stages) { return impl_->Run(std::move(stages)); }

}  // namespace strata
