// A model that is placed on one node that does not answer.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/models/deployment.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/unreachable_node.h"

namespace strata::testing {

// A node whose loads last until they are cancelled.
class SlowNode final : public UnreachableNode {
 public:
  SlowNode() : UnreachableNode("slow", std::string(32, 'a')) {}
  absl::StatusOr<wire::StageInfo> LoadStage(const wire::StageSpec&, Progress progress) override {
    loading.Notify();
    if (loads) {
      wire::StageInfo info;
      info.set_link_address("127.0.0.1:1");
      return info;
    }
    while (progress({})) std::this_thread::yield();
    return absl::CancelledError("slow: cancelled");
  }
  absl::StatusOr<std::string> ShareModel(const std::string&) override { return model_id; }
  absl::Status UnloadStage(const wire::UnloadStageRequest&,
                           ShouldContinue should_continue) override {
    while (should_continue()) std::this_thread::yield();
    return absl::CancelledError("slow: cancelled");
  }

  absl::Notification loading;
  std::string model_id;
  bool loads = false;  // true: loads succeed at once; unloads never end
};

// Accepts steps and returns no results.
class EndlessPipeline final : public Pipeline {
 public:
  explicit EndlessPipeline(std::vector<wire::StageInfo> stages) : stages_(std::move(stages)) {}
  absl::StatusOr<uint64_t> Submit(wire::Step step) override { return step.step_id(); }
  absl::Status Diagnose(const absl::Status& broken) override { return broken; }
  const std::vector<wire::StageInfo>& stages() const override { return stages_; }

 private:
  const std::vector<wire::StageInfo> stages_;
};

struct Placed {
  std::shared_ptr<Deployment> deployment;
  SlowNode* node = nullptr;
};

inline Placed Place(Deployment::Options options = {},
                    const GgufBuilder& model = TinyLlama({.n_layer = 2})) {
  auto planned = std::make_unique<PlannedModel>();
  planned->model = Opened(Write(model));
  planned->report.nodes.resize(1);
  NodeReport& report = planned->report.nodes[0];
  auto node = std::make_unique<SlowNode>();
  node->model_id = planned->model->id();
  SlowNode* const slow = node.get();
  report.seen.mutable_record()->set_node_id(std::string(16, '\xaa'));
  report.info.set_node_id(std::string(32, 'a'));
  report.client = std::move(node);
  planned->source.set_node(std::string(32, 'a'));
  planned->inputs.places = {0};
  planned->inputs.request.devices.resize(1);
  planned->inputs.request.cache.n_ctx = 64;
  planned->plan.stages.resize(1);
  planned->plan.stages[0].layers = {0, 2};
  return {std::make_shared<Deployment>(std::move(options), std::move(planned)), slow};
}

inline bool Continue(uint32_t, const wire::LoadProgress&) { return true; }

// With these options a load succeeds at once; `listener` is set to the deployment's listener.
inline Deployment::Options Loadable(Pipeline::Listener** listener = nullptr) {
  Deployment::Options options;
  options.build = [listener](
                      const PipelineOptions&, Pipeline::Listener* of,
                      const Pipeline::Progress&) -> absl::StatusOr<std::unique_ptr<Pipeline>> {
    if (listener != nullptr) *listener = of;
    wire::StageInfo info;
    info.set_n_ctx(64);
    info.set_n_seq_max(1);
    info.set_n_batch(16);
    return std::make_unique<EndlessPipeline>(std::vector{info});
  };
  return options;
}

}  // namespace strata::testing
