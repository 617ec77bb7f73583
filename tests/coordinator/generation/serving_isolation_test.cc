// No output depends on the other requests in its steps, but for the rounding of kernels that take
// batches of other sizes: log-probabilities at each place are compared between sixteen requests
// together and each alone, and the difference with the one that a wrong row would make.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/generation/serving_support.h"

namespace strata {
namespace {

constexpr int kRequests = 16;

struct Case {
  std::string name;
  std::string model;
  std::vector<uint32_t> cuts;
  std::string cache_type;  // of keys and values
  // Bounds the difference of any log-probability.
  float rounding = 0;
};

// The difference of two outputs of a request, up to where they part.
struct Difference {
  float largest = 0;
  int positions = 0;
  int parted = 0;            // outputs
  float gap_at_parting = 0;  // the largest, of the two likeliest tokens of the request alone
};

float Largest(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

float GapOf(std::vector<float> logprobs) {
  std::partial_sort(logprobs.begin(), logprobs.begin() + 2, logprobs.end(), std::greater<>());
  return logprobs[0] - logprobs[1];
}

class IsolationTest : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Serving> Open(uint32_t n_slots, bool keep_prefixes) {
    CacheOptions cache = {.type_k = GetParam().cache_type, .type_v = GetParam().cache_type};
    cache.checkpoints = 8;
    return std::make_unique<Serving>(
        LocalPipelineOptions{.model_path = ModelPath(GetParam().model),
                             .cuts = GetParam().cuts,
                             .n_slots = n_slots,
                             .cache = cache},
        SchedulerPolicy{.chunk_tokens = 16, .keep_prefixes = keep_prefixes});
  }

  // Greedy, so that outputs part only where rounding swaps the two likeliest tokens.
  static GenerationRequest Request(int i) {
    GenerationRequest request = MakeRequest(i, 12 + 11 * static_cast<uint32_t>(i % 6), 24);
    request.sampler.set_temperature(0);
    return request;
  }

  void Compare(const Output& got, const Output& alone) {
    for (size_t i = 0; i < got.tokens.size() && i < alone.tokens.size(); ++i) {
      const float largest = Largest(got.logprobs[i], alone.logprobs[i]);
      difference_.largest = std::max(difference_.largest, largest);
      ++difference_.positions;
      ASSERT_LT(largest, GetParam().rounding) << "at token " << i;
      if (got.tokens[i] == alone.tokens[i]) continue;
      const float gap = GapOf(alone.logprobs[i]);
      ++difference_.parted;
      difference_.gap_at_parting = std::max(difference_.gap_at_parting, gap);
      // Each of the two tokens moved by no more than the rounding.
      ASSERT_LE(gap, 2 * largest) << "at token " << i;
      return;
    }
    EXPECT_EQ(got.tokens.size(), alone.tokens.size());
  }

  void Report(const char* what) const {
    std::cout << GetParam().name << ", " << what << ": " << difference_.positions
              << " positions, largest difference " << difference_.largest << "; "
              << difference_.parted
              << " of the outputs parted, where the two likeliest tokens differed by "
              << difference_.gap_at_parting << " at most\n";
  }

  Difference difference_;
};

TEST_P(IsolationTest, SixteenTogetherGetTheOutputsOfEachAlone) {
  std::vector<Output> alone;
  std::vector<Output> alone_next;
  const auto next_turn = [](GenerationRequest request, const Output& output) {
    request.prompt.insert(request.prompt.end(), output.tokens.begin(), output.tokens.begin() + 12);
    for (int32_t token = 20; token < 30; ++token) request.prompt.push_back(token);
    request.tokens_max = 16;
    return request;
  };
  {
    const auto by_itself = Open(1, /*keep_prefixes=*/false);
    for (int i = 0; i < kRequests; ++i) {
      alone.push_back(by_itself->Generate(Request(i)));
      alone_next.push_back(by_itself->Generate(next_turn(Request(i), alone[i])));
    }
  }
  const auto together = Open(kRequests, /*keep_prefixes=*/true);
  const auto run = [&](const std::vector<GenerationRequest>& requests,
                       const std::vector<Output>& expected, const char* what) {
    difference_ = {};
    std::vector<std::shared_ptr<Listener>> listeners;
    for (int i = 0; i < kRequests; ++i) {
      listeners.push_back(std::make_shared<Listener>());
      ASSERT_TRUE(together->engine->Add(requests[i], listeners.back()).ok());
      // The first half decodes while the prompts of the others are fed in chunks.
      if (i < kRequests / 2) listeners.back()->WaitForTokens(1);
    }
    uint32_t cached = 0;
    for (int i = 0; i < kRequests; ++i) {
      const absl::Status end = listeners[i]->WaitForEnd();
      EXPECT_TRUE(end.ok()) << end;
      SCOPED_TRACE(::testing::Message() << what << ", request " << i);
      Compare(listeners[i]->output(), expected[i]);
      cached += listeners[i]->usage().cached_tokens;
    }
    Report(what);
    if (what == std::string("next turn")) {
      EXPECT_GT(cached, 0);
    }
  };
  std::vector<GenerationRequest> first, second;
  for (int i = 0; i < kRequests; ++i) {
    first.push_back(Request(i));
    second.push_back(next_turn(Request(i), alone[i]));
  }
  run(first, alone, "first turn");
  run(second, alone_next, "next turn");
  const SchedulerStats stats = together->engine->Stats();
  EXPECT_EQ(stats.steps_failed, 0);
  EXPECT_LT(stats.steps, stats.tokens);
}

// The bound is meaningful: one token of the prompt is replaced, as if a row of another request
// stood in its place.
TEST_P(IsolationTest, ARowOfAnotherRequestDiffersFarBeyondRounding) {
  const auto by_itself = Open(1, /*keep_prefixes=*/false);
  float smallest = 1e9;
  for (int i = 0; i < 6; ++i) {
    GenerationRequest request = Request(i);
    request.tokens_max = 1;
    const Output right = by_itself->Generate(request);
    // A token that every layer still sees.
    int32_t& token = request.prompt[request.prompt.size() - 3];
    token = 3 + (token - 3 + 41) % (kVocabulary - 3);
    const Output wrong = by_itself->Generate(request);
    smallest = std::min(smallest, Largest(right.logprobs[0], wrong.logprobs[0]));
  }
  std::cout << GetParam().name << ": a row of another request makes " << smallest << " at least\n";
  EXPECT_GT(smallest, 2 * GetParam().rounding);
}

INSTANTIATE_TEST_SUITE_P(
    Models, IsolationTest,
    ::testing::Values(Case{"llama_f32", "llama/32", {2, 5}, "f32", 0.05f},
                      Case{"llama_f16", "llama/32", {2, 5}, "f16", 0.05f},
                      Case{"llama_q8_0", "llama/32", {2, 5}, "q8_0", 0.05f},
                      Case{"llama_q4_0", "llama/32", {2, 5}, "q4_0", 0.05f},
                      Case{"mamba2", "mamba2", {3}, "f32", 0.05f},
                      Case{"qwen3next_q8_0", "qwen3next", {4}, "q8_0", 0.05f},
                      Case{"gemma3_f16", "gemma3_array", {3}, "f16", 0.05f},
                      Case{"gemma3_q8_0", "gemma3_array/32", {3}, "q8_0", 0.05f}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace strata
