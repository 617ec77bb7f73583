// The program as a person or a script runs it.
#include "node/cli/cli.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/node.grpc.pb.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"
#include "transport/rpc/grpc_channel.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Cli, VersionNamesTheLibraries) {
  Program program({"--version"});
  EXPECT_EQ(program.ExitStatus(), 0);
  EXPECT_THAT(program.out(), AllOf(StartsWith("strata "), HasSubstr("\nprotocol "),
                                   HasSubstr("\nlibllama "), HasSubstr("\nlibggml ")));
}

TEST(Cli, VersionAsJsonHasEachLibraryAndPlugIn) {
  Program program({"version", "--json"});
  EXPECT_EQ(program.ExitStatus(), 0);
  const auto json = nlohmann::json::parse(program.out(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << program.out();
  EXPECT_EQ(json["strata"], STRATA_VERSION);
  EXPECT_EQ(json["bundle"], "");  // it was built here
  EXPECT_THAT(json["libraries"].get<std::vector<std::string>>(), Contains(HasSubstr("/libllama.")));
  EXPECT_THAT(json["plugins"].get<std::vector<std::string>>(), Contains(HasSubstr("/libggml-cpu")));
}

TEST(Cli, HelpShowsExamplesAndHidesTheWorker) {
  Program program({"--help"});
  EXPECT_EQ(program.ExitStatus(), 0);
  EXPECT_THAT(program.out(), AllOf(HasSubstr("strata demo --nodes 2"), HasSubstr("Exit status"),
                                   Not(HasSubstr("worker  "))));
}

TEST(Cli, EachVerbsHelpHasAnExample) {
  for (const char* verb : {"node", "demo", "measure"}) {
    Program program({verb, "--help"});
    EXPECT_EQ(program.ExitStatus(), 0);
    EXPECT_THAT(program.out(), HasSubstr(absl::StrCat("\n  strata ", verb, " "))) << verb;
  }
}

// A configuration file of a node, and what `strata config check` says of it.
class NodeConfig : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = folder_ + "/node.toml";
    std::ofstream(path) << text;
    return path;
  }
  std::string WhatIsWrong(const std::string& text) {
    Program program({"config", "check", Write(text)});
    EXPECT_EQ(program.ExitStatus(), 2) << text;
    return program.err();
  }

  const std::string folder_ = strata::testing::MakeTestFolder();
};

TEST_F(NodeConfig, ANodeHasItsOptionsAndTheCommandLineCountsMore) {
  const std::string path = Write(
      "# mine\nname = \"kitchen\"\ncluster = 'homes'\nno-mdns = true\nopen = true\n"
      "no-measure = false\nephemeral = true\nno-http = true\nlisten = \"127.0.0.1:0\"\n"
      "peer = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n");
  Program node({"node", "--config", path, "--name", "attic", "--http", "127.0.0.1:0"});
  const auto ready = nlohmann::json::parse(node.FirstLine(), nullptr, false);
  ASSERT_TRUE(ready.is_object()) << node.err();
  EXPECT_EQ(ready["node"]["name"], "attic");
  EXPECT_EQ(ready["node"]["cluster"], "homes");
  EXPECT_THAT(ready["node"]["http"], StartsWith("http://127.0.0.1:"))
      << "--http excludes the file's no-http";
  node->Terminate();
  EXPECT_EQ(node.ExitStatus(), 0);
}

TEST_F(NodeConfig, ItIsReadFromWhereTheEnvironmentSays) {
  const std::string path = Write("threads = 0\n");
  Program node({"node"}, {"STRATA_CONFIG=" + path});
  EXPECT_EQ(node.ExitStatus(), 2);
  EXPECT_THAT(node.err(), AllOf(HasSubstr(path + ": --threads"), HasSubstr("between 1 and 4096")));
  std::filesystem::create_directories(folder_ + "/strata");
  std::filesystem::rename(path, folder_ + "/strata/node.toml");
  Program missing({"node"}, {"STRATA_CONFIG=" + path});
  EXPECT_EQ(missing.ExitStatus(), 2);
  EXPECT_THAT(missing.err(), HasSubstr(path + ": no configuration that can be read"));
  Program none({"config", "check"});
  EXPECT_EQ(none.ExitStatus(), 1);
  EXPECT_THAT(none.err(), HasSubstr("strata config new prints one to begin with"));
}

TEST_F(NodeConfig, TheNewOneIsRightAsItIsAndWithEachLineTaken) {
  Program fresh({"config", "new"});
  ASSERT_EQ(fresh.ExitStatus(), 0);
  const std::string text = fresh.out();
  EXPECT_THAT(text, AllOf(HasSubstr("\n#name = \"NAME\"\n"), HasSubstr("\n#peer = [\""),
                          HasSubstr("\n#no-mdns = true\n"), Not(HasSubstr("in-demo")),
                          Not(HasSubstr("#config")), Not(HasSubstr("#help"))));
  Program check({"config", "check", Write(text)});
  EXPECT_EQ(check.ExitStatus(), 0) << check.err();
  EXPECT_THAT(check.out(), HasSubstr("node.toml: nothing is wrong with it"));
  for (const char* name : {"listen", "cluster", "no-mdns", "suspect-after", "any-model"}) {
    const std::string taken = absl::StrReplaceAll(
        text, {{absl::StrCat("\n#", name, " ="), absl::StrCat("\n", name, " =")}});
    EXPECT_NE(taken, text) << name;
    Program again({"config", "check", Write(taken)});
    EXPECT_EQ(again.ExitStatus(), 0) << name << ": " << again.err();
  }
}

TEST_F(NodeConfig, WhatIsWrongIsNamed) {
  EXPECT_THAT(WhatIsWrong("nmae = \"a\"\n"), HasSubstr("node.toml: 'nmae' is no option of a node"));
  EXPECT_THAT(WhatIsWrong("config = \"other\"\n"), HasSubstr("'config' is no option of a node"));
  EXPECT_THAT(WhatIsWrong("help = true\n"), HasSubstr("'help' is no option of a node"));
  EXPECT_THAT(WhatIsWrong("[node]\nname = \"a\"\n"), HasSubstr("it has no sections"));
  EXPECT_THAT(WhatIsWrong("threads = 0\n"), HasSubstr("--threads"));
  EXPECT_THAT(WhatIsWrong("name = [\"a\", \"b\"]\n"), HasSubstr("--name"));
  EXPECT_THAT(WhatIsWrong("no-mdns = 7up\n"), HasSubstr("--no-mdns"));
  EXPECT_THAT(WhatIsWrong("no-http = true\nhttp = \"7080\"\n"), HasSubstr("--no-http"));
  EXPECT_THAT(WhatIsWrong("listen = \"nonsense\"\n"), HasSubstr("--listen nonsense"));
  EXPECT_THAT(WhatIsWrong("peer = [\"attic\"]\n"), HasSubstr("--peer attic"));
  EXPECT_THAT(WhatIsWrong("http = \"kitchen:1:2\"\n"), HasSubstr("--http kitchen:1:2"));
  EXPECT_THAT(WhatIsWrong("memory = [\"lots\"]\n"), HasSubstr("lots"));
  EXPECT_THAT(WhatIsWrong("suspect-after = 9000\ngone-after = 300\n"),
              HasSubstr("must not be more than --gone-after"));
  EXPECT_THAT(WhatIsWrong(std::string(3000, '[') + "\n"), HasSubstr("node.toml: "));
  EXPECT_THAT(WhatIsWrong("name\n"), HasSubstr("node.toml: 'name' wants a value"));
}

TEST(Cli, AWrongCommandLineIsOneLineAndStatus2) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"dance"},
      {"--dance"},
      {"node", "--dance"},
      {"node", "extra"},
      {"node", "--threads", "0"},
      {"node", "--threads", "many"},
      {"node", "--ephemeral", "--listen", "nonsense"},
      {"node", "--ephemeral", "--listen", "7400"},
      {"node", "--ephemeral", "--http", "nonsense"},
      {"node", "--ephemeral", "--http", "kitchen:1:2"},
      {"node", "--no-http", "--http", "0"},
      {"node", "--ephemeral", "--peer", "nobody"},
      {"node", "--ephemeral", "--peer"},
      {"node", "--ephemeral", "--advertise", "0.0.0.0"},
      {"node", "--ephemeral", "--cluster", ""},
      {"node", "--ephemeral", "--suspect-after", "3000", "--gone-after", "2000"},
      {"nodes", "extra"},
      {"nodes", "--node", "nobody"},
      {"node", "--ephemeral", "--name", "two\nlines"},
      {"node", "--ephemeral", "--name", "not \xFF UTF-8"},
      {"demo", "--nodes", "0"},
      {"demo", "--nodes", "65"},
      {"demo", "--nodes", "-1"},
      {"demo", "--nodes"},
      {"demo", "--temperature", "-1"},
      {"demo", "--temperature", "nan"},
      {"demo", "--top-p", "nan"},
      {"demo", "--top-p", "2"},
      {"demo", "--seed", "x"},
      {"demo", "--max-tokens", "0"},
      {"demo", "--cut", "2,x"},
      {"demo", "--cut", "2,5", "--nodes", "2"},
      {"demo", "--prompt", "not \xFF UTF-8"},
  };
  Program unknown({"staus"});
  EXPECT_EQ(unknown.ExitStatus(), 2);
  EXPECT_THAT(unknown.err_lines(),
              ElementsAre("strata: 'strata' has no 'staus' (see strata --help)"));
  for (const auto& args : wrong) {
    Program program(args);
    EXPECT_EQ(program.ExitStatus(), 2) << absl::StrJoin(args, " ");
    ASSERT_EQ(program.err_lines().size(), 1u) << absl::StrJoin(args, " ") << "\n"
                                              << absl::StrJoin(program.err_lines(), "\n");
    EXPECT_THAT(program.err_lines()[0], StartsWith("strata: "));
    EXPECT_THAT(program.out(), IsEmpty());
  }
}

TEST(Cli, ANodePrintsItsAddressAndAnswersThere) {
  Program program({"node", "--no-http", "--no-mdns", "--name", "kitchen", "--data-dir",
                   testing::MakeTestFolder(), "--threads", "1", "--open"});  // this test has no key
  const auto ready = nlohmann::json::parse(program.FirstLine(), nullptr, false);
  ASSERT_TRUE(ready.is_object() && ready.contains("node")) << program.FirstLine();
  EXPECT_EQ(ready["node"]["name"], "kitchen");
  EXPECT_EQ(ready["node"]["pid"], program->pid());

  auto stub = wire::Node::NewStub(MakeChannel(ready["node"]["address"].get<std::string>()));
  grpc::ClientContext context;
  wire::GetInfoResponse info;
  ASSERT_TRUE(stub->GetInfo(&context, wire::GetInfoRequest(), &info).ok());
  EXPECT_EQ(info.node_id(), ready["node"]["id"].get<std::string>());

  for (int signum : {SIGTERM}) kill(program->pid(), signum);
  EXPECT_EQ(program.ExitStatus(), 0);
}

TEST(Cli, ANodeKeepsItsId) {
  const std::string folder = testing::MakeTestFolder();
  std::vector<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    Program program({"node", "--no-http", "--no-mdns", "--data-dir", folder});
    const auto ready = nlohmann::json::parse(program.FirstLine(), nullptr, false);
    ASSERT_TRUE(ready.is_object());
    ids.push_back(ready["node"]["id"]);
    kill(program->pid(), SIGINT);
    EXPECT_EQ(program.ExitStatus(), 0);
  }
  EXPECT_EQ(ids[0], ids[1]);
}

TEST(Cli, NodesCallsTheNodeOfThisMachine) {
  const std::string folder = testing::MakeTestFolder();
  Program node({"node", "--no-http", "--no-mdns", "--name", "kitchen", "--cluster", "home",
                "--data-dir", folder});
  const auto ready = nlohmann::json::parse(node.FirstLine(), nullptr, false);
  ASSERT_TRUE(ready.is_object()) << node.err();
  Program nodes({"nodes", "--json", "--data-dir", folder});
  EXPECT_EQ(nodes.ExitStatus(), 0) << nodes.err();
  const auto cluster = nlohmann::json::parse(nodes.out(), nullptr, false);
  ASSERT_TRUE(cluster.is_object()) << nodes.out();
  EXPECT_EQ(cluster["cluster"], "home");
  ASSERT_EQ(cluster["nodes"].size(), 1u);
  EXPECT_EQ(cluster["nodes"][0]["id"], ready["node"]["id"]);
  EXPECT_EQ(cluster["nodes"][0]["name"], "kitchen");

  Program table({"nodes", "--node", ready["node"]["address"]});
  EXPECT_EQ(table.ExitStatus(), 0);
  EXPECT_THAT(table.out(), HasSubstr("kitchen"));
}

TEST(Cli, NodesReportsInOneLineThatNoNodeAnswers) {
  Program program({"nodes", "--node", "127.0.0.1:1"});
  EXPECT_EQ(program.ExitStatus(), 5);
  ASSERT_EQ(program.err_lines().size(), 1u);
  EXPECT_THAT(program.err_lines()[0], HasSubstr("no node answers at 127.0.0.1:1"));
}

TEST(Cli, ANodeStopsWithItsParentIfTheOptionIsSet) {
  Program program({"node", "--no-http", "--no-mdns", "--ephemeral", "--stop-with-parent"});
  EXPECT_THAT(program.FirstLine(), StartsWith("{\"node\":"));
  program->Terminate();  // closes stdin as well
  EXPECT_EQ(program.ExitStatus(), 0);
}

TEST(Cli, APortInUseIsAnErrorOfTheNode) {
  Program first({"node", "--no-http", "--no-mdns", "--ephemeral", "--listen", "127.0.0.1:0"});
  const auto ready = nlohmann::json::parse(first.FirstLine(), nullptr, false);
  ASSERT_TRUE(ready.is_object());
  Program second(
      {"node", "--no-http", "--no-mdns", "--ephemeral", "--listen", ready["node"]["address"]});
  EXPECT_EQ(second.ExitStatus(), 5);
  ASSERT_EQ(second.err_lines().size(), 1u);
  EXPECT_THAT(second.err_lines()[0], HasSubstr("cannot listen on 127.0.0.1:"));
}

TEST(Cli, AnUnusableDataDirIsAnErrorWithItsName) {
  Program program({"node", "--data-dir", "/proc/no"});
  EXPECT_EQ(program.ExitStatus(), 1);
  ASSERT_EQ(program.err_lines().size(), 1u);
  EXPECT_THAT(program.err_lines()[0], HasSubstr("/proc/no"));
}

TEST(Cli, AMissingModelIsStatus3) {
  Program program({"demo", "--model", "/no/such/model.gguf"});
  EXPECT_EQ(program.ExitStatus(), 3);
  ASSERT_EQ(program.err_lines().size(), 1u);
  EXPECT_THAT(program.err_lines()[0], HasSubstr("/no/such/model.gguf"));
}

TEST(Cli, AWorkerStopsWhenItsParentIsGone) {
  Program program({"worker", "--open"});
  EXPECT_THAT(program.FirstLine(), StartsWith("{\"worker\":"));
  program->Terminate();
  EXPECT_EQ(program.ExitStatus(), 0);
}

}  // namespace
}  // namespace strata
