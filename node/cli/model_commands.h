// The verbs about models of a running cluster: `strata plan` shows how a model would be shared,
// `load` and `unload` do and undo it, `run` generates text with one, loading it first if need be
// and then unloading it again, `drain` frees a node. All call the coordinator, through any node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"
#include "node/client/model_session.h"
#include "proto/frame.pb.h"

namespace strata {

struct PlanOptions {
  ClientOptions client;
  std::string model;  // path of a GGUF, on the machine of the node that is called, or a hub's name
  bool offline = false;  // of a hub's name: only what is here
  bool whole = false;    // of a hub's name: the whole file is fetched to this machine
  uint32_t n_ctx = 0;    // 0: chosen by what fits
  uint32_t n_seqs = 1;
  std::string objective = "latency";
  std::string assign, exclude, reserve;  // coordinator/planner/placement_options.h
  std::string activations;               // their type between stages; empty: f32
  std::string cpu_moe;                   // experts in the CPU's memory; empty: auto
  std::string type_k, type_v;            // of the cache; empty: f16
  std::string flash_attention;           // empty: auto
  uint32_t kv_cells = 0;                 // positions of all requests together; 0: n_ctx each
  std::optional<uint32_t> checkpoints;
  bool exact = false;  // the output of a request never depends on others
  bool unverified = false;
  bool json = false;
};

// Each prints to stdout, notes and progress to stderr, and blocks. kUnavailable: no node, or none
// that coordinates; else the coordinator's own errors (coordinator/models/coordinator.h). A model
// of a hub is fetched first, or by the nodes (hub_commands.h).
absl::Status RunPlan(const PlanOptions& options);

struct LoadOptions {
  PlanOptions plan;
  int64_t keep_alive_ms = 0;  // without requests, until it is unloaded; 0: it stays
  wire::Speculation speculation = wire::SPECULATION_AUTO;
  std::string draft;    // a model that drafts its tokens, as `model` of the plan; empty: none
  bool pinned = false;  // it is never unloaded to make room for another
  bool use_mmap = true;
  bool allow_mixed_versions = false;
  std::string
      chat_template;  // a file here, or the name of one in the model's file; empty: its usual one
};
absl::Status RunLoad(const LoadOptions& options);

struct UnloadOptions {
  ClientOptions client;
  std::string model;  // name, path or start of its id; empty: the only one
  bool json = false;
};
absl::Status RunUnload(const UnloadOptions& options);

struct DrainOptions {
  ClientOptions client;
  std::string node;  // its name or the start of its id; empty: the one of this machine
  bool undo = false;
  bool json = false;
};
absl::Status RunDrain(const DrainOptions& options);

struct RunOptions {
  PlanOptions plan;  // its json is not used; `model` may also name one that is loaded
  std::optional<std::string> prompt;  // as given: "-" and none mean stdin's
  GenerateFlags generation;           // its prompt is the final one
  bool embed = false;                 // the prompt's embedding instead of a text
};
absl::Status RunRun(const RunOptions& options);

}  // namespace strata
