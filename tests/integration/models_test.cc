// Models that a cluster keeps: loaded through one node, used through another, moved off a third,
// and gone when they should be.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/renamed_model.h"
#include "tests/support/send_signal.h"
#include "tests/support/temp_folder.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

using ::strata::testing::TwoNodes;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kModel[] = STRATA_DEMO_MODEL;

class Models : public TwoNodes {
 protected:
  // Number of stages on all nodes, by the status of `node`.
  size_t Stages(size_t node) {
    size_t stages = 0;
    const Json status = Run(node, {"status", "--json"});
    if (!status.is_object()) return 99;
    for (const auto& each : status["nodes"]) stages += each["stages"].size();
    return stages;
  }
  // The worker of the only serving stage on a node; 0: there is none.
  pid_t Worker(size_t node) {
    const Json stages = Node(Coordinator(), node)["stages"];
    for (const auto& stage : stages) {
      if (stage["state"] == "serving") return stage["worker_pid"];
    }
    return 0;
  }
  void LoadOnBoth() {
    const Json loaded = TwoNodes::LoadOnBoth(/*seqs=*/2, /*n_ctx=*/8192);
    ASSERT_TRUE(loaded.is_object()) << loaded;
    EXPECT_FALSE(loaded["was_there"].get<bool>());
    name_ = loaded["model"];
  }

  std::string name_;
};

// What users of others miss: management from a command line, exo #1728.
TEST_F(Models, LoadedThroughOneNodeIsUsedThroughAnyAndGoneWhenUnloaded) {
  LoadOnBoth();
  EXPECT_TRUE(Run(1, {"load", kModel, "--json"})["was_there"].get<bool>());
  EXPECT_EQ(Stages(1), 2u);

  const std::vector<std::string> args = {"The old captain", "--max-tokens", "24", "--seed", "7"};
  Json reports[2];
  for (size_t node : {0, 1}) {
    std::vector<std::string> run = {"run", name_, "--json"};
    run.insert(run.end(), args.begin(), args.end());
    reports[node] = Run(node, run);
    ASSERT_TRUE(reports[node].is_object()) << reports[node];
    EXPECT_THAT(reports[node]["tokens"], SizeIs(24));
  }
  EXPECT_EQ(reports[0]["tokens"], reports[1]["tokens"]);
  ASSERT_THAT(reports[0]["stages"], SizeIs(2));
  EXPECT_EQ(reports[0]["stages"][1]["node"], "cellar");
  EXPECT_EQ(Stages(0), 2u);  // it stays

  const auto other = Strata(0, {"load", kModel, "--ctx", "4096"});
  EXPECT_EQ(other->ExitStatus(), 3);
  EXPECT_THAT(other->err(), HasSubstr("--ctx"));

  EXPECT_EQ(Run(1, {"unload", name_, "--json"})["unloaded"], name_);
  EXPECT_EQ(Stages(0), 0u);
  const auto again = Strata(0, {"unload"});
  EXPECT_EQ(again->ExitStatus(), 3);
  EXPECT_THAT(again->err(), HasSubstr("no model is loaded"));
}

TEST_F(Models, StagesSendTheChosenTypeAlsoAfterOneWasLost) {
  const std::vector<std::string> places = {"--assign", "attic=0-2,cellar=3-5"};
  std::vector<std::string> load = {"load", kModel, "--activations", "q8_0", "--json"};
  load.insert(load.end(), places.begin(), places.end());
  const Json loaded = Run(0, load);
  ASSERT_TRUE(loaded.is_object()) << loaded;
  const auto stages = [this] {
    Json by_stage = Json::object();
    const Json status = Run(Coordinator(), {"status", "--json"});
    if (!status.is_object()) return by_stage;
    for (const auto& node : status["nodes"]) {
      for (const auto& stage : node["stages"]) {
        if (stage["state"] == "serving") by_stage[stage["stage"].dump()] = stage;
      }
    }
    return by_stage;
  };
  const auto sends_blocks = [&stages] {
    const Json now = stages();
    return now.size() == 2 && now["0"]["activations"] == "q8_0" &&
           now["1"]["activations"] == "f32";  // tokens, to the coordinator
  };
  EXPECT_TRUE(Eventually(sends_blocks)) << stages();
  EXPECT_TRUE(Eventually([this] {
    const auto status = Strata(0, {"status"});
    return status->ExitStatus() == 0 && absl::StrContains(status->out(), ", sends q8_0");
  }));
  const std::vector<std::string> run = {"run", loaded["model"], "One", "--max-tokens",
                                        "8",   "--json"};
  EXPECT_THAT(Run(1, run)["tokens"], SizeIs(8));

  const auto other = Strata(0, {"load", kModel, "--activations", "f16"});
  EXPECT_EQ(other->ExitStatus(), 3);
  EXPECT_THAT(other->err(), HasSubstr("--activations"));
  EXPECT_EQ(Strata(0, {"load", kModel, "--activations", "q8_0"})->ExitStatus(), 0);

  const pid_t worker = stages()["1"]["worker_pid"];
  testing::SendSignal(worker, SIGKILL);
  EXPECT_TRUE(Eventually([&] {
    const Json now = stages();
    return sends_blocks() && now.contains("1") && now["1"]["worker_pid"] != worker;
  })) << stages();
  EXPECT_THAT(Run(1, run)["tokens"], SizeIs(8));
}

TEST_F(Models, PlansSayWhatStagesSend) {
  const auto plan =
      Strata(0, {"plan", kModel, "--activations", "bf16", "--assign", "attic=0-2,cellar=3-5"});
  ASSERT_EQ(plan->ExitStatus(), 0) << plan->err();
  EXPECT_THAT(plan->out(), HasSubstr("SENDS"));
  EXPECT_THAT(plan->out(), HasSubstr("bf16"));
  const Json exact = Run(0, {"plan", kModel, "--assign", "attic=0-2,cellar=3-5", "--json"});
  ASSERT_TRUE(exact.is_object()) << exact;
  EXPECT_EQ(exact["stages"][0]["activations"], "f32");
}

TEST_F(Models, RunUnloadsWhatItLoadedEvenWhenItIsKilled) {
  const auto run = Strata(
      1, {"run", kModel, "One\n", "--ctx", "60000", "--max-tokens", "50000", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  EXPECT_GT(Stages(0), 0u);
  kill((*run)->pid(), SIGKILL);
  EXPECT_TRUE(Eventually([this] { return Stages(0) == 0; }));
}

// As on a machine so busy that the program does not run for longer than a link waits for its peer.
TEST_F(Models, ARunThatStandsStillGoesOn) {
  const auto run =
      Strata(0, {"run", kModel, "One\n", "--ctx", "8000", "--max-tokens", "4000", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  kill((*run)->pid(), SIGSTOP);
  absl::SleepFor(absl::Milliseconds(4 * kKeepaliveTimeoutMs));
  kill((*run)->pid(), SIGCONT);
  EXPECT_EQ(run->ExitStatus(), 0) << run->err();
}

TEST_F(Models, RunEndsWhenItsMemoryIsFree) {
  for (size_t node : {0, 1}) {
    const auto run = Strata(node, {"run", kModel, "One", "--max-tokens", "4"});
    EXPECT_EQ(run->ExitStatus(), 0) << run->err();
    EXPECT_EQ(Stages(node), 0u);
  }
}

TEST_F(Models, RunsOfOneModelShareIt) {
  const auto first = Strata(
      0, {"run", kModel, "One\n", "--ctx", "60000", "--max-tokens", "50000", "--ignore-eos"});
  ASSERT_EQ(first->FirstLine(), "One") << first->err();
  const auto second = Strata(1, {"run", kModel, "Two\n", "--max-tokens", "8"});
  ASSERT_EQ(second->FirstLine(), "Two") << second->err();  // waits for the first one's place
  kill((*first)->pid(), SIGKILL);
  EXPECT_EQ(second->ExitStatus(), 0) << second->err();
  EXPECT_TRUE(Eventually([this] { return Stages(0) == 0; }));
}

TEST_F(Models, WhatIsLoadedToStayOutlivesTheRunThatHeldIt) {
  const auto run = Strata(
      0, {"run", kModel, "One\n", "--ctx", "60000", "--max-tokens", "50000", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  EXPECT_TRUE(Run(1, {"load", kModel, "--seqs", "1", "--json"})["was_there"].get<bool>());
  kill((*run)->pid(), SIGINT);
  EXPECT_EQ(run->ExitStatus(), 130) << run->err();
  EXPECT_GT(Stages(0), 0u);
}

TEST_F(Models, ACoordinatorThatStopsLeavesTheRequestsOfAFileToTheNext) {
  const size_t coordinator = Coordinator();
  ASSERT_LT(coordinator, 2u);
  const auto run =
      Strata(1 - coordinator, {"run", kModel, "One\n", "--max-tokens", "900", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  kill((*nodes_[coordinator])->pid(), SIGTERM);
  EXPECT_EQ(nodes_[coordinator]->ExitStatus(), 0) << nodes_[coordinator]->err();
  EXPECT_EQ(run->ExitStatus(), 0) << run->err();
}

TEST_F(Models, TheLastNodeThatStopsEndsItsRequestsWithAnError) {
  const size_t last = Coordinator();
  ASSERT_LT(last, 2u);
  kill((*nodes_[1 - last])->pid(), SIGTERM);
  EXPECT_TRUE(Eventually([&] {
    const Json status = Run(last, {"status", "--json"});
    size_t alive = 0;
    for (const auto& node : status["nodes"]) alive += node["state"] == "alive";
    return alive == 1;
  }));
  const auto run = Strata(
      last, {"run", kModel, "One\n", "--ctx", "60000", "--max-tokens", "50000", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  kill((*nodes_[last])->pid(), SIGTERM);
  EXPECT_EQ(nodes_[last]->ExitStatus(), 0) << nodes_[last]->err();
  EXPECT_EQ(run->ExitStatus(), 5) << run->err();
  EXPECT_THAT(run->err(), HasSubstr("stopping"));
}

TEST_F(Models, ANodeThatStopsEndsTheRequestsThatItPassesOn) {
  const size_t coordinator = Coordinator();
  ASSERT_LT(coordinator, 2u);
  const std::string assign = coordinator == 0 ? "attic=0-5" : "cellar=0-5";
  const auto run =
      Strata(1 - coordinator, {"run", kModel, "One\n", "--ctx", "60000", "--max-tokens", "50000",
                               "--ignore-eos", "--assign", assign});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  kill((*nodes_[1 - coordinator])->pid(), SIGTERM);
  EXPECT_EQ(nodes_[1 - coordinator]->ExitStatus(), 0) << nodes_[1 - coordinator]->err();
  EXPECT_EQ(run->ExitStatus(), 5) << run->err();
  EXPECT_TRUE(Eventually([&] { return Stages(coordinator) == 0; }));
}

TEST_F(Models, UnloadingEndsTheRequestsWithAnError) {
  LoadOnBoth();
  const auto run = Strata(0, {"run", name_, "One\n", "--max-tokens", "8000", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  EXPECT_EQ(Strata(1, {"unload"})->ExitStatus(), 0);
  EXPECT_EQ(run->ExitStatus(), 5);
  EXPECT_THAT(run->err(), HasSubstr("unloaded"));
}

TEST_F(Models, ADrainedNodeIsFreeAndTheOtherMergesItsStages) {
  LoadOnBoth();
  const auto run = Strata(0, {"run", name_, "One\n", "--max-tokens", "200", "--ignore-eos"});
  ASSERT_EQ(run->FirstLine(), "One") << run->err();
  const auto drain = Strata(1, {"drain", "cellar"});
  EXPECT_EQ(drain->ExitStatus(), 0) << drain->err();
  EXPECT_EQ(run->ExitStatus(), 0) << run->err();
  const Json status = Run(0, {"status", "--json"});
  for (const auto& node : status["nodes"]) {
    EXPECT_TRUE(node["name"] != "cellar" || node["stages"].empty()) << status.dump(1);
  }
  // The attic took the cellar's layers beside its own, and merges them into one stage when it is
  // idle.
  EXPECT_TRUE(Eventually([this] { return Stages(0) == 1; })) << nodes_[Coordinator()]->err();
  // Nothing new comes there, and there is nowhere else to go.
  const auto nowhere = Strata(0, {"drain", "attic"});
  EXPECT_NE(nowhere->ExitStatus(), 0);
  const auto stays = Strata(0, {"run", name_, "One", "--max-tokens", "4"});
  EXPECT_EQ(stays->ExitStatus(), 0) << stays->err();
  EXPECT_EQ(Strata(0, {"unload"})->ExitStatus(), 0);
  const auto refused = Strata(0, {"plan", kModel, "--assign", "cellar=0-5"});
  EXPECT_NE(refused->ExitStatus(), 0);
  EXPECT_EQ(Strata(0, {"drain", "cellar", "--undo"})->ExitStatus(), 0);
  EXPECT_EQ(Strata(0, {"plan", kModel, "--assign", "cellar=0-5"})->ExitStatus(), 0);

  const auto unknown = Strata(0, {"drain", "kitchen"});
  EXPECT_NE(unknown->ExitStatus(), 0);
  EXPECT_THAT(unknown->err(), HasSubstr("kitchen"));
}

// Each retry of its recovery waits longer; the other model is recovered meanwhile.
TEST_F(Models, OneThatIsLostAgainAndAgainHoldsUpNoOther) {
  const size_t coordinator = Coordinator();
  ASSERT_LT(coordinator, 2u);
  const size_t other = 1 - coordinator;
  const std::string second = testing::MakeTestFolder() + "/second.gguf";
  ASSERT_NO_FATAL_FAILURE(testing::WriteRenamedModel(kModel, "Second demo", second));
  const std::string assign = absl::StrCat(kNames[other], "=0-5");
  const Json unlucky = Run(other, {"load", kModel, "--assign", assign, "--json"});
  ASSERT_TRUE(unlucky.is_object()) << unlucky;
  const Json lucky = Run(coordinator, {"load", second, "--assign",
                                       absl::StrCat(kNames[coordinator], "=0-5"), "--json"});
  ASSERT_TRUE(lucky.is_object()) << lucky;
  ASSERT_NE(unlucky["model"], lucky["model"]);
  const auto kill_worker = [&](size_t node) {
    pid_t worker = 0;
    EXPECT_TRUE(Eventually([&] { return (worker = Worker(node)) != 0; }));
    testing::SendSignal(worker, SIGKILL);
    return worker;
  };
  const auto is_back = [&](size_t node, pid_t before) {
    return Eventually([&] {
      const pid_t now = Worker(node);
      return now != 0 && now != before;
    });
  };
  for (int times = 0; times < 4; ++times) ASSERT_TRUE(is_back(other, kill_worker(other)));
  const pid_t lost = kill_worker(other);
  EXPECT_TRUE(is_back(coordinator, kill_worker(coordinator)));
  EXPECT_EQ(Worker(other), 0) << "four seconds have not gone by: " << nodes_[coordinator]->err();
  EXPECT_TRUE(is_back(other, lost));
}

TEST_F(Models, AModelThatStaysOutlivesItsCoordinator) {
  LoadOnBoth();
  const size_t coordinator = Coordinator();
  ASSERT_LT(coordinator, 2u);
  const size_t other = 1 - coordinator;
  kill((*nodes_[coordinator])->pid(), SIGKILL);
  std::string last;
  EXPECT_TRUE(Eventually([&] {
    const auto run = Strata(other, {"run", name_, "One", "--max-tokens", "4"});
    last = run->err();
    return run->ExitStatus() == 0;
  })) << last;
  // The layers that were lost come beside its own, and become one stage with them when it is idle.
  EXPECT_TRUE(Eventually([&] { return Stages(other) == 1; }));
}

// A copy of the demo model, so that its file can be moved away.
TEST_F(Models, OneWhoseFileIsGoneIsOutOfServiceUntilTheFileIsBack) {
  const std::string file = testing::MakeTestFolder() + "/fleeting.gguf";
  std::filesystem::copy_file(kModel, file);
  const Json loaded = Run(0, {"load", file, "--assign", "attic=0-2,cellar=3-5", "--json"});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  std::filesystem::rename(file, file + ".away");
  const size_t coordinator = Coordinator();
  const pid_t worker = Worker(1 - coordinator);
  ASSERT_NE(worker, 0);
  testing::SendSignal(worker, SIGKILL);
  const Json ask = {{"model", "fleeting"}, {"prompt", "The"}, {"max_tokens", 4}};
  for (const size_t node : {0, 1}) {
    const testing::HttpReply reply = Post(node, "/v1/completions", ask);
    EXPECT_EQ(reply.status, 503) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr(file));
    EXPECT_EQ(Post(node, "/v1/completions", {{"model", "none"}, {"prompt", "The"}}).status, 404);
    const Json models = Json::parse(Get(node, "/v1/models").body, nullptr, false)["data"];
    ASSERT_THAT(models, SizeIs(1));
    EXPECT_EQ(models[0]["strata"]["state"], "failed");
    EXPECT_THAT(models[0]["strata"]["problem"].get<std::string>(), HasSubstr(file));
    const auto status = Strata(node, {"status"});
    EXPECT_EQ(status->ExitStatus(), 0);
    EXPECT_THAT(status->out(), ContainsRegex("! .*cannot be served now: .*fleeting.gguf"));
  }
  std::filesystem::rename(file + ".away", file);
  EXPECT_TRUE(
      Eventually([&] { return Post(1 - coordinator, "/v1/completions", ask).status == 200; }));
  EXPECT_THAT(Strata(0, {"status"})->out(), Not(HasSubstr("!")));
}

// Started where the umask takes nothing away.
class ModelsOfACarelessUser : public Models {
 protected:
  ModelsOfACarelessUser() : before_(umask(0)) {}
  ~ModelsOfACarelessUser() override { umask(before_); }

 private:
  const mode_t before_;
};

TEST_F(ModelsOfACarelessUser, LeaveNothingThatOthersMayReadOrWrite) {
  LoadOnBoth();
  std::set<std::string> seen;
  for (const std::string& folder : folders_) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      struct stat about = {};
      if (lstat(entry.path().c_str(), &about) != 0) continue;  // gone since
      EXPECT_EQ(about.st_mode & 077, 0u) << entry.path();
      seen.insert(entry.path().filename());
    }
  }
  for (const char* name : {"weights", "hashes", "node_id"}) {
    EXPECT_TRUE(seen.contains(name)) << name;
  }
}

TEST_F(Models, APromptComesFromStdinWhereNoneIsGiven) {
  LoadOnBoth();
  for (const char* prompt : {"-", ""}) {
    std::string said;
    auto run = ChildProcess::Start(
        {.program = "/bin/sh",
         .args = {"sh", "-c",
                  absl::StrCat("printf 'The old\\n' | \"$S\" run \"$M\" ", prompt,
                               " --max-tokens 2 --json --node ", addresses_[0])},
         .env = {absl::StrCat("S=", STRATA_PROGRAM), absl::StrCat("M=", name_)},
         .on_stdout_line = [&](absl::string_view line) { absl::StrAppend(&said, line); }});
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_TRUE((*run)->WaitForExit(Program::kLong));
    EXPECT_EQ((*run)->exit().Words(), "exited with status 0") << (*run)->exit().last_words;
    const Json report = Json::parse(said, nullptr, false);
    ASSERT_TRUE(report.is_object()) << said;
    EXPECT_EQ(report["prompt"]["text"], "The old");
  }
}

}  // namespace
}  // namespace strata
