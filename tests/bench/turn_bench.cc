// Times of the parts of a decoding step, over running nodes, one stage each: one request, with the
// likeliest token, through the real scheduler. With one node, the step without computing and
// sampling is the turn: from the last stage's token, through the coordinator, to the first stage's
// next start.
//
//   turn_bench MODEL TOKENS HOST:PORT…     lines of "part p50 p90 p99 mean share", us
//
// The means of computing, sampling, inboxes, scheduler (with the first send) and links add up to
// the step's; medians need not.
//
// STRATA_KEY_FILE names the nodes' key; without it they are --open.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/generation/generation_engine.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/generation/pipeline.h"
#include "node/keys/node_security.h"
#include "shard/model/model_file.h"
#include "transport/base/clock.h"

namespace strata {
namespace {

constexpr size_t kWarmSteps = 20;
constexpr uint32_t kPromptTokens = 16;

// Times each result between pipeline and engine, and each step between engine and pipeline.
class TurnTimer final : public Pipeline::Listener, public Pipeline {
 public:
  explicit TurnTimer(GenerationEngine* engine) : engine_(engine) {}
  void SetPipeline(Pipeline* pipeline) { pipeline_ = pipeline; }  // before the first step

  absl::StatusOr<uint64_t> Submit(wire::Step step) override {
    const int64_t now_us = Clock::Real()->NowUs();
    auto id = pipeline_->Submit(std::move(step));
    sent_us_ = Clock::Real()->NowUs() - now_us;
    return id;
  }
  absl::Status Diagnose(const absl::Status& broken) override { return pipeline_->Diagnose(broken); }
  const std::vector<wire::StageInfo>& stages() const override { return pipeline_->stages(); }

  void OnResult(wire::Result result) override {
    const int64_t now_us = Clock::Real()->NowUs();
    const bool decode = result.tokens_size() == 1;
    std::vector<std::pair<std::string, int64_t>> parts;
    int64_t rest_us = now_us - last_us_;
    parts.emplace_back("step", rest_us);
    for (const wire::StageTiming& timing : result.timings()) {
      const std::string stage = absl::StrCat("stage ", timing.stage());
      parts.emplace_back(stage + " computes", timing.compute_us());
      parts.emplace_back(stage + " inbox", timing.queue_us());
      rest_us -= timing.compute_us() + timing.queue_us() + timing.sample_us();
    }
    const auto stages = static_cast<size_t>(result.timings_size());
    const auto sample_us =
        stages == 0 ? 0 : result.timings(static_cast<int>(stages) - 1).sample_us();
    parts.emplace_back("sampling", sample_us);
    if (stages == 1) parts.emplace_back("turn", rest_us + result.timings(0).queue_us());
    parts.emplace_back("scheduler", scheduled_us_ - sent_us_);
    parts.emplace_back("first send", sent_us_);
    parts.emplace_back("links", rest_us - scheduled_us_);
    engine_->OnResult(std::move(result));  // sends the next step
    scheduled_us_ = Clock::Real()->NowUs() - now_us;
    last_us_ = now_us;
    if (!decode || ++seen_ <= kWarmSteps) return;
    for (const auto& [part, us] : parts) us_[part].push_back(us);
  }
  void OnStepError(wire::StepError error) override { engine_->OnStepError(std::move(error)); }
  void OnWritable() override { engine_->OnWritable(); }
  void OnBroken(absl::Status status) override { engine_->OnBroken(std::move(status)); }

  // REQUIRES: no more results come.
  void Print() {
    const auto& steps = us_["step"];
    if (steps.empty()) return;
    const auto mean_of = [](const std::vector<int64_t>& us) {
      return std::accumulate(us.begin(), us.end(), 0.0) / static_cast<double>(us.size());
    };
    const double step_us = mean_of(steps);
    for (auto& [part, us] : us_) {
      std::sort(us.begin(), us.end());
      const auto at = [&us](size_t percent) { return us[us.size() * percent / 100]; };
      absl::PrintF("%-20s %8d %8d %8d %8.0f %7.1f %%\n", part, at(50), at(90), at(99), mean_of(us),
                   100 * mean_of(us) / step_us);
    }
  }

 private:
  GenerationEngine* const engine_;
  Pipeline* pipeline_ = nullptr;
  // Used by the last stage's link's thread, then by main.
  int64_t last_us_ = 0;
  int64_t scheduled_us_ = 0;  // for the last result, with the sending of the next step
  int64_t sent_us_ = 0;
  size_t seen_ = 0;
  std::map<std::string, std::vector<int64_t>> us_;
};

class EndWaiter final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken&) override {}
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    status_ = std::move(status);
    ended_.Notify();
  }
  absl::Status Wait() {
    ended_.WaitForNotification();
    return status_;
  }

 private:
  absl::Status status_;
  absl::Notification ended_;
};

absl::Status Run(const std::string& path, uint32_t tokens, const std::vector<std::string>& nodes) {
  auto file = ModelFile::Open(path);
  if (!file.ok()) return file.status();
  std::vector<std::unique_ptr<NodeClient>> clients;
  PipelineOptions build;
  build.model_path = path;
  build.model_id = (*file)->id();
  build.epoch.set_counter(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
  build.epoch.set_coordinator_id("turn_bench");
  const auto n_nodes = static_cast<uint32_t>(nodes.size());
  for (uint32_t i = 0; i < n_nodes; ++i) {
    auto client = NodeClient::Connect({.address = nodes[i]});
    if (!client.ok()) return client.status();
    clients.push_back(*std::move(client));
    const uint32_t n_layer = (*file)->n_layer();
    build.stages.push_back({.layers = {n_layer * i / n_nodes, n_layer * (i + 1) / n_nodes},
                            .node = clients.back().get()});
  }
  build.n_ctx = kPromptTokens + tokens + 16;
  build.n_threads = 1;
  GenerationEngine engine({});
  TurnTimer turns(&engine);
  auto pipeline = Pipeline::Build(std::move(build), &turns,
                                  [](size_t, const wire::LoadProgress&) { return true; });
  if (!pipeline.ok()) return pipeline.status();
  turns.SetPipeline(pipeline->get());
  if (auto s = engine.Start(&turns); !s.ok()) return s;
  GenerationRequest request;
  for (uint32_t i = 0; i < kPromptTokens; ++i)
    request.prompt.push_back(static_cast<int32_t>(i + 5));
  request.tokens_max = tokens;
  request.sampler.set_ignore_eog(true);
  const auto listener = std::make_shared<EndWaiter>();  // shared with the engine
  if (auto id = engine.Add(std::move(request), listener); !id.ok()) return id.status();
  const absl::Status status = listener->Wait();
  engine.Stop(absl::OkStatus());
  pipeline->reset();
  if (status.ok()) turns.Print();
  return status;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  uint32_t tokens = 0;
  if (argc < 4 || !absl::SimpleAtoi(argv[2], &tokens)) {
    std::fprintf(stderr, "usage: turn_bench MODEL TOKENS HOST:PORT...\n");
    return 2;
  }
  const char* const key = std::getenv("STRATA_KEY_FILE");
  absl::Status status =
      strata::SecureClient({.open = key == nullptr, .file = key == nullptr ? "" : key}, "");
  if (status.ok()) status = strata::Run(argv[1], tokens, {argv + 3, argv + argc});
  if (status.ok()) return 0;
  std::fprintf(stderr, "turn_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
