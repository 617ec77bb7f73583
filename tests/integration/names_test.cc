// Models whose names and files come from strangers: bytes that are no text, escapes, line ends,
// names that other models have. Whatever a model is called, every node serves it, and its name
// controls no terminal and no log.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shard/model/gguf.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::TwoNodes;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Names : public TwoNodes {
 protected:
  void SetUp() override {
    folder_ = testing::MakeTestFolder();
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The demo model under another name, an empty one for none; `note` makes it another model.
  std::string Write(const std::string& file, absl::string_view name, absl::string_view note = "") {
    std::ifstream in(STRATA_DEMO_MODEL, std::ios::binary);
    const std::string good{std::istreambuf_iterator<char>(in), {}};
    auto header = ParseGgufHeader(good);
    EXPECT_TRUE(header.ok()) << header.status();
    const std::string data = good.substr(header->data_offset);
    header->Erase("general.name");
    if (!name.empty()) header->Set("general.name", GgufValue::String(name));
    header->Set("general.description", GgufValue::String(note));
    std::string path = absl::StrCat(folder_, "/", file);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << SerializeGgufHeader(*header) << data;
    return path;
  }

  static std::vector<std::string> LoadOf(const std::string& path) {
    return {"load", path, "--assign", "attic=0-2,cellar=3-5", "--ctx", "256", "--seqs", "2"};
  }
  std::string Load(const std::string& path) {
    std::vector<std::string> args = LoadOf(path);
    args.push_back("--json");
    const Json loaded = Run(0, args);
    EXPECT_TRUE(loaded.is_object()) << loaded;
    return loaded.is_object() ? loaded["model"].get<std::string>() : "";
  }
  std::vector<std::string> Ids(size_t node) {
    std::vector<std::string> ids;
    const Json models = Json::parse(Get(node, "/v1/models").body, nullptr, false);
    for (const auto& model : models["data"]) ids.push_back(model["id"]);
    return ids;
  }
  int Writes(size_t node, const std::string& model) {
    return Post(node, "/v1/completions", {{"model", model}, {"prompt", "The"}, {"max_tokens", 2}})
        .status;
  }
  // The models of all stages in `strata status`.
  std::vector<std::string> StageModels() {
    std::vector<std::string> names;
    const Json status = Run(1, {"status", "--json"});
    for (const auto& node : status["nodes"]) {
      for (const auto& stage : node["stages"]) names.push_back(stage["model"]);
    }
    return names;
  }

  std::string folder_;
};

// What users of others miss: llama.cpp 11738, ramalama 752, ik_llama.cpp 775.
TEST_F(Names, OneThatIsNotUtf8IsServedByAllNodes) {
  const std::string path = Write("latin1.gguf",
                                 "Mod\xe8le fran\xe7"
                                 "ais");
  const std::string name =
      "Mod\ufffdle fran\ufffd"
      "ais";
  EXPECT_EQ(Load(path), name);
  for (const size_t node : {0, 1}) {
    EXPECT_THAT(Ids(node), ElementsAre(name));
    EXPECT_EQ(Writes(node, name), 200);
    EXPECT_TRUE(Run(node, {"run", name, "The", "--max-tokens", "2", "--json"}).is_object());
  }
  EXPECT_THAT(StageModels(), ElementsAre(name, name));
  EXPECT_EQ(Run(1, {"unload", name, "--json"})["unloaded"], name);
  EXPECT_THAT(Ids(1), ElementsAre());
  for (const auto& node : nodes_) EXPECT_THAT(node->err(), Not(HasSubstr("libprotobuf")));
}

// What users of others miss: ollama 16785.
TEST_F(Names, OneWithEscapesAndLineEndsSteersNoTerminalAndNoLog) {
  const std::string path =
      Write("esc.gguf", "plain \x1b[31mred\x1b[0m\nW0101 forged.cc:1] a line\u202e\x1b]0;x\x07");
  const std::string name =
      "plain \\u001b[31mred\\u001b[0m\\nW0101 forged.cc:1] a line\\u202e\\u001b]0;x\\u0007";
  std::vector<std::string> lines;
  const auto hear = [&](size_t node, std::vector<std::string> args) {
    const auto program = Strata(node, std::move(args));
    EXPECT_EQ(program->ExitStatus(), 0) << program->err();
    for (const std::string& text : {program->out(), program->err()}) {
      for (absl::string_view line : absl::StrSplit(text, '\n')) lines.emplace_back(line);
    }
  };
  hear(0, {"plan", path, "--ctx", "256"});
  hear(0, LoadOf(path));
  hear(1, {"status"});
  EXPECT_THAT(Ids(0), ElementsAre(name));
  EXPECT_THAT(Ids(1), ElementsAre(name));
  EXPECT_EQ(Writes(1, name), 200);
  hear(1, {"run", name, "The", "--max-tokens", "2"});
  for (absl::string_view line : absl::StrSplit(Get(0, "/metrics").body, '\n')) {
    lines.emplace_back(line);
  }
  hear(1, {"unload", name});
  for (const auto& node : nodes_) {
    for (const std::string& line : node->err_lines()) lines.push_back(line);
  }
  EXPECT_THAT(lines, Each(AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\u202e")),
                                Not(HasSubstr("\x07")), Not(StartsWith("W0101 forged")))));
}

TEST_F(Names, FoldersAndFilesNeedNotBeUtf8) {
  const std::string path = Write("caf\xe9/mod\xe8le\n.gguf", "");
  const std::string name = "mod\ufffdle";
  EXPECT_EQ(Strata(0, {"plan", path, "--ctx", "256"})->ExitStatus(), 0);
  EXPECT_EQ(Load(path), name);
  EXPECT_THAT(Ids(1), ElementsAre(name));
  EXPECT_EQ(Writes(1, name), 200);
  EXPECT_THAT(StageModels(), ElementsAre(name, name));
  EXPECT_TRUE(Run(0, {"run", path, "The", "--max-tokens", "2", "--json"}).is_object());
  EXPECT_EQ(Run(0, {"unload", path, "--json"})["unloaded"], name);
  const auto missing = Strata(0, {"load", absl::StrCat(folder_, "/caf\xe9/\x1b[2J.gguf")});
  EXPECT_EQ(missing->ExitStatus(), 3);
  EXPECT_THAT(missing->err(),
              AllOf(HasSubstr("caf\ufffd/\\u001b[2J.gguf: No such file or directory"),
                    Not(HasSubstr("\x1b"))));
}

// What users of others miss: LM Studio's bug tracker 1115 and 1125, unsloth 9340.
TEST_F(Names, TwoModelsOfOneNameHaveTwoIds) {
  const std::string one = Write("one.gguf", "twin"), two = Write("two.gguf", "twin", "the other");
  EXPECT_EQ(Load(one), "twin");
  const std::string second = Load(two);
  EXPECT_THAT(second, StartsWith("twin@"));
  const std::vector<std::string> ids = Ids(0);
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_THAT(ids, Each(StartsWith("twin@")));
  EXPECT_THAT(ids, ::testing::Contains(second));
  for (const size_t node : {0, 1}) {
    EXPECT_EQ(Ids(node), ids);
    for (const std::string& id : ids) EXPECT_EQ(Writes(node, id), 200) << id;
    EXPECT_EQ(Writes(node, "twin"), 400);
    EXPECT_EQ(Writes(node, "two"), 200);  // its file's name
  }
  const auto status = Strata(0, {"status"});
  EXPECT_EQ(status->ExitStatus(), 0);
  EXPECT_THAT(status->out(),
              AllOf(HasSubstr("Model " + ids[0] + ","), HasSubstr("Model " + ids[1] + ",")));
  EXPECT_THAT(Get(0, "/metrics").body + Get(1, "/metrics").body, HasSubstr(second));
  EXPECT_EQ(Strata(1, {"unload", "twin"})->ExitStatus(), 3);
  EXPECT_EQ(Run(1, {"unload", second, "--json"})["unloaded"], second);
  EXPECT_THAT(Ids(1), ElementsAre("twin"));
  const std::string first = ids[0] == second ? ids[1] : ids[0];
  EXPECT_EQ(Writes(1, first), 200);  // clients go on with the id that they were shown
}

TEST_F(Names, AFolderIsNoModelAndSaysSo) {
  for (const char* verb : {"load", "plan"}) {
    const auto program = Strata(0, {verb, folder_});
    EXPECT_EQ(program->ExitStatus(), 3);
    EXPECT_THAT(program->err(), HasSubstr("is a folder; name the model's file in it"));
  }
}

}  // namespace
}  // namespace strata
