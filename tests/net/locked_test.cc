// Nodes as a person starts them, without any option: which one founds a cluster, which ones wait,
// how they are admitted, and what somebody without the key can see.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/net/keyed_machine.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Locked : public Machines {};

TEST_F(Locked, TwoThatStartTogetherBecomeOneCluster) {
  const auto attic = Add("attic"), cellar = Add("cellar");
  attic->Start();
  cellar->Start();
  ASSERT_TRUE(Eventually([&] { return attic->HasKey() || cellar->HasKey(); }));
  const Machine& founder = attic->HasKey() ? *attic : *cellar;
  const Machine& other = attic->HasKey() ? *cellar : *attic;
  EXPECT_TRUE(other.Says("waits to be admitted")) << other.log();
  EXPECT_FALSE(other.HasKey());
  EXPECT_THAT(founder.log(), AllOf(HasSubstr("has founded one"), HasSubstr("strata approve")));
  ASSERT_TRUE(Eventually([&] {
    return founder.Output("nodes").find("waiting") != std::string::npos;
  })) << founder.Output("nodes");

  std::string said;
  EXPECT_TRUE(founder.Run("approve", &said, "y")) << said;
  EXPECT_TRUE(Eventually([&] { return founder.Alive() == 2 && other.Alive() == 2; }))
      << founder.Output("nodes") << other.log();
  // The codes were the same.
  const size_t code = said.find("The code is  ");
  ASSERT_NE(code, said.npos) << said;
  EXPECT_THAT(other.log(), HasSubstr(said.substr(code + 13, 7)));
  EXPECT_TRUE(Eventually([&] {
    return founder.Output("nodes").find("waiting") == std::string::npos;
  })) << founder.Output("nodes");
}

TEST_F(Locked, ANodeThatIsNotAdmittedStaysOut) {
  const auto attic = AddFounder("attic");
  const auto cellar = Add("cellar");
  cellar->Start();
  ASSERT_TRUE(cellar->Says("waits to be admitted")) << cellar->log();
  std::string said;
  EXPECT_TRUE(
      Eventually([&] { return attic->Output("nodes").find("waiting") != std::string::npos; }));
  EXPECT_FALSE(attic->Run("approve cellar", &said, "n")) << said;
  EXPECT_FALSE(cellar->HasKey());
  EXPECT_EQ(attic->Alive(), 1u);
  EXPECT_FALSE(attic->Run("approve nobody", &said, "y"));
  EXPECT_THAT(said,
              AllOf(HasSubstr("no node nobody waits for a key"), HasSubstr("(waiting: cellar")));
  // Approves it by its address, as needed where mDNS does not reach.
  ASSERT_TRUE(Eventually([&] { return attic->Run("approve 10.80.0.2:7400", &said, "y"); })) << said;
  EXPECT_TRUE(Eventually([&] { return attic->Alive() == 2; })) << cellar->log();
}

TEST_F(Locked, ANodeKeepsItsKey) {
  const auto attic = AddFounder("attic");
  struct stat about = {};
  ASSERT_EQ(stat(attic->KeyPath().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  const std::string key = attic->Output("key show");
  attic->Stop();
  // None of its certificates is left.
  EXPECT_FALSE(std::filesystem::exists(attic->folder() + "/tls"));
  attic->Start();
  EXPECT_TRUE(Eventually([&] { return attic->Alive() == 1; })) << attic->log();
  EXPECT_EQ(attic->Output("key show"), key);
}

TEST_F(Locked, AnotherKeyIsAnotherCluster) {
  const auto attic = AddFounder("attic");
  const auto stranger = Add("stranger");
  stranger->Output("key new");
  stranger->Start({"--peer", "10.80.0.1:7400"});
  ASSERT_TRUE(stranger->Says(kListens)) << stranger->log();
  EXPECT_TRUE(stranger->Says("a node with another key is there")) << stranger->log();
  EXPECT_EQ(stranger->Alive(), 1u);
  EXPECT_EQ(attic->Alive(), 1u);
  std::string said;
  EXPECT_FALSE(attic->Run("approve 10.80.0.2:7400", &said, "y"));
  EXPECT_THAT(said, HasSubstr("has the key of another cluster"));
  EXPECT_FALSE(stranger->Run("nodes --node 10.80.0.1:7400", &said));
  EXPECT_THAT(said, HasSubstr("it has another key"));
  EXPECT_FALSE(stranger->Run("nodes --open --node 10.80.0.1:7400", &said));
  EXPECT_THAT(said, HasSubstr("wants its cluster's key"));
  EXPECT_THAT(said, Not(HasSubstr("attic")));
}

TEST_F(Locked, AKeyIsCarriedByHand) {
  const auto attic = AddFounder("attic");
  const auto cellar = Add("cellar");
  std::string said;
  EXPECT_FALSE(cellar->Run("key set", &said, "strata-key-1-nonsense"));
  EXPECT_FALSE(cellar->HasKey());
  std::ifstream file(attic->KeyPath());
  std::string key;
  std::getline(file, key);
  EXPECT_TRUE(cellar->Run("key set", &said, key)) << said;
  EXPECT_THAT(said, Not(HasSubstr(key)));
  EXPECT_FALSE(cellar->Run("key set", &said, key));
  EXPECT_THAT(said, HasSubstr("there is a key already"));
  cellar->Start();
  EXPECT_TRUE(Eventually([&] { return attic->Alive() == 2; })) << cellar->log();
}

TEST_F(Locked, OpenNodesAreAClusterOfTheirOwnAndSaySo) {
  const auto attic = AddFounder("attic");
  const auto cellar = Add("cellar"), shed = Add("shed");
  cellar->Start({"--open"});
  shed->Start({"--open"});
  EXPECT_TRUE(cellar->Says("whoever reaches this node may use it")) << cellar->log();
  EXPECT_TRUE(Eventually([&] { return cellar->Alive() == 2; })) << cellar->log();
  EXPECT_EQ(attic->Alive(), 1u);
  EXPECT_THAT(cellar->Output("nodes"), HasSubstr("The cluster is open"));
  std::string said;
  EXPECT_FALSE(attic->Run("nodes --node 10.80.0.2:7400", &said));
  EXPECT_THAT(said, HasSubstr("use --open here"));
}

// The part of a process that other users of this machine can see.
std::string Shown(pid_t pid) {
  std::ostringstream all;
  for (const char* file : {"cmdline", "environ"}) {
    all << std::ifstream(absl::StrCat("/proc/", pid, "/", file)).rdbuf();
  }
  return all.str();
}

TEST_F(Locked, TheKeyIsShownNowhere) {
  const auto attic = Add("attic");
  attic->Start({"--verbose", "--log-requests"});
  ASSERT_TRUE(attic->Says(kListens)) << attic->log();
  std::ifstream file(attic->KeyPath());
  std::string key;
  std::getline(file, key);
  ASSERT_GT(key.size(), 60u);
  const std::string part = key.substr(20, 12);
  for (const char* verb : {"status", "status --json", "nodes --json", "doctor", "measure --json"}) {
    EXPECT_THAT(attic->Output(verb), Not(HasSubstr(part))) << verb;
  }
  EXPECT_THAT(attic->log(), Not(HasSubstr(part)));
  EXPECT_THAT(Shown(attic->pid()), Not(HasSubstr(part)));
  EXPECT_THAT(attic->Output("key show"), HasSubstr(part));
}

}  // namespace
}  // namespace strata
