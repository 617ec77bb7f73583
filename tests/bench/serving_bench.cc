// Serves many requests at a time over running nodes, one stage each, and measures the speed.
// Prints a line of JSON for each measurement. tests/bench/serving.py starts the nodes and this
// program.
//
//   serving_bench --model FILE --node HOST:PORT… [--ctx N] [--slots N] [--chunk N] [--wait-ms N]
//                 [--prompt N] keep:32 prefill:512 decode:8 beside:2048 …
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/generation/generation_engine.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/generation/pipeline.h"
#include "nlohmann/json.hpp"
#include "shard/model/model_file.h"

namespace strata {
namespace {

constexpr uint32_t kKeptPrompt = 900;  // of a request whose prefix is kept
constexpr size_t kWarmTokens = 4;      // of each request, before it counts
constexpr absl::Duration kLong = absl::Minutes(5);

struct Options {
  std::string model;
  std::vector<std::string> nodes;
  std::string listen_host = "127.0.0.1";
  uint32_t ctx = 2304;
  uint32_t slots = 2;
  uint32_t batch = 512;
  uint32_t prompt = 32;  // of a request that is to decode
  uint32_t tokens = 48;  // of each request that decodes
  SchedulerPolicy policy;
  std::vector<std::pair<std::string, uint32_t>> work;
};

// The time of each token of a request.
class TokenTimes final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken&) override {
    absl::MutexLock lock(mu_);
    at_.push_back(absl::Now());
  }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    absl::MutexLock lock(mu_);
    end_ = std::move(status);
    ended_ = true;
  }

  absl::Status WaitForTokens(size_t n) {
    absl::MutexLock lock(mu_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_ || at_.size() >= n; };
    if (!mu_.AwaitWithTimeout(absl::Condition(&there), kLong)) {
      return absl::DeadlineExceededError("no token comes");
    }
    if (at_.size() >= n) return absl::OkStatus();
    return end_.ok() ? absl::InternalError("the request ended early") : end_;
  }
  void WaitForEnd() {
    absl::MutexLock lock(mu_);
    mu_.AwaitWithTimeout(absl::Condition(&ended_), kLong);
  }
  std::vector<absl::Time> at() const {
    absl::MutexLock lock(mu_);
    return at_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<absl::Time> at_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
};

void Print(const nlohmann::json& line) {
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

uint64_t CountIn(const std::vector<absl::Time>& times, absl::Time begin, absl::Time end) {
  return static_cast<uint64_t>(std::count_if(
      times.begin(), times.end(), [&](absl::Time at) { return begin < at && at <= end; }));
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)), engine_({options_.policy}) {}
  ~Bench() { engine_.Stop(absl::OkStatus()); }

  absl::Status Load();
  absl::Status Run();

 private:
  GenerationRequest MakeRequest(uint32_t prompt_tokens, uint32_t tokens_max);
  absl::StatusOr<std::shared_ptr<TokenTimes>> Start(GenerationRequest request,
                                                    uint64_t* id = nullptr);
  // Each runs a part of the benchmark and prints its line.
  absl::Status Prefill(uint32_t prompt_tokens);
  absl::Status Decode(uint32_t n_streams);
  absl::Status Beside(uint32_t prompt_tokens);
  // Feeds prompts that are kept in the slots.
  absl::Status Keep(uint32_t n_prompts);
  absl::StatusOr<double> PrefillSpeed(uint32_t prompt_tokens);
  absl::StatusOr<double> StreamSpeed(TokenTimes* stream);

  // The line, with the work of the stages since Mark().
  nlohmann::json WithWork(nlohmann::json line) {
    const SchedulerStats now = engine_.Stats();
    const double wall_us = absl::ToDoubleMicroseconds(absl::Now() - since_);
    const auto steps = static_cast<double>(now.steps - before_.steps);
    line["steps"] = now.steps - before_.steps;
    line["rows_per_step"] = static_cast<double>(now.rows - before_.rows) / std::max(1.0, steps);
    line["wall_ms"] = wall_us / 1e3;
    for (size_t i = 0; i < now.stages.size(); ++i) {
      const auto ms = [&](uint64_t StageTotal::* field) {
        return static_cast<double>(now.stages[i].*field - before_.stages[i].*field) / 1e3;
      };
      line["stages"].push_back({{"compute_ms", ms(&StageTotal::compute_us)},
                                {"sample_ms", ms(&StageTotal::sample_us)},
                                {"queue_ms", ms(&StageTotal::queue_us)}});
    }
    return line;
  }
  void Mark() {
    before_ = engine_.Stats();
    since_ = absl::Now();
  }

  const Options options_;
  std::minstd_rand random_{1};
  uint32_t n_vocab_ = 0;
  std::vector<std::unique_ptr<NodeClient>> nodes_;
  GenerationEngine engine_;
  std::unique_ptr<Pipeline> pipeline_;
  SchedulerStats before_;
  absl::Time since_;
};

absl::Status Bench::Load() {
  auto file = ModelFile::Open(options_.model);
  if (!file.ok()) return file.status();
  PipelineOptions build;
  build.model_path = options_.model;
  build.model_id = (*file)->id();
  build.epoch.set_counter(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
  build.epoch.set_coordinator_id("serving_bench");
  const auto n_nodes = static_cast<uint32_t>(options_.nodes.size());
  for (uint32_t i = 0; i < n_nodes; ++i) {
    auto client = NodeClient::Connect({.address = options_.nodes[i]});
    if (!client.ok()) return client.status();
    nodes_.push_back(*std::move(client));
    const uint32_t n_layer = (*file)->n_layer();
    build.stages.push_back({.layers = {n_layer * i / n_nodes, n_layer * (i + 1) / n_nodes},
                            .node = nodes_.back().get()});
  }
  build.n_ctx = options_.ctx;
  build.n_seq_max = options_.slots;
  build.n_batch = options_.batch;
  build.n_threads = 1;
  build.listen_host = options_.listen_host;
  auto pipeline = Pipeline::Build(std::move(build), &engine_,
                                  [](size_t, const wire::LoadProgress&) { return true; });
  if (!pipeline.ok()) return pipeline.status();
  pipeline_ = *std::move(pipeline);
  n_vocab_ = pipeline_->stages()[0].n_vocab();
  return engine_.Start(pipeline_.get());
}

GenerationRequest Bench::MakeRequest(uint32_t prompt_tokens, uint32_t tokens_max) {
  GenerationRequest request;
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random_() % std::max(1u, n_vocab_)));
  }
  request.tokens_max = tokens_max;
  // The defaults of `strata run`.
  request.sampler.set_temperature(0.4f);
  request.sampler.set_top_k(40);
  request.sampler.set_top_p(0.95f);
  request.sampler.set_seed(1);
  request.sampler.set_ignore_eog(true);
  return request;
}

absl::StatusOr<std::shared_ptr<TokenTimes>> Bench::Start(GenerationRequest request, uint64_t* id) {
  auto times = std::make_shared<TokenTimes>();
  auto added = engine_.Add(std::move(request), times);
  if (!added.ok()) return added.status();
  if (id != nullptr) *id = *added;
  return times;
}

absl::StatusOr<double> Bench::PrefillSpeed(uint32_t prompt_tokens) {
  GenerationRequest request = MakeRequest(prompt_tokens, 1);
  const absl::Time begin = absl::Now();
  auto times = Start(std::move(request));
  if (!times.ok()) return times.status();
  if (auto s = (*times)->WaitForTokens(1); !s.ok()) return s;
  const absl::Time end = (*times)->at()[0];
  (*times)->WaitForEnd();
  return prompt_tokens / absl::ToDoubleSeconds(end - begin);
}

absl::Status Bench::Prefill(uint32_t prompt_tokens) {
  Mark();
  auto speed = PrefillSpeed(prompt_tokens);
  if (!speed.ok()) return speed.status();
  Print(WithWork({{"what", absl::StrCat("prefill ", prompt_tokens)}, {"tokens_per_s", *speed}}));
  return absl::OkStatus();
}

absl::Status Bench::Keep(uint32_t n_prompts) {
  for (uint32_t i = 0; i < n_prompts; ++i) {
    if (auto speed = PrefillSpeed(kKeptPrompt); !speed.ok()) return speed.status();
  }
  return absl::OkStatus();
}

absl::Status Bench::Decode(uint32_t n_streams) {
  // First the prompts, which stay in the caches, so that all streams begin to decode at once and at
  // the same position.
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<TokenTimes>> streams;
  for (uint32_t i = 0; i < n_streams; ++i) {
    requests.push_back(MakeRequest(options_.prompt, 1));
    auto times = Start(requests.back());
    if (!times.ok()) return times.status();
    streams.push_back(*std::move(times));
  }
  for (const auto& stream : streams) {
    if (auto s = stream->WaitForTokens(1); !s.ok()) return s;
    stream->WaitForEnd();
  }
  streams.clear();
  std::vector<uint64_t> ids(n_streams);
  for (uint32_t i = 0; i < n_streams; ++i) {
    // No stream ends by itself, so that all decode during the measurement.
    requests[i].tokens_max = options_.ctx - options_.prompt;
    auto times = Start(std::move(requests[i]), &ids[i]);
    if (!times.ok()) return times.status();
    streams.push_back(*std::move(times));
  }
  for (const auto& stream : streams) {
    if (auto s = stream->WaitForTokens(kWarmTokens); !s.ok()) return s;
  }
  Mark();
  const absl::Time begin = absl::Now();
  const size_t wanted = streams.back()->at().size() + options_.tokens;
  if (auto s = streams.back()->WaitForTokens(wanted); !s.ok()) return s;
  const absl::Time end = absl::Now();
  uint64_t n = 0;
  for (const auto& stream : streams) n += CountIn(stream->at(), begin, end);
  Print(WithWork({{"what", absl::StrCat("decode ", n_streams)},
                  {"tokens_per_s", static_cast<double>(n) / absl::ToDoubleSeconds(end - begin)}}));
  for (const uint64_t id : ids) engine_.Cancel(id);
  for (const auto& stream : streams) stream->WaitForEnd();
  return absl::OkStatus();
}

// The speed of one stream that decodes, over as many tokens as --tokens says.
absl::StatusOr<double> Bench::StreamSpeed(TokenTimes* stream) {
  const size_t first = stream->at().size();
  if (auto s = stream->WaitForTokens(first + options_.tokens); !s.ok()) return s;
  const auto at = stream->at();
  return static_cast<double>(at.size() - first) / absl::ToDoubleSeconds(at.back() - at[first - 1]);
}

// Each is measured alone before and after, as the machine's speed may change meanwhile.
absl::Status Bench::Beside(uint32_t prompt_tokens) {
  const auto mean = [](double a, double b) { return 2 / (1 / a + 1 / b); };
  auto alone = PrefillSpeed(prompt_tokens);
  if (!alone.ok()) return alone.status();
  uint64_t id = 0;
  auto stream = Start(MakeRequest(options_.prompt, options_.ctx - options_.prompt), &id);
  if (!stream.ok()) return stream.status();
  if (auto s = (*stream)->WaitForTokens(kWarmTokens); !s.ok()) return s;
  auto decode_alone = StreamSpeed(stream->get());
  if (!decode_alone.ok()) return decode_alone.status();
  Mark();
  const absl::Time begin = absl::Now();
  auto beside = PrefillSpeed(prompt_tokens);
  if (!beside.ok()) return beside.status();
  const absl::Time end = absl::Now();
  nlohmann::json line = WithWork({{"what", absl::StrCat("beside ", prompt_tokens)}});
  const auto all = (*stream)->at();
  auto decode_after = StreamSpeed(stream->get());
  if (!decode_after.ok()) return decode_after.status();
  const double decode =
      static_cast<double>(CountIn(all, begin, end)) / absl::ToDoubleSeconds(end - begin);
  std::vector<double> gaps_ms;
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] > begin && all[i] <= end)
      gaps_ms.push_back(absl::ToDoubleMilliseconds(all[i] - all[i - 1]));
  }
  std::sort(gaps_ms.begin(), gaps_ms.end());
  line["wait_ms"] = options_.policy.prompt_wait_ms;
  line["prefill"] = *beside;
  line["decode_alone"] = mean(*decode_alone, *decode_after);
  line["decode"] = decode;
  if (!gaps_ms.empty()) {
    line["gap_ms"] = {{"median", gaps_ms[gaps_ms.size() / 2]},
                      {"p95", gaps_ms[gaps_ms.size() * 95 / 100]},
                      {"max", gaps_ms.back()}};
  }
  engine_.Cancel(id);
  (*stream)->WaitForEnd();
  auto after = PrefillSpeed(prompt_tokens);
  if (!after.ok()) return after.status();
  line["prefill_alone"] = mean(*alone, *after);
  Print(line);
  return absl::OkStatus();
}

absl::Status Bench::Run() {
  for (const auto& [what, n] : options_.work) {
    absl::Status status;
    if (what == "prefill") {
      status = Prefill(n);
    } else if (what == "keep") {
      status = Keep(n);
    } else if (what == "decode") {
      status = Decode(n);
    } else {
      status = Beside(n);
    }
    if (!status.ok())
      return absl::Status(status.code(), absl::StrCat(what, ":", n, ": ", status.message()));
  }
  return absl::OkStatus();
}

bool Parse(int argc, char** argv, Options* options) {
  const std::vector<std::pair<std::string, uint32_t*>> numbers = {
      {"--ctx", &options->ctx},
      {"--slots", &options->slots},
      {"--prompt", &options->prompt},
      {"--tokens", &options->tokens},
      {"--chunk", &options->policy.chunk_tokens},
      {"--in-flight", &options->policy.steps_in_flight_max},
      {"--wait-ms", &options->policy.prompt_wait_ms}};
  const std::vector<std::pair<std::string, std::string*>> words = {
      {"--model", &options->model}, {"--listen", &options->listen_host}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      const std::pair<std::string, std::string> work =
          absl::StrSplit(word, absl::MaxSplits(':', 1));
      uint32_t n = 0;
      if (work.first != "prefill" && work.first != "decode" && work.first != "beside" &&
          work.first != "keep") {
        return false;
      }
      if (!absl::SimpleAtoi(work.second, &n) || n == 0) return false;
      options->work.emplace_back(work.first, n);
      continue;
    }
    if (++i == argc) return false;
    bool known = word == "--node";
    if (known) options->nodes.emplace_back(argv[i]);
    for (const auto& [name, value] : numbers) {
      if (name == word) known = absl::SimpleAtoi(argv[i], value);
    }
    for (const auto& [name, value] : words) {
      if (name != word) continue;
      *value = argv[i];
      known = true;
    }
    if (!known) return false;
  }
  return !options->model.empty() && !options->nodes.empty();
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  strata::Options options;
  if (!strata::Parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: serving_bench --model FILE --node HOST:PORT… [--ctx N] [--slots N] [--chunk N] "
        "[--wait-ms N] [--prompt N] [--tokens N] [--listen HOST] "
        "keep:N|prefill:N|decode:N|beside:N…\n");
    return 2;
  }
  strata::Bench bench(std::move(options));
  absl::Status status = bench.Load();
  if (status.ok()) status = bench.Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "serving_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
