// A node that is drained where its layers find no room beside the loaded stages: they go to the
// others once these are unloaded, and that may take two tries.
#include <signal.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/client/coordinator_client.h"
#include "tests/integration/processes.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/test_key.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::strata::testing::TwoNodes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DrainWithoutRoomBeside : public TwoNodes {
 protected:
  // With these caches a stage needs 158 MiB for each layer and 140 MiB besides: the attic has room
  // for all layers, but not for the cellar's beside its own; the loft for half of them.
  static constexpr char kAtticBytes[] = "1160MiB";
  static constexpr char kLoftBytes[] = "850MiB";
  static void Load(CoordinatorClient* client, bool hold) {
    wire::LoadModelRequest request;
    request.mutable_source()->set_path(STRATA_DEMO_MODEL);
    request.set_hold(hold);
    wire::PlacementOptions& placement = *request.mutable_placement();
    placement.set_assign("attic=0,cellar=1-5");
    placement.set_n_ctx(40'000);
    placement.set_n_seqs(4);
    placement.mutable_cache()->set_type_k("f32");
    placement.mutable_cache()->set_type_v("f32");
    ASSERT_THAT(client->LoadModel(request, [](const wire::LoadModelEvent&) {}), IsOk());
  }
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    return node == 0 ? std::vector<std::string>{"--memory", kAtticBytes}
                     : std::vector<std::string>();
  }
  void StartLoft() {
    loft_.emplace(std::vector<std::string>{"node", "--listen", "127.0.0.1:0", "--no-mdns", "--name",
                                           "loft", "--threads", "1", "--http", "0", "--data-dir",
                                           testing::MakeTestFolder(), "--memory", kLoftBytes,
                                           "--peer", addresses_[0]});
    ASSERT_TRUE(Eventually([this] {
      const Json status = Run(0, {"status", "--json"});
      return status.is_object() && status["nodes"].size() == 3 &&
             std::ranges::all_of(status["nodes"], [](const Json& node) {
               return node["state"] == "alive" && node["answers"].get<bool>();
             });
    })) << loft_->err();
  }

  std::unique_ptr<CoordinatorClient> Client() {
    testing::UseTestKey();
    auto client = CoordinatorClient::Connect({.node = addresses_[0]});
    EXPECT_THAT(client, IsOk());
    return *std::move(client);
  }
  std::vector<pid_t> Workers(size_t node) {
    return OfVerb(Descendants((*nodes_[node])->pid()), "worker");
  }
  // Serving stages by node: attic, cellar, loft. One that failed may still be listed for a moment.
  std::vector<size_t> Stages() {
    const Json status = Run(0, {"status", "--json"});
    std::vector<size_t> stages;
    for (const char* name : {"attic", "cellar", "loft"}) {
      for (const auto& each : status["nodes"]) {
        if (each["name"] != name) continue;
        stages.push_back(static_cast<size_t>(std::ranges::count_if(
            each["stages"], [](const Json& stage) { return stage["state"] == "serving"; })));
      }
    }
    return stages;
  }
  // Drains the cellar. The attic's new worker is killed before it loads all layers, which looks
  // like a lack of memory, and by then there is a loft.
  void DrainInTwoTries(bool is_interrupted = false) {
    const std::vector<pid_t> before = Workers(0);
    const auto drain = Strata(0, {"drain", "cellar"});
    pid_t worker = 0;
    ASSERT_TRUE(Eventually(
        [&] {
          for (const pid_t pid : Workers(0)) {
            if (std::ranges::count(before, pid) == 0) worker = pid;
          }
          return worker != 0 && kill(worker, SIGSTOP) == 0;
        },
        absl::Milliseconds(1)))
        << drain->err();
    ASSERT_NO_FATAL_FAILURE(StartLoft());
    if (is_interrupted) {
      EXPECT_EQ(kill((*drain)->pid(), SIGKILL), 0);
    }
    EXPECT_EQ(kill(worker, SIGKILL), 0);
    if (is_interrupted) return;
    EXPECT_EQ(drain->ExitStatus(), 0) << drain->err();
    EXPECT_THAT(drain->err(), HasSubstr("planning again"));
    EXPECT_THAT(Stages(), ElementsAre(1, 0, 1));
  }

  std::optional<Program> loft_;
};

TEST_F(DrainWithoutRoomBeside, AModelGoesWithItsLastLease) {
  const auto client = Client();
  ASSERT_NO_FATAL_FAILURE(Load(client.get(), /*hold=*/true));
  ASSERT_NO_FATAL_FAILURE(DrainInTwoTries());
  client->Release();
  EXPECT_TRUE(Eventually([this] { return Stages() == std::vector<size_t>{0, 0, 0}; }));
}

// Once it has unloaded the model, a drain is completed.
TEST_F(DrainWithoutRoomBeside, ALeasedModelMovesThoughNobodyWaitsForTheDrain) {
  const auto client = Client();
  ASSERT_NO_FATAL_FAILURE(Load(client.get(), /*hold=*/true));
  ASSERT_NO_FATAL_FAILURE(DrainInTwoTries(/*is_interrupted=*/true));
  EXPECT_TRUE(Eventually([this] { return Stages() == std::vector<size_t>{1, 0, 1}; }))
      << ::testing::PrintToString(Stages()) << "\n"
      << nodes_[0]->err();
  client->Release();
  EXPECT_TRUE(Eventually([this] { return Stages() == std::vector<size_t>{0, 0, 0}; }));
}

TEST_F(DrainWithoutRoomBeside, AModelThatStaysStays) {
  const auto client = Client();
  ASSERT_NO_FATAL_FAILURE(Load(client.get(), /*hold=*/false));
  ASSERT_NO_FATAL_FAILURE(DrainInTwoTries());
  const auto run = Strata(1, {"run", STRATA_DEMO_MODEL, "One", "--max-tokens", "8"});
  EXPECT_EQ(run->ExitStatus(), 0) << run->err();
  EXPECT_THAT(Stages(), ElementsAre(1, 0, 1));
}

}  // namespace
}  // namespace strata
