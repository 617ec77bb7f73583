#include "node/demo/demo.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/costs/cut.h"
#include "node/demo/demo_model.h"
#include "node/demo/local_cluster.h"
#include "proto/coordinator.pb.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"

namespace strata {
namespace {

class Demo {
 public:
  explicit Demo(DemoOptions options) : options_(std::move(options)) {}

  absl::Status Run() {
    if (auto s = CutModel(); !s.ok()) return s;
    session_.CatchInterrupts();
    if (auto s = StartNodes(); !s.ok()) return session_.Explain(s);
    return Generate();
  }

 private:
  absl::Status CutModel();
  absl::Status StartNodes();
  absl::Status Generate();

  const DemoOptions options_;
  std::string model_path_;
  std::vector<LayerRange> layers_;  // of each node
  std::unique_ptr<LocalCluster> cluster_;
  ModelSession session_;  // destroyed first: calls the nodes
};

absl::Status Demo::CutModel() {
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
    model_path_ = *std::move(path);
  } else {
    // The nodes have folders of their own.
    std::error_code error;
    model_path_ = std::filesystem::absolute(options_.model, error).string();
    if (error)
      return absl::InvalidArgumentError(absl::StrCat(options_.model, ": ", error.message()));
  }
  const auto model = ModelFile::Open(model_path_);
  if (!model.ok()) return model.status();
  const auto rule = CutRuleFor((*model)->header(), options_.generation.unverified);
  if (!rule.ok()) return rule.status();
  auto layers = options_.cuts.empty()
                    ? CutByBytes(CountLayerBytes((*model)->header()), *rule, options_.nodes)
                    : CutAt((*model)->n_layer(), *rule, options_.cuts);
  if (!layers.ok()) return layers.status();
  layers_ = *std::move(layers);
  return absl::OkStatus();
}

absl::Status Demo::StartNodes() {
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  LocalCluster::Options start;
  start.nodes = options_.nodes;
  start.threads =
      options_.n_threads != 0 ? options_.n_threads : std::max(1u, cores / options_.nodes);
  start.verbose = options_.verbose;
  start.cancelled = [this] { return session_.interrupted(); };
  auto cluster = LocalCluster::Start(std::move(start));
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  session_.Use(CoordinatorClient::At(cluster_->nodes().front().address));
  return absl::OkStatus();
}

absl::Status Demo::Generate() {
  const GenerateFlags& options = options_.generation;
  wire::LoadModelRequest request;
  request.mutable_source()->set_path(model_path_);
  wire::PlacementOptions* const placement = request.mutable_placement();
  placement->set_n_ctx(options.n_ctx);
  placement->set_n_seqs(1);
  placement->set_unverified(options.unverified);
  size_t i = 0;
  placement->set_assign(absl::StrJoin(layers_, ",", [&](std::string* out, LayerRange layers) {
    absl::StrAppend(out, cluster_->nodes()[i++].name, "/CPU=", layers.begin, "-", layers.end - 1);
  }));
  placement->mutable_cache()->set_checkpoints(0);  // a single request has nothing to go back to
  request.set_no_mmap(!options.use_mmap);
  request.set_allow_mixed_versions(options.allow_mixed_versions);
  request.set_hold(true);
  const auto loaded = session_.Load(request);
  if (!loaded.ok()) return loaded.status();
  GenerationReport report = ReportOf(loaded->model);
  for (GenerationReport::Stage& stage : report.stages) {
    const auto node = absl::c_find_if(cluster_->nodes(),
                                      [&](const auto& each) { return each.name == stage.node; });
    if (node != cluster_->nodes().end()) stage.node_pid = node->pid;
  }
  return session_.Generate(options, std::move(report));
}

}  // namespace

absl::Status RunDemo(DemoOptions options) {
  if (options.nodes == 0) {
    options.nodes = options.cuts.empty() ? 3 : static_cast<uint32_t>(options.cuts.size()) + 1;
  }
  return Demo(std::move(options)).Run();
}

}  // namespace strata
