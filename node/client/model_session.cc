#include "node/client/model_session.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "node/base/progress.h"
#include "node/base/standard_output.h"
#include "node/client/generated_output.h"
#include "node/gateway/generation_proto.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

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

void AddEnd(const GenerationResult& end, GenerationReport* report) {
  report->finish_reason = end.reason == FinishReason::kLength            ? "length"
                          : end.reason == FinishReason::kEndOfGeneration ? "stop"
                                                                         : "cancelled";
  const GenerationUsage& usage = end.usage;
  report->prompt_us = usage.prompt_us;
  report->decode_us = usage.decode_us;
  for (size_t i = 0; i < report->stages.size(); ++i) {
    GenerationReport::Stage& to = report->stages[i];
    if (i < usage.prompt_stages.size()) to.prompt = usage.prompt_stages[i];
    if (i < usage.decode_stages.size()) to.decode = usage.decode_stages[i];
  }
}

}  // namespace

void PrintNote(absl::string_view note) {
  absl::FPrintF(stderr, "%v\n", PrintableText::From(note, kShownMessageBytesMax));
}

GenerationReport ReportOf(const wire::ModelStatus& model) {
  GenerationReport report;
  report.model = {.name = PrintableText::From(model.name()),
                  .id = model.model_id(),
                  .architecture = PrintableText::From(model.architecture()),
                  .n_layer = model.n_layer(),
                  .tensor_bytes = model.tensor_bytes()};
  for (const wire::ModelStage& stage : model.stages()) {
    report.stages.push_back({.node = stage.node_name(),
                             .layers = {stage.layers().begin(), stage.layers().end()},
                             .info = stage.info()});
  }
  return report;
}

ModelSession::~ModelSession() {
  if (client_ != nullptr) client_->Release();
}

void ModelSession::CatchInterrupts() {
  if (interrupt_.has_value()) return;
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of a write instead
  interrupt_.emplace([this] {
    if (CoordinatorClient* const client = to_cancel_) client->Cancel();
  });
}

absl::Status ModelSession::Connect(const ClientOptions& options) {
  auto client = CoordinatorClient::Connect(options);
  if (!client.ok()) return client.status();
  Use(*std::move(client));
  return absl::OkStatus();
}

void ModelSession::Use(std::unique_ptr<CoordinatorClient> client) {
  client_ = std::move(client);
  to_cancel_ = client_.get();
  CatchInterrupts();
  if (interrupted()) client_->Cancel();  // it came before
}

absl::StatusOr<CoordinatorClient::Loaded> ModelSession::Load(
    const wire::LoadModelRequest& request) {
  std::unique_ptr<ProgressBars> bars;
  auto loaded = client_->LoadModel(request, [&](const wire::LoadModelEvent& event) {
    if (!event.note().empty()) PrintNote(event.note());
    if (event.has_placed()) {
      const GenerationReport report = ReportOf(event.placed());
      PrintNote(ModelLine(report));
      bars =
          std::make_unique<ProgressBars>(stderr, isatty(STDERR_FILENO) != 0, StageLabels(report));
    }
    const wire::LoadProgress& done = event.progress().progress();
    if (event.has_progress() && bars != nullptr) {
      bars->Update(event.progress().stage(), done.bytes_done(), done.bytes_total());
    }
  });
  if (!loaded.ok()) return Explain(loaded.status());
  if (bars != nullptr) {
    for (int i = 0; i < loaded->model.stages_size(); ++i) {
      const uint64_t bytes = loaded->model.stages(i).info().slice_bytes();
      bars->Update(static_cast<size_t>(i), bytes, bytes);
    }
    bars->Finish();
  }
  return loaded;
}

absl::Status ModelSession::Generate(const GenerateFlags& options, GenerationReport report) {
  wire::GenerateRequest request;
  request.set_model(absl::BytesToHexString(report.model.id));
  request.set_prompt(options.prompt);
  request.set_tokens_max(options.tokens_max);
  *request.mutable_sampler() = SamplerOf(options);
  request.set_shift_context(options.context_shift);
  report.prompt = options.prompt;
  report.seed = options.seed;
  GeneratedOutput out;
  bool ended = false;
  const absl::Status status = client_->Generate(request, [&](const wire::GenerateEvent& event) {
    if (event.has_started()) {
      report.prompt_tokens.assign(event.started().prompt().begin(), event.started().prompt().end());
      if (options.json) return true;
      absl::FPrintF(stderr, "\n");
      return out.Write(options.prompt);
    }
    if (event.has_token()) {
      report.tokens.push_back(event.token());
      report.OnToken(SteadyTime::Now());
      return options.json || out.Write(event.token().piece());
    }
    if (!event.has_ended()) return true;
    ended = true;
    AddEnd(EndedFromWire(event.ended()), &report);
    return true;
  });
  const bool shown = !options.json && !report.prompt_tokens.empty();
  absl::Status written = shown ? out.Finish() : absl::OkStatus();
  if (!written.ok()) return written;
  if (!status.ok()) return WhyFailed(report.model.id, status);
  if (!ended) return absl::InternalError("the request ended without a result");
  if (options.json) return WriteToStdout(GenerationJson(report));
  absl::FPrintF(stderr, "\n%s\n", GenerationSummary(report));
  return absl::OkStatus();
}

absl::Status ModelSession::Embed(const GenerateFlags& options, const GenerationReport& report) {
  wire::GenerateRequest request;
  request.set_model(absl::BytesToHexString(report.model.id));
  request.set_prompt(options.prompt);
  request.set_tokens_max(1);
  request.mutable_sampler()->set_pooling(wire::POOLING_OF_MODEL);
  nlohmann::ordered_json embedding, tokens;
  const absl::Status status = client_->Generate(request, [&](const wire::GenerateEvent& event) {
    if (event.has_started()) tokens = event.started().prompt();
    if (event.has_token()) embedding = event.token().embedding();
    return true;
  });
  if (!status.ok()) return WhyFailed(report.model.id, status);
  if (embedding.empty()) return absl::InternalError("the request ended without a result");
  if (!options.json) return WriteToStdout(embedding.dump() + "\n");
  const nlohmann::ordered_json json = {
      {"model", report.model.name.str()}, {"prompt_tokens", tokens}, {"embedding", embedding}};
  return WriteToStdout(json.dump() + "\n");
}

// The coordinator may know more about a failed model than the error of the request.
absl::Status ModelSession::WhyFailed(const std::string& model_id, const absl::Status& status) {
  if (interrupted() || absl::IsInvalidArgument(status)) return Explain(status);
  const auto models = client_->ListModels();
  if (!models.ok()) return Explain(status);
  for (const wire::ModelStatus& model : models->models()) {
    if (model.model_id() == model_id && model.state() == wire::ModelStatus::FAILED) {
      return FromWire(model.status());
    }
  }
  return Explain(status);
}

}  // namespace strata
