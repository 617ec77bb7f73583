// The models whose files the nodes of a cluster have.
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/client/coordinator_client.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/renamed_model.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_key.h"

namespace strata {
namespace {

using ::testing::IsEmpty;

class KnownModels : public testing::TwoNodes {
 protected:
  void SetUp() override {
    const std::string home = testing::MakeTestFolder();
    for (const char* variable : {"HOME", "XDG_CACHE_HOME"}) {
      setenv(variable, home.c_str(), /*overwrite=*/1);
    }
    for (const char* name : {"first", "other", "third"}) {
      ASSERT_NO_FATAL_FAILURE(testing::WriteRenamedModel(
          STRATA_DEMO_MODEL, std::string("Model ") + name, PathOf(name)));
    }
    testing::UseTestKey();
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
  }
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    return node == 0 ? std::vector<std::string>{"--models", models_} : std::vector<std::string>{};
  }
  std::string PathOf(const std::string& name) const { return models_ + "/" + name + ".gguf"; }

  const std::string models_ = testing::MakeTestFolder();
};

TEST_F(KnownModels, AnyNodeKnowsTheModelsOfAllNodes) {
  for (size_t node : {0, 1}) {
    const auto client = CoordinatorClient::Connect({.node = addresses_[node]});
    ASSERT_TRUE(client.ok()) << client.status();
    const auto known = (*client)->ListKnownModels();
    ASSERT_TRUE(known.ok()) << known.status();
    std::vector<std::string> found;
    for (const wire::KnownModel& model : known->models()) {
      found.push_back(model.node_name() + " " + model.file().name() + " " + model.file().path());
      EXPECT_GT(model.file().bytes(), 7'000'000u);
    }
    EXPECT_THAT(found, ::testing::ElementsAre("attic first " + PathOf("first"),
                                              "attic other " + PathOf("other"),
                                              "attic third " + PathOf("third")));
    EXPECT_THAT(known->silent(), IsEmpty());
  }
}

}  // namespace
}  // namespace strata
