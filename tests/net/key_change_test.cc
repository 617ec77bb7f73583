// The cluster's key changes while its nodes run: all get the new one, or all but the one that is
// removed; requests in flight are not disturbed.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "tests/integration/near_ties.h"
#include "tests/net/keyed_machine.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using ::strata::testing::kNearTie;
using ::strata::testing::NearTies;
using ::strata::testing::WholeModel;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kModel[] = STRATA_DEMO_MODEL;

std::string KeyOf(const Machine& machine) {
  std::ifstream file(machine.KeyPath());
  std::string key;
  std::getline(file, key);
  return key;
}

// The state of a node, as `machine` reports it; null: it does not know the node.
nlohmann::json StateOf(const Machine& machine, const std::string& name) {
  const auto json = nlohmann::json::parse(machine.Output("nodes --json"), nullptr, false);
  if (!json.is_object()) return nullptr;
  for (const auto& node : json["nodes"]) {
    if (node["name"] == name) return node["state"];
  }
  return nullptr;
}

class KeyChange : public Machines {
 protected:
  static bool AllSee(const std::vector<const Machine*>& machines) {
    return Eventually([&] {
      for (const Machine* each : machines) {
        if (each->Alive() != machines.size()) return false;
      }
      return true;
    });
  }
};

constexpr char kRunArgs[] =
    " 'Once upon a time' --ctx 1024 --max-tokens 400 --temperature 0 --ignore-eos --json";

// The report of `strata run`; null: there is none.
nlohmann::json Report(const std::string& output) {
  const size_t at = output.find('{');
  const auto json =
      nlohmann::json::parse(at == output.npos ? "" : output.substr(at), nullptr, false);
  return json.is_object() && json.contains("tokens") ? json : nullptr;
}

// The ids of the tokens.
std::string Tokens(const std::string& output) {
  const nlohmann::json report = Report(output);
  return report.is_null() ? "none: " + output : report["tokens"].dump();
}

// Sends request after request to the loaded model, on one machine, until Outputs() is called.
class RequestLoop {
 public:
  explicit RequestLoop(const Machine& machine)
      : thread_([this, &machine] {
          while (!stop_) outputs_.push_back(machine.Output(absl::StrCat("run ", kModel, kRunArgs)));
        }) {}
  std::vector<std::string> Outputs() {
    stop_ = true;
    thread_.join();
    return outputs_;
  }
  std::vector<std::string> AllTokens() {
    std::vector<std::string> tokens;
    for (const std::string& output : Outputs()) tokens.push_back(Tokens(output));
    return tokens;
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::string> outputs_;  // the thread's
  std::thread thread_;
};

// The model has moved meanwhile, and the sequences were replayed: of tokens that are as likely
// another one may follow.
void ExpectWhole(const std::vector<std::string>& outputs) {
  StartEngine();
  auto whole = WholeModel::Open(kModel, {.n_ctx = 1024, .n_seq_max = 1});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(outputs, Not(IsEmpty()));
  for (const std::string& output : outputs) {
    const nlohmann::json report = Report(output);
    ASSERT_FALSE(report.is_null()) << output;
    const std::vector<int32_t> tokens = report["tokens"];
    EXPECT_EQ(tokens.size(), 400u);
    NearTies(whole->get(), report["prompt"]["tokens"], tokens, kNearTie);
  }
}

TEST_F(KeyChange, AllGetANewKeyWhileARequestRuns) {
  measure_ = true;  // for plans
  const auto attic = AddFounder("attic");
  const auto cellar = AddMember(*attic, "cellar");
  ASSERT_TRUE(AllSee({attic.get(), cellar.get()})) << attic->log();
  const std::string before = KeyOf(*attic);
  const std::string whole = Tokens(attic->Output(absl::StrCat("run ", kModel, kRunArgs)));
  std::string said;
  const std::string load =
      absl::StrCat("load ", kModel, " --ctx 1024 --assign attic=0-2,cellar=3-5");
  ASSERT_TRUE(attic->Run(load, &said)) << said;
  RequestLoop requests(*attic);
  EXPECT_TRUE(cellar->Run("key rotate", &said)) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("attic"), HasSubstr("cellar"), Not(HasSubstr("Not with"))));
  const std::vector<std::string> tokens = requests.AllTokens();
  EXPECT_THAT(tokens, AllOf(Not(IsEmpty()), Each(whole)));

  EXPECT_NE(KeyOf(*attic), before);
  EXPECT_EQ(KeyOf(*attic), KeyOf(*cellar));
  EXPECT_THAT(said, Not(HasSubstr(KeyOf(*attic).substr(20))));
  EXPECT_TRUE(AllSee({attic.get(), cellar.get()})) << attic->log();
  // The old key opens nothing any more.
  const auto stranger = Add("stranger");
  EXPECT_TRUE(stranger->Run("key set", &said, before)) << said;
  EXPECT_FALSE(stranger->Run("nodes --node 10.80.0.1:7400", &said));
  EXPECT_THAT(said, HasSubstr("it has another key"));
  // New stages, with their own connections, work as before.
  EXPECT_TRUE(attic->Run(absl::StrCat("unload ", kModel), &said)) << said;
  EXPECT_TRUE(attic->Run(load, &said)) << said;
  EXPECT_EQ(Tokens(cellar->Output(absl::StrCat("run ", kModel, kRunArgs))), whole);
  // Nodes that start again work, too.
  cellar->Stop();
  cellar->Start();
  EXPECT_TRUE(AllSee({attic.get(), cellar.get()})) << cellar->log();
}

TEST_F(KeyChange, AMissingNodeIsNamedAndGetsTheKeyByHand) {
  const auto attic = AddFounder("attic");
  const auto cellar = AddMember(*attic, "cellar");
  ASSERT_TRUE(AllSee({attic.get(), cellar.get()}));
  cellar->Stop();
  ASSERT_TRUE(Eventually([&] { return StateOf(*attic, "cellar") == "gone"; }));
  std::string said;
  EXPECT_TRUE(attic->Run("key rotate", &said)) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("Not with cellar"), HasSubstr("key set --replace")));
  cellar->Start();
  EXPECT_TRUE(Eventually([&] { return cellar->Alive() == 1; })) << cellar->log();
  cellar->Stop();
  EXPECT_FALSE(cellar->Run("key set", &said, KeyOf(*attic)));
  EXPECT_THAT(said, HasSubstr("--replace"));
  EXPECT_TRUE(cellar->Run("key set --replace", &said, KeyOf(*attic))) << said;
  cellar->Start();
  EXPECT_TRUE(AllSee({attic.get(), cellar.get()})) << cellar->log();
}

TEST_F(KeyChange, TheKeyDoesNotChangeWhereANodeCannotStoreIt) {
  const auto attic = AddFounder("attic");
  const std::string folder = testing::MakeTestFolder();
  std::filesystem::copy_file(attic->KeyPath(), folder + "/key");
  const auto cellar = Add("cellar");
  cellar->Start({"--key-file", folder + "/key"});
  ASSERT_TRUE(Eventually([&] { return attic->Alive() == 2; })) << cellar->log();
  const std::string before = KeyOf(*attic);
  std::filesystem::remove_all(folder);
  std::string said;
  EXPECT_FALSE(attic->Run("key rotate", &said));
  EXPECT_THAT(said, AllOf(HasSubstr("cellar"), HasSubstr(folder), HasSubstr("has not changed")));
  EXPECT_EQ(KeyOf(*attic), before);
  EXPECT_EQ(attic->Alive(), 2u);
  std::filesystem::create_directory(folder);
  EXPECT_TRUE(attic->Run("key rotate", &said)) << said;
  EXPECT_TRUE(Eventually([&] { return attic->Alive() == 2; })) << cellar->log();
  std::ifstream kept(folder + "/key");
  std::string key;
  std::getline(kept, key);
  EXPECT_EQ(KeyOf(*attic), key);
  EXPECT_NE(key, before);
}

TEST_F(KeyChange, TwoAtOnceEndWithOneKey) {
  const auto attic = AddFounder("attic");
  const auto cellar = AddMember(*attic, "cellar");
  ASSERT_TRUE(AllSee({attic.get(), cellar.get()}));
  std::string other;
  std::thread at_once([&] { cellar->Run("key rotate", &other); });
  std::string said;
  attic->Run("key rotate", &said);
  at_once.join();
  EXPECT_EQ(KeyOf(*attic), KeyOf(*cellar)) << said << other;
  EXPECT_TRUE(AllSee({attic.get(), cellar.get()})) << said << other;
  EXPECT_THAT(said + other, HasSubstr("is being changed already"));
}

TEST_F(KeyChange, ANodeIsRemovedWhileARequestRuns) {
  measure_ = true;  // for plans
  const auto attic = AddFounder("attic");
  const auto cellar = AddMember(*attic, "cellar");
  const auto shed = AddMember(*attic, "shed");
  ASSERT_TRUE(AllSee({attic.get(), cellar.get(), shed.get()})) << attic->log();
  const std::string before = KeyOf(*shed);
  std::string said;
  EXPECT_FALSE(attic->Run("nodes remove nobody", &said));
  EXPECT_THAT(said, HasSubstr("no node nobody"));
  EXPECT_FALSE(attic->Run("nodes remove attic", &said));
  EXPECT_THAT(said, HasSubstr("call another one"));
  EXPECT_EQ(KeyOf(*shed), before);

  ASSERT_TRUE(
      attic->Run(absl::StrCat("load ", kModel, " --ctx 1024 --assign attic=0-2,shed=3-5"), &said))
      << said;
  RequestLoop requests(*cellar);
  EXPECT_TRUE(attic->Run("nodes remove shed", &said)) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("shed is removed"), HasSubstr("attic"), HasSubstr("cellar")));
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(requests.Outputs()));

  EXPECT_EQ(KeyOf(*shed), before);
  EXPECT_NE(KeyOf(*attic), before);
  EXPECT_EQ(KeyOf(*attic), KeyOf(*cellar));
  EXPECT_TRUE(AllSee({attic.get(), cellar.get()})) << attic->log();
  EXPECT_TRUE(Eventually([&] { return shed->Alive() == 1; })) << shed->log();
  EXPECT_FALSE(shed->Run("nodes --node 10.80.0.1:7400", &said));
  EXPECT_EQ(StateOf(*attic, "shed"), "gone");
  EXPECT_TRUE(shed->Says("this node was removed from the cluster")) << shed->log();

  // The removed node may be admitted again, as any other.
  shed->Stop();
  std::filesystem::remove(shed->KeyPath());
  shed->Start();
  Admit(*attic, *shed);
  EXPECT_TRUE(AllSee({attic.get(), cellar.get(), shed.get()})) << attic->log() << shed->log();
}

TEST_F(KeyChange, TheOneThatCoordinatesIsRemovedAtOnce) {
  measure_ = true;  // for plans
  const auto attic = AddFounder("attic");
  const auto cellar = AddMember(*attic, "cellar");
  const auto shed = AddMember(*attic, "shed");
  ASSERT_TRUE(AllSee({attic.get(), cellar.get(), shed.get()})) << attic->log();
  const auto json = nlohmann::json::parse(attic->Output("nodes --json"));
  const auto coordinates = [&](const Machine& machine) {
    for (const auto& node : json["nodes"]) {
      if (node["name"] == machine.name()) return node["id"] == json["coordinator"];
    }
    return false;
  };
  const Machine& client = coordinates(*attic) ? *cellar : *attic;
  const Machine& removed = coordinates(*attic) ? *attic : coordinates(*cellar) ? *cellar : *shed;
  std::string said;
  EXPECT_TRUE(client.Run(absl::StrCat("nodes remove --now ", removed.name()), &said)) << said;
  EXPECT_TRUE(Eventually([&] { return client.Alive() == 2; })) << client.log();
  EXPECT_EQ(StateOf(client, removed.name()), "gone");
  EXPECT_TRUE(client.Run(absl::StrCat("run ", kModel, " Hello --max-tokens 4"), &said)) << said;
}

TEST_F(KeyChange, OpenNodesHaveNoKeyToChange) {
  const auto attic = AddFounder("attic", {"--open"});
  std::string said;
  EXPECT_FALSE(attic->Run("key rotate --open", &said));
  EXPECT_THAT(said, HasSubstr("no key to change"));
}

}  // namespace
}  // namespace strata
