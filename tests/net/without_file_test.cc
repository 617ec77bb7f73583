// A model whose file is gone with its machine: its weights are only in the caches of the others.
#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/processes.h"
#include "tests/net/three_hosts.h"

namespace strata {
namespace {

using ::testing::SizeIs;

// One host has the file and no layers, the others half of the layers each and no file. The
// parameter: whether the one with the file coordinates, so that the next coordinator finds no file.
class WithoutFileTest : public testing::ThreeHosts, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr size_t kTokens = 24;
  // A request waits for a node that may come back, and says so.
  static constexpr absl::Duration kWaits = absl::Seconds(5);

  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
    MakeHosts();
    // Each host has a folder that no other sees.
    std::vector<std::string> folders;
    for (size_t i = 0; i < hosts_.size(); ++i) folders.push_back(testing::MakeTestFolder());
    for (size_t i = 0; i < hosts_.size(); ++i) {
      for (size_t j = 0; j < hosts_.size(); ++j) {
        if (j != i) hosts_[i]->Hide(folders[j]);
      }
    }
    ASSERT_NO_FATAL_FAILURE(StartNodes());
    size_t coordinator = hosts_.size();
    ASSERT_TRUE(Eventually([&] { return AgreeOn(nodes_, &coordinator); }));
    file_ = GetParam() ? coordinator : (coordinator + 1) % 3;
    first_ = (file_ + 1) % 3;
    last_ = (file_ + 2) % 3;
    const std::string file = folders[file_] + "/model.gguf";
    std::filesystem::copy_file(STRATA_DEMO_MODEL, file);
    const nlohmann::json loaded =
        Json(file_, absl::StrCat("load ", file, " --assign ", hosts_[first_]->name(), "=0-2,",
                                 hosts_[last_]->name(), "=3-5"));
    ASSERT_TRUE(loaded.is_object()) << nodes_[file_]->errors();
    model_ = loaded["model"];
    tokens_ = Run(first_);
    ASSERT_THAT(tokens_, SizeIs(kTokens));
    Kill(file_);
  }

  void Kill(size_t host) {
    const std::vector<pid_t> pids = WithDescendants(nodes_[host]->pid());
    for (const pid_t pid : pids) kill(pid, SIGKILL);
    nodes_[host]->Stop();
  }

  std::string RunVerb() const {
    return absl::StrCat("run '", model_, "' 'The old captain' --temperature 0 --max-tokens ",
                        kTokens);
  }
  std::vector<int32_t> Run(size_t host) const { return TokensOf(host, RunVerb()); }
  bool IsServed(size_t host) {
    return Eventually([&] { return Run(host) == tokens_; });
  }
  std::string Errors() const {
    return absl::StrCat(nodes_[first_]->errors(), nodes_[last_]->errors());
  }

  size_t file_ = 0, first_ = 0, last_ = 0;  // hosts: with the file, the first layers, the last
  std::string model_;
  std::vector<int32_t> tokens_;
};

TEST_P(WithoutFileTest, StagesComeOutOfTheCaches) {
  // A worker dies: its node has its layers.
  const std::vector<pid_t> workers = OfVerb(Descendants(nodes_[last_]->pid()), "worker");
  ASSERT_FALSE(workers.empty());
  for (const pid_t pid : workers) kill(pid, SIGKILL);
  EXPECT_TRUE(IsServed(first_)) << Errors();

  // A node dies, and nobody else has its layers until it is back.
  Kill(last_);
  Outcome outcome;
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Strata(first_, RunVerb(), kWaits).text, "are in no node's cache");
  })) << Errors();
  StartNode(last_);
  EXPECT_TRUE(IsServed(first_)) << Errors();

  // A drain: the other node gets them.
  ASSERT_TRUE(Eventually([&] {
    outcome = Strata(first_, "drain " + hosts_[last_]->name());
    return outcome.ok;
  })) << outcome.text;
  EXPECT_TRUE(IsServed(first_)) << Errors();
  Kill(last_);
  EXPECT_TRUE(IsServed(first_)) << Errors();
}

INSTANTIATE_TEST_SUITE_P(FilesNode, WithoutFileTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Coordinates" : "IsAMember");
});

}  // namespace
}  // namespace strata
