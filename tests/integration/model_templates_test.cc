// Models' chat templates from the file to the prompt: which of several is used, what a load and the
// list of models say of one that does not work, and another one given at load.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shard/model/gguf.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::HttpReply;
using ::testing::HasSubstr;

// Shows its input, as an error.
constexpr char kShows[] =
    "{% if messages[0].content == 'SHOW' %}{{ raise_exception('MINE ' ~ messages | tojson) }}"
    "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

class ModelTemplates : public ::strata::testing::TwoNodes {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The demo model with other templates: key and Jinja.
  std::string MakeModel(const std::string& name,
                        const std::vector<std::pair<std::string, std::string>>& templates) {
    std::ifstream in(STRATA_DEMO_MODEL, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    auto header = ParseGgufHeader(bytes);
    EXPECT_TRUE(header.ok()) << header.status();
    const std::string data = bytes.substr(header->data_offset);
    for (const auto& [key, text] : templates) header->Set(key, GgufValue::String(text));
    header->Set("general.name", GgufValue::String(name));
    std::string path = folder_ + "/" + name + ".gguf";
    std::ofstream(path, std::ios::binary) << SerializeGgufHeader(*header) << data;
    return path;
  }
  Json Load(const std::string& path, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"load", path, "--seqs", "2", "--ctx", "512", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    Json loaded = Run(0, words);
    EXPECT_TRUE(loaded.is_object()) << loaded;
    return loaded;
  }
  HttpReply Chat(const std::string& model, Json more = Json::object()) {
    more.update({{"model", model},
                 {"max_tokens", 2},
                 {"messages", Json::array({{{"role", "user"}, {"content", "SHOW"}}})}});
    return Post(0, "/v1/chat/completions", more);
  }
  // What a node's list says of a model, once it has it.
  Json Listed(size_t node, const std::string& model) {
    Json listed = Json::object();
    EXPECT_TRUE(Eventually([&] {
      const Json models = Json::parse(Get(node, "/v1/models").body, nullptr, false);
      if (!models.is_object() || !models.contains("data")) return false;
      for (const Json& each : models["data"]) {
        if (each["id"] == model) listed = each["strata"];
      }
      return !listed.empty();
    }));
    return listed;
  }

  const std::string folder_ = ::strata::testing::MakeTestFolder();
};

TEST_F(ModelTemplates, AnUnreadableOneIsReportedAndAnotherMayBeGiven) {
  const std::string path = MakeModel("unreadable", {{"tokenizer.chat_template", "{% for %}"}});
  const Json loaded = Load(path);
  EXPECT_EQ(loaded["chat"], false);
  EXPECT_THAT(loaded["chat_problem"], HasSubstr("cannot be read"));
  for (const size_t node : {0, 1}) {
    const Json listed = Listed(node, "unreadable");
    EXPECT_EQ(listed.value("chat", true), false) << listed;
    EXPECT_THAT(listed.value("chat_problem", ""), HasSubstr("cannot be read"));
  }
  EXPECT_THAT(Chat("unreadable").body, HasSubstr("cannot be read"));

  ASSERT_TRUE(Run(0, {"unload", "unreadable", "--json"}).is_object());
  const std::string file = folder_ + "/mine.jinja";
  std::ofstream(file) << kShows;
  EXPECT_EQ(Load(path, {"--chat-template", file})["chat"], true);
  EXPECT_TRUE(Listed(1, "unreadable").value("chat", false));
  const HttpReply reply = Chat("unreadable");
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("MINE [{"));
}

TEST_F(ModelTemplates, TheOneForToolsIsUsedWithToolsAndAnyByItsName) {
  const std::string path = MakeModel(
      "several", {{"tokenizer.chat_template", "{{ raise_exception('USUAL') }}"},
                  {"tokenizer.chat_template.tool_use", "{{ raise_exception('TOOLS ' ~ tools) }}"}});
  Load(path);
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  EXPECT_THAT(Chat("several").body, HasSubstr("USUAL"));
  EXPECT_THAT(Chat("several", {{"tools", tools}}).body, HasSubstr("TOOLS [{"));
  EXPECT_THAT(Chat("several", {{"tools", tools}, {"tool_choice", "none"}}).body,
              HasSubstr("USUAL"));

  ASSERT_TRUE(Run(0, {"unload", "several", "--json"}).is_object());
  Load(path, {"--chat-template", "tool_use"});
  EXPECT_THAT(Listed(0, "several").value("chat_problem", ""), HasSubstr("TOOLS None"));
  EXPECT_THAT(Chat("several").body, HasSubstr("TOOLS None"));
}

TEST_F(ModelTemplates, RequestsSetTheTemplatesVariables) {
  Load(MakeModel("variables", {{"tokenizer.chat_template",
                                "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
                                "{{ raise_exception('mood ' ~ mood) if mood is defined }}"}}));
  EXPECT_THAT(Chat("variables", {{"chat_template_kwargs", {{"mood", "calm"}}}}).body,
              HasSubstr("mood calm"));
  EXPECT_EQ(Chat("variables").status, 200);
}

}  // namespace
}  // namespace strata
