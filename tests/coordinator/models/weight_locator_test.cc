#include "coordinator/models/weight_locator.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/generation/pipeline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/model/weight_blocks.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/unreachable_node.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint32_t kLayers = 4;

// A node that has the weights of some layers in its cache.
class CachingNode final : public testing::UnreachableNode {
 public:
  CachingNode(const std::string& name, const std::shared_ptr<const ModelFile>& model,
              LayerRange layers)
      : UnreachableNode(name), model_id_(model->id()) {
    const auto slice = Slice::Make(model, layers, {});
    EXPECT_TRUE(slice.ok()) << slice.status();
    for (const uint32_t block : WeightBlocks(*model).OfTensors(slice->source_tensors())) {
      wire::BlockRange* const range = list.add_blocks();
      range->set_begin(block);
      range->set_end(block + 1);
    }
  }
  absl::StatusOr<wire::BlockList> ListBlocks(const std::string& model_id) override {
    if (model_id != model_id_) return absl::NotFoundError("no such model is shared here");
    return list;
  }

  wire::BlockList list;

 private:
  const std::string model_id_;
};

class WeightLocatorTest : public ::testing::Test {
 protected:
  std::shared_ptr<const ModelFile> model_ =
      testing::Opened(testing::Write(testing::TinyLlama({.n_layer = kLayers})));
  CachingNode first_{"first", model_, {0, 2}}, last_{"last", model_, {2, 4}},
      middle_{"middle", model_, {1, 3}};
  testing::UnreachableNode silent_{"silent"};
};

TEST_F(WeightLocatorTest, TheNodeWithMostComesFirstAndThenThoseWithTheRest) {
  const WeightLocator cached({&silent_, nullptr, &middle_, &first_, &last_}, model_->id());
  EXPECT_THAT(cached.nodes(), ElementsAre(&middle_, &first_, &last_));
  // Two suffice; the third has some of it, too.
  const auto all = cached.HoldersOf(model_, {0, 4}, {}, nullptr);
  ASSERT_THAT(all, IsOkAndHolds(SizeIs(3)));
  EXPECT_THAT(std::vector((*all).begin(), (*all).begin() + 2),
              UnorderedElementsAre(&first_, &last_));
  EXPECT_EQ(all->back(), &middle_);
  // The weights of all stages are in the other caches, too.
  const auto one = cached.HoldersOf(model_, {0, 1}, {}, nullptr);
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->front(), &first_);
}

TEST_F(WeightLocatorTest, ANodeDoesNotFetchWhatItHas) {
  const WeightLocator cached({&first_, &middle_, &last_}, model_->id());
  const auto holders = cached.HoldersOf(model_, {0, 4}, {}, &first_);
  ASSERT_THAT(holders, IsOkAndHolds(UnorderedElementsAre(&last_, &middle_)));
  EXPECT_EQ(holders->front(), &last_);
}

// It may be a file at another path, which its stages do not read themselves.
TEST_F(WeightLocatorTest, ANodeThatHasAllGivesItToItself) {
  CachingNode whole("whole", model_, {0, 4});
  const WeightLocator cached({&first_, &whole}, model_->id());
  const auto holders = cached.HoldersOf(model_, {0, 4}, {}, &whole);
  ASSERT_THAT(holders, IsOkAndHolds(SizeIs(2)));
  EXPECT_EQ(holders->front(), &whole);
}

TEST_F(WeightLocatorTest, WeightsOverMoreNodesThanTheLimitAreRefused) {
  std::vector<std::unique_ptr<CachingNode>> owners;
  std::vector<NodeClient*> nodes;
  for (int i = 0; i <= kWeightPeersMax; ++i) {
    owners.push_back(
        std::make_unique<CachingNode>(absl::StrCat("node", i), model_, LayerRange{0, 4}));
    nodes.push_back(owners.back().get());
  }
  ASSERT_THAT(WeightLocator(nodes, model_->id()).HoldersOf(model_, {0, 4}, {}, nullptr), IsOk());
  // Each has every eighth block.
  const wire::BlockList whole = owners.front()->list;
  for (size_t i = 0; i < owners.size(); ++i) {
    owners[i]->list.clear_blocks();
    for (size_t j = i; j < static_cast<size_t>(whole.blocks_size()); j += owners.size()) {
      *owners[i]->list.add_blocks() = whole.blocks(static_cast<int>(j));
    }
  }
  const WeightLocator cached(nodes, model_->id());
  EXPECT_THAT(cached.HoldersOf(model_, {0, 4}, {}, nullptr),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("8 nodes")));
  EXPECT_THAT(cached.HoldersOf(model_, {0, 4}, {}, nodes.front()), IsOkAndHolds(SizeIs(7)));
}

TEST_F(WeightLocatorTest, MissingWeightsAreReported) {
  const WeightLocator cached({&first_, &middle_}, model_->id());
  EXPECT_THAT(cached.HoldersOf(model_, {0, 2}, {}, nullptr).status(), IsOk());
  EXPECT_THAT(cached.HoldersOf(model_, {2, 4}, {}, nullptr),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("2-3")));
}

TEST_F(WeightLocatorTest, NodesThatDidNotAnswerAreNamed) {
  const WeightLocator cached({&first_, &silent_}, model_->id());
  EXPECT_THAT(cached.silent(), ElementsAre("silent"));
  EXPECT_THAT(cached.HoldersOf(model_, {2, 4}, {}, nullptr),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("silent")));
}

TEST_F(WeightLocatorTest, NodesOfOtherModelsHaveNothing) {
  const WeightLocator cached({&first_, &last_}, std::string(32, 'x'));
  EXPECT_THAT(cached.nodes(), IsEmpty());
}

TEST_F(WeightLocatorTest, AListOfBlocksThatTheModelDoesNotHaveIsNotBelieved) {
  wire::BlockRange* const range = last_.list.add_blocks();
  range->set_begin(1u << 30);
  range->set_end((1u << 30) + 1);
  const WeightLocator cached({&first_, &last_}, model_->id());
  EXPECT_THAT(cached.HoldersOf(model_, {2, 4}, {}, nullptr),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(WeightLocatorTest, FetchBytesAreCountedByLayers) {
  const WeightLocator cached({&silent_, &middle_}, model_->id());
  // Weights that all stages have count for each stage.
  std::vector<uint64_t> sums = {0};
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto slice = Slice::Make(model_, {layer, layer + 1}, {});
    const WeightBlocks blocks(*model_);
    sums.push_back(sums.back() + blocks.BytesOf(blocks.OfTensors(slice->source_tensors())));
  }
  EXPECT_THAT(cached.FetchBytes(model_, {1, 2, 3}, {}, &silent_), IsOkAndHolds(sums));
  const auto rest = cached.FetchBytes(model_, {1, 2, 3}, {}, &middle_);
  ASSERT_THAT(rest, IsOkAndHolds(SizeIs(kLayers + 1)));
  EXPECT_GT((*rest)[1], 0u);
  EXPECT_LE((*rest)[1], sums[1]);
  EXPECT_EQ((*rest)[3], (*rest)[1]);
  EXPECT_GT((*rest)[4], (*rest)[3]);
  // Between cuts as for the last of them.
  EXPECT_THAT(cached.FetchBytes(model_, {2}, {}, &middle_),
              IsOkAndHolds(ElementsAre(0, 0, (*rest)[2], (*rest)[2], (*rest)[4])));
}

// It has the file where its stages do not look, and fetches it from itself.
TEST_F(WeightLocatorTest, ANodeThatHasAllAndIsShortOfRoomFetchesAll) {
  CachingNode whole("whole", model_, {0, 4});
  const WeightLocator cached({&whole}, model_->id());
  const auto of_nobody = WeightLocator({}, model_->id()).FetchBytes(model_, {1}, {}, &whole);
  ASSERT_THAT(of_nobody, IsOk());
  EXPECT_THAT(cached.FetchBytes(model_, {1}, {}, &whole), IsOkAndHolds(*of_nobody));
}

}  // namespace
}  // namespace strata
