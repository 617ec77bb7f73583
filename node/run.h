// `strata plan` and `strata run`: a model on the cluster that is there. Both ask the nodes what
// they measured and plan from that; the one shows the plan, the other carries it out and writes a
// text. This process coordinates the run: when it ends, the stages are unloaded.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "node/cluster_client.h"
#include "node/text_run.h"

namespace strata {

struct PlanOptions {
  ClusterClient::Options client;
  std::string model;   // path of a GGUF
  uint32_t n_ctx = 0;  // 0: the model's, at most kContextDefaultMax
  uint32_t n_seqs = 1;
  std::string objective = "latency";
  std::string assign, exclude, reserve;  // coordinator/plan_options.h
  bool unverified = false;
  bool json = false;
};

// Prints to stdout. Waits a few seconds for measurements under way, saying so on stderr. Blocks.
// kUnavailable: no node; errors of MakePlan(), ModelFile::Open() and CutRuleFor().
absl::Status RunPlan(const PlanOptions& options);

struct RunOptions {
  PlanOptions plan;  // its json is not used
  TextOptions text;
};

// Blocks. Text and JSON go to stdout, all else to stderr. Errors as RunPlan() and TextRun::Run().
absl::Status RunRun(const RunOptions& options);

}  // namespace strata
