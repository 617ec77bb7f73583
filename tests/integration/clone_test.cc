// A machine that was cloned with its data dir, while the original runs.
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/http_client.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::strata::testing::TwoNodes;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CloneTest : public TwoNodes {
 protected:
  // Starts a clone of the cellar, with the attic as its peer.
  void StartClone() {
    const std::string folder = testing::MakeTestFolder();
    std::filesystem::copy(folders_[1], folder,
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    clone_ = std::make_unique<Program>(std::vector<std::string>{
        "node", "--listen", "127.0.0.1:0", "--no-mdns", "--name", "clone", "--threads", "1",
        "--http", "0", "--data-dir", folder, "--peer", addresses_[0]});
    const Json ready = Json::parse(clone_->FirstLine(), nullptr, false);
    ASSERT_TRUE(ready.is_object()) << clone_->err();
    address_ = ready["node"]["address"];
    const std::string url = ready["node"]["http"];
    uint32_t port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1), &port)) << url;
    port_ = static_cast<uint16_t>(port);
    id_file_ = folder + "/node_id";
  }
  HttpReply GetClone(const std::string& path) {
    HttpClient client(port_);
    EXPECT_TRUE(client.Get(path));
    return client.Read();
  }
  bool CloneIsRefused() {
    const HttpReply health = GetClone("/health");
    return health.status == 503 && absl::StrContains(health.body, "two machines");
  }

  std::unique_ptr<Program> clone_;
  std::string address_, id_file_;
  uint16_t port_ = 0;
};

// Missed elsewhere: a cloned machine that gets an error, gpustack #4578 #3922 #4244.
TEST_F(CloneTest, TheOriginalServesAndTheCloneWaitsForItsPlace) {
  const size_t coordinator = Coordinator();
  const std::string epoch = Run(0, {"status", "--json"})["epoch"].dump();
  ASSERT_NO_FATAL_FAILURE(StartClone());
  bool refused = false;
  const std::string said = absl::StrCat(addresses_[1], " is taken, ", address_, " is refused");
  ASSERT_TRUE(Eventually([&] {
    // Both nodes serve all the while.
    for (const size_t node : {0, 1}) {
      const HttpReply health = Get(node, "/health"), models = Get(node, "/v1/models");
      if (health.status != 200 || models.status != 200) {
        ADD_FAILURE() << health.body << models.body;
        return true;
      }
    }
    refused = CloneIsRefused();
    if (!refused) return false;
    for (const size_t node : {0, 1}) {
      const Json status = Run(node, {"status", "--json"});
      if (!absl::StrContains(status.dump(), said)) return false;
    }
    return true;
  }));
  EXPECT_TRUE(refused);
  EXPECT_EQ(Coordinator(), coordinator);
  EXPECT_EQ(Run(0, {"status", "--json"})["epoch"].dump(), epoch);
  // Health, models, logs and doctor name both addresses and the remedy.
  EXPECT_THAT(GetClone("/health").body, AllOf(HasSubstr(said), HasSubstr(id_file_)));
  const HttpReply models = GetClone("/v1/models");
  EXPECT_EQ(models.status, 503);
  EXPECT_THAT(models.body, AllOf(HasSubstr(said), HasSubstr(id_file_)));
  EXPECT_THAT(clone_->err(), AllOf(HasSubstr(said), HasSubstr(id_file_)));
  for (const size_t node : {0, 1}) {
    EXPECT_THAT(nodes_[node]->err(), HasSubstr(said));
    const auto doctor = Strata(node, {"doctor", "--json"});
    doctor->ExitStatus();
    EXPECT_THAT(doctor->out(), HasSubstr(said)) << doctor->err();
  }
  // The original stops, and the clone takes its place.
  kill((*nodes_[1])->pid(), SIGTERM);
  EXPECT_EQ(nodes_[1]->ExitStatus(), 0);
  EXPECT_TRUE(Eventually([&] { return GetClone("/health").status == 200; }));
  EXPECT_TRUE(Eventually([&] { return Run(0, {"status", "--json"})["nodes"].size() == 2; }));
  EXPECT_THAT(Run(0, {"status", "--json"}).dump(), Not(HasSubstr("two machines")));
}

TEST_F(CloneTest, ANodeThatIsKilledAndStartedAgainIsNone) {
  for (int times = 0; times < 2; ++times) {
    (*nodes_[1])->Kill();
    (*nodes_[1])->WaitForExit(Program::kLong);
    StartAgain(1);
    EXPECT_TRUE(Eventually([&] {
      return Get(1, "/health").status == 200 && Node(0, 1)["state"] == "alive" &&
             Run(0, {"status", "--json"})["coordinator"] ==
                 Run(1, {"status", "--json"})["coordinator"];
    }));
    EXPECT_THAT(nodes_[0]->err(), Not(HasSubstr("two machines")));
    EXPECT_THAT(nodes_[1]->err(), Not(HasSubstr("two machines")));
  }
}

}  // namespace
}  // namespace strata
