#include "node/demo/demo.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/planner/costs/cut.h"
#include "node/demo/demo_model.h"
#include "node/demo/local_cluster.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"

namespace strata {
namespace {

class Demo {
 public:
  explicit Demo(DemoOptions options) : options_(std::move(options)), run_(options_.generation) {}

  absl::Status Run() {
    if (auto s = OpenModel(); !s.ok()) return s;
    if (auto s = StartNodes(); !s.ok()) return s;
    return run_.Run(std::move(stages_));
  }

 private:
  absl::Status OpenModel();
  absl::Status StartNodes();

  const DemoOptions options_;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<std::unique_ptr<NodeClient>> nodes_;
  TextStages stages_;
  TextRun run_;  // destroyed first: uses the nodes
};

absl::Status Demo::OpenModel() {
  if (options_.nodes == 0 || options_.nodes > kDemoNodesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--nodes is 1 to ", kDemoNodesMax));
  }
  if (options_.generation.tokens_max == 0)
    return absl::InvalidArgumentError("--max-tokens is at least 1");
  if (!options_.cuts.empty() && options_.cuts.size() + 1 != options_.nodes) {
    return absl::InvalidArgumentError(absl::StrCat("--cut names ", options_.cuts.size() + 1,
                                                   " stages, --nodes ", options_.nodes));
  }
  if (options_.model.empty()) {
    auto path = DemoModelPath();
    if (!path.ok()) return path.status();
    stages_.model_path = *std::move(path);
  } else {
    // The nodes have folders of their own.
    std::error_code error;
    stages_.model_path = std::filesystem::absolute(options_.model, error).string();
    if (error)
      return absl::InvalidArgumentError(absl::StrCat(options_.model, ": ", error.message()));
  }
  auto model = ModelFile::Open(stages_.model_path);
  if (!model.ok()) return model.status();
  stages_.model = *std::move(model);
  auto rule = CutRuleFor(stages_.model->header(), options_.generation.unverified);
  if (!rule.ok()) return rule.status();
  auto stages = options_.cuts.empty()
                    ? CutByBytes(CountLayerBytes(stages_.model->header()), *rule, options_.nodes)
                    : CutAt(stages_.model->n_layer(), *rule, options_.cuts);
  if (!stages.ok()) return stages.status();
  stages_.layers = *std::move(stages);
  stages_.epoch.set_counter(1);
  stages_.epoch.set_coordinator_id("demo");
  return absl::OkStatus();
}

absl::Status Demo::StartNodes() {
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  LocalCluster::Options start;
  start.nodes = options_.nodes;
  start.threads =
      options_.n_threads != 0 ? options_.n_threads : std::max(1u, cores / options_.nodes);
  start.verbose = options_.verbose;
  start.cancelled = [this] { return run_.interrupted(); };
  auto cluster = LocalCluster::Start(std::move(start));
  if (!cluster.ok()) return run_.Explain(cluster.status());
  cluster_ = *std::move(cluster);
  for (const LocalCluster::NodeProcess& node : cluster_->nodes()) {
    auto client = NodeClient::Connect({.address = node.address});
    if (!client.ok()) return run_.Explain(client.status());
    nodes_.push_back(*std::move(client));
    stages_.nodes.push_back(nodes_.back().get());
    stages_.node_pids.push_back(node.pid);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDemo(DemoOptions options) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of a write instead, and stops the demo
  if (options.nodes == 0) {
    options.nodes = options.cuts.empty() ? 3 : static_cast<uint32_t>(options.cuts.size()) + 1;
  }
  return Demo(std::move(options)).Run();
}

}  // namespace strata
