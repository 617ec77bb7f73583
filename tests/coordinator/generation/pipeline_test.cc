// The weight sources that a pipeline names to the nodes of its stages, and its use of the stages'
// self-tests; with fake nodes that load nothing.
#include "coordinator/generation/pipeline.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/unreachable_node.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kModel[] = "the model";

class LoadingNode final : public testing::UnreachableNode {
 public:
  explicit LoadingNode(const std::string& name) : UnreachableNode(name, name + " id") {}

  absl::StatusOr<std::string> ShareModel(const std::string&) override { return kModel; }
  absl::StatusOr<wire::StageInfo> LoadStage(const wire::StageSpec& stage, Progress) override {
    absl::MutexLock lock(mu_);
    spec_ = stage;
    return absl::UnavailableError("it loads none");
  }
  wire::StageSpec spec() {
    absl::MutexLock lock(mu_);
    return spec_;
  }

 private:
  absl::Mutex mu_;
  wire::StageSpec spec_ ABSL_GUARDED_BY(mu_);
};

class NoListener final : public Pipeline::Listener {
  void OnResult(wire::Result) override {}
  void OnStepError(wire::StepError) override {}
  void OnWritable() override {}
  void OnBroken(absl::Status) override {}
};

std::vector<std::string> PeersOf(const wire::StageSpec& stage) {
  std::vector<std::string> peers;
  for (const wire::WeightPeer& peer : stage.weight_peers()) {
    EXPECT_EQ(peer.node_id(), peer.address() + " id");
    peers.push_back(peer.address());
  }
  return peers;
}

class PipelineSources : public ::testing::Test {
 protected:
  // A stage on each of `nodes`.
  void Load(std::vector<NodeClient*> nodes, NodeClient* source,
            std::vector<std::vector<NodeClient*>> peers) {
    PipelineOptions options;
    options.model_path = "/model.gguf";
    options.model_id = kModel;
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      options.stages.push_back({.layers = {i, i + 1}, .node = nodes[i]});
      if (!peers.empty()) options.stages[i].weight_peers = peers[i];
    }
    options.source = source;
    options.from_caches = source == nullptr && !peers.empty();
    NoListener listener;
    const auto built = Pipeline::Build(std::move(options), &listener,
                                       [](size_t, const wire::LoadProgress&) { return true; });
    ASSERT_THAT(built, StatusIs(absl::StatusCode::kUnavailable));
  }

  LoadingNode a_{"a"}, b_{"b"}, c_{"c"};
};

TEST_F(PipelineSources, TheOthersGetTheSourceAndEachOther) {
  const std::vector<NodeClient*> all = {&a_, &b_, &c_};
  Load(all, &a_, {all, all, all});
  EXPECT_THAT(a_.spec().source_address(), IsEmpty());
  EXPECT_THAT(PeersOf(a_.spec()), IsEmpty());
  EXPECT_EQ(b_.spec().source_address(), "a");
  EXPECT_EQ(b_.spec().source_node(), "a id");
  EXPECT_THAT(PeersOf(b_.spec()), ElementsAre("c"));
  EXPECT_THAT(PeersOf(c_.spec()), ElementsAre("b"));
  for (LoadingNode* const node : {&a_, &b_, &c_}) EXPECT_FALSE(node->spec().no_source());
}

TEST_F(PipelineSources, WithoutASourceEachGetsThePeersThatHaveItsWeights) {
  Load({&a_, &b_}, nullptr, {{&c_, &b_}, {&b_, &c_}});
  EXPECT_THAT(a_.spec().source_address(), IsEmpty());
  EXPECT_TRUE(a_.spec().no_source());
  EXPECT_THAT(PeersOf(a_.spec()), ElementsAre("c", "b"));
  // A node is its own peer for a file at another path.
  EXPECT_TRUE(b_.spec().no_source());
  EXPECT_THAT(PeersOf(b_.spec()), ElementsAre("b", "c"));
}

TEST_F(PipelineSources, WithoutASourceAndWithoutPeersAllHaveTheFile) {
  Load({&a_, &b_}, nullptr, {});
  EXPECT_FALSE(a_.spec().no_source());
  EXPECT_FALSE(b_.spec().no_source());
}

TEST_F(PipelineSources, NamesNoMorePeersThanAreQueried) {
  std::vector<std::unique_ptr<LoadingNode>> others;
  std::vector<NodeClient*> peers = {&a_, &b_};
  for (int i = 0; i <= kWeightPeersMax; ++i) {
    others.push_back(std::make_unique<LoadingNode>(absl::StrCat("other", i)));
    peers.push_back(others.back().get());
  }
  Load({&b_}, &a_, {peers});
  EXPECT_EQ(b_.spec().weight_peers_size(), kWeightPeersMax);
  EXPECT_EQ(PeersOf(b_.spec()).front(), "other0");
}

// Loads its stage, and reports the self-test of it.
class TestedNode final : public testing::UnreachableNode {
 public:
  TestedNode(const std::string& name, float number) : UnreachableNode(name), number_(number) {}

  absl::StatusOr<wire::StageInfo> LoadStage(const wire::StageSpec& spec, Progress) override {
    wire::StageInfo info;
    info.set_link_address("nowhere:1");
    wire::SelfTest* const test = info.mutable_self_test();
    *test->mutable_layers() = spec.layers();
    test->set_node_id(id());
    test->set_node_name(name());
    wire::SelfTestPoint* const point = test->add_points();
    *point->mutable_layers() = spec.layers();
    point->set_hash(absl::StrCat(number_));
    point->add_sketch(number_);
    point->add_norm(1);
    loaded_ = true;
    return info;
  }
  absl::Status UnloadStage(const wire::UnloadStageRequest&, ShouldContinue) override {
    loaded_ = false;
    return absl::OkStatus();
  }
  bool loaded() const { return loaded_; }

 private:
  const float number_;
  std::atomic<bool> loaded_{false};
};

// Both as they were, but that the second stage computed `second` when it was here before.
absl::Status LoadTested(TestedNode* first, TestedNode* second, float before, bool leave) {
  PipelineOptions options;
  options.stages = {{.layers = {0, 1}, .node = first, .device = "CPU"},
                    {.layers = {1, 3}, .node = second, .device = "Vulkan0"}};
  options.leave_on_error = leave;
  options.self_tests = [before] {
    TestedNode other("attic", before);
    wire::StageSpec spec;
    spec.mutable_layers()->set_begin(1);
    spec.mutable_layers()->set_end(3);
    return std::vector<wire::SelfTest>{
        other.LoadStage(spec, [](const wire::LoadProgress&) { return true; })->self_test()};
  };
  NoListener listener;
  return Pipeline::Build(std::move(options), &listener,
                         [](size_t, const wire::LoadProgress&) { return true; })
      .status();
}

TEST(PipelineSelfTests, AStageThatComputesOtherwiseIsUnloadedAndNamed) {
  TestedNode first("porch", 1), second("cellar", 1);
  const absl::Status status = LoadTested(&first, &second, 2, /*leave=*/true);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                               AllOf(HasSubstr("stage 1 (layers 1-2) on cellar/Vulkan0"),
                                     HasSubstr("attic"))));
  EXPECT_TRUE(HasWrongNumbers(status));
  EXPECT_EQ(StageOf(status), 1u);
  EXPECT_TRUE(first.loaded()) << "the next plan may keep it";
  EXPECT_FALSE(second.loaded());
}

TEST(PipelineSelfTests, AStageThatComputesTheSameIsAccepted) {
  TestedNode first("porch", 1), second("cellar", 1);
  // Linking is what fails.
  EXPECT_THAT(LoadTested(&first, &second, 1, /*leave=*/false),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(first.loaded());
  EXPECT_FALSE(second.loaded());
}

}  // namespace
}  // namespace strata
