// The report of `strata demo` and `strata run` on a generation: one line for people, or JSON for
// scripts. Pure.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/request/generation_request.h"
#include "proto/frame.pb.h"
#include "proto/node.pb.h"
#include "shard/model/architecture.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"

namespace strata {

struct GenerationReport {
  struct Model {
    PrintableText name;
    std::string id;
    PrintableText architecture;
    uint32_t n_layer = 0;
    uint64_t tensor_bytes = 0;
  };
  struct Stage {
    std::string node;
    LayerRange layers;
    wire::StageInfo info;
    pid_t node_pid = 0;  // 0: the node is on another machine
    StageTotal prompt, decode;
  };
  Model model;
  std::vector<Stage> stages;
  std::string prompt;
  std::vector<int32_t> prompt_tokens;
  std::vector<wire::SampledToken> tokens;
  std::string finish_reason;
  uint64_t seed = 0;
  int64_t prompt_us = 0;         // to the first token
  int64_t decode_us = 0;         // from the first token to the last
  absl::Duration longest_pause;  // between two tokens

  // Records the arrival of the next token.
  void OnToken(SteadyTime now) {
    if (last_token != SteadyTime::InfinitePast()) {
      longest_pause = std::max(longest_pause, now - last_token);
    }
    last_token = now;
  }
  SteadyTime last_token = SteadyTime::InfinitePast();
};

// "qwen: 28 layers, 1.2 GiB, on 3 nodes", and the label of each stage's progress bar.
std::string ModelLine(const GenerationReport& report);
std::vector<std::string> StageLabels(const GenerationReport& report);

// Nodes, tokens and tokens per second.
std::string GenerationSummary(const GenerationReport& report);
// Several lines, with the last newline.
std::string GenerationJson(const GenerationReport& report);

}  // namespace strata
