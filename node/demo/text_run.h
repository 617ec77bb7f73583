// One text through stages that this process loads and coordinates itself, with progress bars: the
// body of `strata demo`. And what a text is written with, which `strata run` has too.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/node_client.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"

namespace strata {

struct GenerateFlags {
  std::string prompt = "The old captain";
  uint32_t tokens_max = 80;
  float temperature = 0.4f;
  int32_t top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.0f;
  uint64_t seed = 1;
  bool ignore_eos = false;
  bool json = false;
  uint32_t n_ctx = 0;  // 0: the model's, at most kContextDefaultMax
  bool unverified = false;
  bool use_mmap = true;
  bool allow_mixed_versions = false;
};

wire::SamplerSettings SamplerOf(const GenerateFlags& options);

// Who computes what.
struct TextStages {
  std::shared_ptr<const ModelFile> model;  // shared with the caller
  std::string model_path;                  // on `source`, or on every node
  std::vector<LayerRange> layers;
  std::vector<NodeClient*> nodes;         // nodes[i] holds layers[i]; outlive the run
  std::vector<std::string> devices = {};  // [stages] as ggml names them; empty: the CPU of each
  std::vector<pid_t> node_pids = {};      // [stages], for --json; empty: not of this machine
  NodeClient* source = nullptr;  // the others get their weights from it; null: all have the file
  wire::Epoch epoch;
  std::string listen_host = "127.0.0.1";  // where the last stage reaches this process
};

class TextRun {
 public:
  // From here on Ctrl-C, SIGTERM and SIGHUP end the text in order, and a second one the process.
  explicit TextRun(GenerateFlags options);
  ~TextRun();

  // Any thread.
  bool interrupted() const;
  // What the user asked to stop outweighs what failed because of it: kCancelled when interrupted.
  absl::Status Explain(const absl::Status& status) const;

  // Blocks until the text is written and everything is unloaded. Text and JSON go to stdout, all
  // else to stderr. Once. kCancelled: interrupted; else what failed, with the node.
  absl::Status Run(TextStages stages);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
