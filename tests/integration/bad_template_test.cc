// Models with hostile chat templates: each chat gets an error that says what the template did, and
// the nodes go on as if nothing had been.
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
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class BadTemplate : public ::strata::testing::TwoNodes {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The demo model with another template.
  std::string Load(const std::string& name, const std::string& chat_template) {
    std::ifstream in(STRATA_DEMO_MODEL, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    auto header = ParseGgufHeader(bytes);
    EXPECT_TRUE(header.ok()) << header.status();
    const std::string data = bytes.substr(header->data_offset);
    header->Set("tokenizer.chat_template", GgufValue::String(chat_template));
    header->Set("general.name", GgufValue::String(name));
    const std::string path = folder_ + "/" + name + ".gguf";
    std::ofstream(path, std::ios::binary) << SerializeGgufHeader(*header) << data;
    const Json loaded = Run(0, {"load", path, "--seqs", "2", "--ctx", "512", "--json"});
    EXPECT_TRUE(loaded.is_object()) << loaded;
    return loaded.is_object() ? std::string(loaded["model"]) : "";
  }
  HttpReply Chat(const std::string& model) {
    return Post(0, "/v1/chat/completions",
                {{"model", model},
                 {"max_tokens", 4},
                 {"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}});
  }

  const std::string folder_ = ::strata::testing::MakeTestFolder();
};

TEST_F(BadTemplate, CostsAChatAndNothingElse) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"recursing", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"},
      {"endless",
       "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
       "{% endfor %}{% endfor %}{% endfor %}"},
      {"doubling",
       "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}"
       "{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}"}};
  std::vector<std::string> models;
  for (const auto& [name, chat_template] : bad) models.push_back(Load(name, chat_template));
  const std::string good = Load("good", "{% for m in messages %}{{ m.content }}{% endfor %}");
  for (int round = 0; round < 2; ++round) {
    for (const std::string& model : models) {
      const HttpReply reply = Chat(model);
      EXPECT_EQ(reply.status, 400) << reply.body;
      EXPECT_THAT(reply.body, AllOf(HasSubstr("the model's chat template"),
                                    AnyOf(HasSubstr("too deeply"), HasSubstr("takes more than 5s"),
                                          HasSubstr("needs more than 512 MiB"))));
    }
    const HttpReply reply = Chat(good);
    EXPECT_EQ(reply.status, 200) << reply.body;
  }
  const HttpReply completion =
      Post(0, "/v1/completions", {{"model", models[0]}, {"prompt", "The"}, {"max_tokens", 4}});
  EXPECT_EQ(completion.status, 200) << completion.body;
  EXPECT_EQ(Get(0, "/health").status, 200);
}

}  // namespace
}  // namespace strata
