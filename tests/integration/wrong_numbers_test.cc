// A node whose weights have changed, though every hash is as before: the results of its stage are
// compared with earlier ones.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/model/model_file.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/send_signal.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Each node runs in a folder of its own, where it finds its own copy of the model by the same path.
constexpr char kPath[] = "/proc/self/cwd/model.gguf";
constexpr char kTensor[] = "blk.4.ffn_down.weight";

class WrongNumbers : public testing::TwoNodes {
 protected:
  static constexpr size_t kAttic = 0, kCellar = 1;

  void SetUp() override {
    for (size_t node : {kAttic, kCellar}) {
      runs_in_.push_back(testing::MakeTestFolder());
      std::filesystem::copy_file(STRATA_DEMO_MODEL, FileOf(node));
    }
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    ASSERT_TRUE(WaitUntilMeasured());
    coordinator_ = Coordinator();
    ASSERT_LT(coordinator_, 2u);
  }

  // The node is started right after this call, in the folder that this changes to.
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    EXPECT_EQ(chdir(runs_in_[node].c_str()), 0);
    return {};
  }

  std::string FileOf(size_t node) const { return runs_in_[node] + "/model.gguf"; }
  Json Load() {
    return Run(kAttic,
               {"load", kPath, "--assign", "attic=0-2,cellar=3-5", "--ctx", "128", "--json"});
  }
  Json Unload() { return Run(kAttic, {"unload", "--json"}); }

  // Overwrites many rows of one tensor of the node's copy with its first row. None of these bytes
  // is among those that the model's id is made of.
  void Damage(size_t node) {
    const auto model = ModelFile::Open(FileOf(node));
    ASSERT_TRUE(model.ok()) << model.status();
    const GgufTensor* const tensor = (*model)->header().FindTensor(kTensor);
    ASSERT_NE(tensor, nullptr);
    const uint64_t row_bytes = tensor->bytes / tensor->dims[1];
    const auto at = static_cast<std::streamoff>((*model)->header().data_offset + tensor->offset);
    std::fstream file(FileOf(node), std::ios::binary | std::ios::in | std::ios::out);
    std::string row(row_bytes, '\0');
    file.seekg(at);
    file.read(row.data(), static_cast<std::streamsize>(row.size()));
    file.seekp(at);
    for (uint64_t i = 0; i < tensor->dims[1] / 3; ++i) file << row;
    file.close();
    const auto damaged = ModelFile::Open(FileOf(node));
    ASSERT_TRUE(damaged.ok()) << damaged.status();
    ASSERT_EQ((*damaged)->id(), (*model)->id());
  }
  void Repair(size_t node) {
    std::filesystem::copy_file(STRATA_DEMO_MODEL, FileOf(node),
                               std::filesystem::copy_options::overwrite_existing);
  }

  std::vector<std::string> runs_in_;  // by node, its working folder
  size_t coordinator_ = 0;
};

TEST_F(WrongNumbers, AStageThatComputesThemIsRefusedAndNamed) {
  Json loaded = Load();
  ASSERT_TRUE(loaded.is_object()) << loaded;
  ASSERT_TRUE(Unload().is_object());
  ASSERT_NO_FATAL_FAILURE(Damage(kCellar));
  const auto is_refused = AllOf(HasSubstr("stage 1 (layers 3-5) on cellar/CPU"),
                                HasSubstr("wrong numbers"), HasSubstr("layer 4 gives"));
  loaded = Load();
  ASSERT_TRUE(loaded.is_string());
  EXPECT_THAT(loaded.get<std::string>(), is_refused);
  EXPECT_TRUE(Node(kAttic, kCellar)["stages"].empty()) << Node(kAttic, kCellar);

  // Earlier results are still known when both nodes have restarted, and refused ones have not
  // replaced them.
  for (size_t node : {kCellar, kAttic}) StartAgain(node);
  ASSERT_EQ(Coordinator() < 2u, true);
  ASSERT_TRUE(WaitUntilMeasured());
  loaded = Load();
  ASSERT_TRUE(loaded.is_string());
  EXPECT_THAT(loaded.get<std::string>(), is_refused);
  Repair(kCellar);
  loaded = Load();
  EXPECT_TRUE(loaded.is_object()) << loaded;
}

TEST_F(WrongNumbers, LayersGoElsewhereWhereRecoveryFindsThem) {
  const Json loaded = Load();
  ASSERT_TRUE(loaded.is_object()) << loaded;
  const Json before = Run(kAttic, {"run", loaded["model"], "The old captain", "--max-tokens", "12",
                                   "--temperature", "0", "--json"});
  ASSERT_TRUE(before.is_object()) << before;
  ASSERT_NO_FATAL_FAILURE(Damage(kCellar));
  const Json stages = Node(kAttic, kCellar)["stages"];
  ASSERT_EQ(stages.size(), 1u);
  testing::SendSignal(stages[0]["worker_pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(Eventually([this] { return Node(kAttic, kCellar)["stages"].empty(); }));
  const Json after = Run(kAttic, {"run", loaded["model"], "The old captain", "--max-tokens", "12",
                                  "--temperature", "0", "--json"});
  ASSERT_TRUE(after.is_object()) << after;
  EXPECT_EQ(after["tokens"], before["tokens"]);
  EXPECT_THAT(nodes_[coordinator_]->err(), HasSubstr("on cellar/CPU: its self-test says"));
  EXPECT_FALSE(Node(kAttic, kAttic)["stages"].empty());
}

}  // namespace
}  // namespace strata
