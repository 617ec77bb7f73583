// All nodes are gone at once, and come back: models that were loaded to stay are there again,
// without anybody's asking, and models that were unloaded are not.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"

namespace strata {
namespace {

using ::strata::testing::HttpReply;
using ::strata::testing::TwoNodes;
using ::testing::HasSubstr;

class PowerCut : public TwoNodes {
 protected:
  // Workers end with their nodes.
  void Cut() {
    for (const auto& node : nodes_) (*node)->Kill();
  }
  // The names of the models that are loaded or are being loaded.
  std::vector<std::string> Models(size_t node) {
    std::vector<std::string> names;
    const HttpReply reply = Get(node, "/v1/models");
    if (reply.status != 200) return {"no list"};
    const Json list = Json::parse(reply.body);
    for (const auto& model : list["data"]) names.push_back(model["id"]);
    return names;
  }
  // The states of all stages, in order.
  std::vector<std::string> Stages() {
    std::vector<std::string> states;
    const Json status = Run(0, {"status", "--json"});
    if (!status.is_object() || status["nodes"].size() != 2) return {"not both"};
    for (const auto& node : status["nodes"]) {
      if (node["state"] != "alive") return {"not both"};
      for (const auto& stage : node["stages"]) states.push_back(stage["state"]);
    }
    return states;
  }
  std::string Answer(size_t node) {
    const Json run = Run(node, {"run", name_, "The old captain", "--max-tokens", "12",
                                "--temperature", "0", "--json"});
    return run.is_object() ? run["tokens"].dump() : "no answer: " + run.dump();
  }
  std::string ListOf(size_t node) const { return folders_[node] + "/desired_state"; }
  void Damage(size_t node) {
    std::fstream file(ListOf(node), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file << '!';
    ASSERT_TRUE(file.good());
  }

  std::string name_;
};

TEST_F(PowerCut, ModelsThatWereLoadedToStayAreThereAgainAndNoOthers) {
  const Json loaded = LoadOnBoth(/*seqs=*/2, /*n_ctx=*/256);
  ASSERT_TRUE(loaded.is_object()) << loaded;
  name_ = loaded["model"];
  const std::string answer = Answer(0);
  for (const size_t node : {0, 1}) ASSERT_TRUE(std::filesystem::exists(ListOf(node))) << node;

  // One node is back before the other, whose list is damaged.
  Cut();
  Damage(1);
  StartAgain(0);
  StartAgain(1);
  EXPECT_TRUE(Eventually([&] {
    const std::vector<std::string> stages = Stages();
    return !stages.empty() &&
           std::ranges::all_of(stages, [](const std::string& state) { return state == "serving"; });
  }));
  EXPECT_TRUE(Eventually([&] { return Models(1) == std::vector{name_}; }));
  EXPECT_EQ(Answer(1), answer);
  EXPECT_TRUE(std::filesystem::exists(ListOf(1) + ".unusable"));
  EXPECT_TRUE(nodes_[1]->Says("damaged"));
  EXPECT_THAT(Run(0, {"status", "--json"}).dump(), HasSubstr("damaged"));
  // It has the other's list by now.
  EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(ListOf(1)); }));

  // Each node alone knows what was unloaded.
  ASSERT_TRUE(Run(0, {"unload", name_, "--json"}).is_object());
  Cut();
  std::filesystem::remove(ListOf(0));
  StartAgain(0);
  StartAgain(1);
  EXPECT_TRUE(Eventually([&] { return Stages().empty() && Models(0).empty(); }));
  EXPECT_FALSE(Eventually([&] { return !Models(0).empty() || !Stages().empty(); },
                          absl::Milliseconds(300), absl::Seconds(3)));
}

}  // namespace
}  // namespace strata
