// Nodes as a person starts them, without any option: who founds a cluster, who waits, who is
// admitted, and what somebody without the key gets to see.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/net/network.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// How a node says that it listens.
constexpr char kListens[] = "{\"node\":";

// A machine on the network with a node that has no key, and a data dir of its own.
class Machine {
 public:
  Machine(Switch* lan, const std::string& name, int last) : host_(name), name_(name) {
    lan->Plug(host_, "eth0", {absl::StrCat("10.80.0.", last, "/24")});
  }
  // Does not wait: it may listen only once it was admitted.
  void Start(const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"/usr/bin/env",
                                     testing::kNoTestKey,
                                     STRATA_PROGRAM,
                                     "node",
                                     "--name",
                                     name_,
                                     "--data-dir",
                                     folder_,
                                     "--threads",
                                     "1",
                                     "--stop-with-parent",
                                     "--no-measure",
                                     "--listen",
                                     "[::]:7400"};
    args.insert(args.end(), more.begin(), more.end());
    ChildProcess::Options options;
    options.program = "/usr/bin/nsenter";
    options.args = host_.Inside(std::move(args));
    options.on_stdout_line = [lines = lines_](absl::string_view line) { lines->Add(line); };
    options.on_stderr_line = [lines = lines_](absl::string_view line) { lines->Add(line); };
    auto started = ChildProcess::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status();
    process_ = *std::move(started);
  }
  void Stop() { process_.reset(); }

  // All that its node has written.
  std::string log() const { return lines_->All(); }
  bool Says(const std::string& words) const {
    return Eventually([&] { return log().find(words) != std::string::npos; });
  }
  // A verb on this machine: its status is 0 and what it wrote; without, that of a stranger.
  bool Run(const std::string& verb, std::string* out, const std::string& input = "") const {
    return host_.TryShell(absl::StrCat("echo '", input, "' | ", testing::kNoTestKey, " ",
                                       STRATA_PROGRAM, " ", verb, " --data-dir ", folder_, " 2>&1"),
                          out);
  }
  std::string Output(const std::string& verb, const std::string& input = "") const {
    std::string out;
    Run(verb, &out, input);
    return out;
  }
  // Nodes that are alive, as this one's `strata nodes` says.
  size_t Alive() const {
    const auto json = nlohmann::json::parse(Output("nodes --json"), nullptr, false);
    size_t alive = 0;
    if (json.is_object()) {
      for (const auto& node : json["nodes"]) alive += node["state"] == "alive" ? 1 : 0;
    }
    return alive;
  }
  bool HasKey() const { return std::filesystem::exists(KeyPath()); }
  std::string KeyPath() const { return folder_ + "/cluster_key"; }
  const std::string& folder() const { return folder_; }
  const std::string& name() const { return name_; }
  pid_t pid() const { return process_->pid(); }

 private:
  struct Lines {
    void Add(absl::string_view line) {
      absl::MutexLock lock(mu);
      lines.emplace_back(line);
    }
    std::string All() {
      absl::MutexLock lock(mu);
      return absl::StrJoin(lines, "\n");
    }
    absl::Mutex mu;
    std::vector<std::string> lines ABSL_GUARDED_BY(mu);
  };

  const Host host_;
  const std::string name_;
  const std::string folder_ = testing::MakeTestFolder();
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();  // shared with the callbacks
  std::unique_ptr<ChildProcess> process_;
};

class Locked : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
    lan_ = std::make_unique<Switch>("lan");
  }
  std::unique_ptr<Machine> Add(const std::string& name) {
    return std::make_unique<Machine>(lan_.get(), name, ++last_);
  }
  // A cluster of one.
  std::unique_ptr<Machine> AddFounder(const std::string& name) {
    auto machine = Add(name);
    machine->Start();
    EXPECT_TRUE(machine->Says(kListens)) << machine->log();
    return machine;
  }

  std::unique_ptr<Switch> lan_;
  int last_ = 0;
};

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
  EXPECT_THAT(founder.Output("nodes"), Not(HasSubstr("waiting")));
}

TEST_F(Locked, WhoIsNotAdmittedStaysOut) {
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
  EXPECT_THAT(said, AllOf(HasSubstr("no node nobody is seen to wait"), HasSubstr("cellar is")));
  // By its address, as where mDNS does not reach.
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
  // Nothing of its certificates is left.
  EXPECT_FALSE(std::filesystem::exists(attic->folder() + "/tls"));
  attic->Start();
  EXPECT_TRUE(Eventually([&] { return attic->Alive() == 1; })) << attic->log();
  EXPECT_EQ(attic->Output("key show"), key);
}

TEST_F(Locked, AnotherKeyIsAnotherCluster) {
  const auto attic = AddFounder("attic");
  const auto stranger = Add("stranger");
  stranger->Output("key new");
  stranger->Start();
  ASSERT_TRUE(stranger->Says(kListens)) << stranger->log();
  EXPECT_EQ(stranger->Alive(), 1u);
  EXPECT_EQ(attic->Alive(), 1u);
  std::string said;
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
  EXPECT_THAT(cellar->Output("nodes"), HasSubstr("It is open"));
  std::string said;
  EXPECT_FALSE(attic->Run("nodes --node 10.80.0.2:7400", &said));
  EXPECT_THAT(said, HasSubstr("say --open here"));
}

// What a program shows of itself to others of this machine.
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
