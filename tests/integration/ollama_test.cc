// Ollama's API over a real cluster: two nodes, a model that calls and thinks over both.
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shard/model/gguf.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/http_client.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// Shows thoughts and calls.
constexpr char kTemplate[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

std::vector<Json> LinesOf(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("content-type"), "application/x-ndjson");
  std::vector<Json> lines;
  for (absl::string_view line : absl::StrSplit(reply.body, '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(line, nullptr, false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  EXPECT_FALSE(lines.empty());
  if (lines.empty()) lines.push_back(Json::object());
  return lines;
}

class Ollama : public ::strata::testing::TwoNodes {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    std::ifstream in(STRATA_DEMO_MODEL, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    auto header = ParseGgufHeader(bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    const std::string data = bytes.substr(header->data_offset);
    header->Set("tokenizer.chat_template", GgufValue::String(kTemplate));
    header->Set("general.name", GgufValue::String("Captain"));
    const std::string path = folder_ + "/captain-q8.gguf";
    std::ofstream(path, std::ios::binary) << SerializeGgufHeader(*header) << data;
    const Json loaded = Run(0, {"load", path, "--seqs", "4", "--ctx", "1024", "--json"});
    ASSERT_TRUE(loaded.is_object()) << loaded;
  }
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    return node == 0 ? std::vector<std::string>{"--ollama=127.0.0.1:0", "--any-model"}
                     : std::vector<std::string>{};
  }

  static Json Ask(const Json& more = Json::object()) {
    Json body = {{"model", "Captain"},
                 {"messages", {{{"role", "user"}, {"content", "The old captain"}}}},
                 {"options", {{"temperature", 0}, {"num_predict", 12}}}};
    body.update(more);
    return body;
  }
  Json Whole(const std::string& path, Json body) {
    body["stream"] = false;
    const HttpReply reply = Post(1, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.Header("content-type"), "application/json");
    return Json::parse(reply.body, nullptr, false);
  }
  std::string ErrorOf(const std::string& path, const Json& body, int status) {
    const HttpReply reply = Post(1, path, body);
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json json = Json::parse(reply.body, nullptr, false);
    EXPECT_TRUE(json.is_object() && json.size() == 1) << reply.body;
    return json.is_object() ? json.value("error", "") : "";
  }

  const std::string folder_ = ::strata::testing::MakeTestFolder();
};

TEST_F(Ollama, ChatsAndGeneratesWholeAndInLines) {
  const Json whole = Whole("/api/chat", Ask());
  EXPECT_EQ(whole["model"], "Captain");
  EXPECT_EQ(whole["done"], true);
  EXPECT_EQ(whole["done_reason"], "length");
  EXPECT_EQ(whole["eval_count"], 12);
  EXPECT_GT(whole["prompt_eval_count"], 0);
  EXPECT_GT(whole["total_duration"], 0);
  const std::string text = whole["message"]["content"];
  EXPECT_NE(text, "");

  const auto lines = LinesOf(Post(0, "/api/chat", Ask()));
  EXPECT_GT(lines.size(), 5u);
  std::string streamed;
  for (const Json& line : lines) {
    streamed += line["message"]["content"].get<std::string>();
    EXPECT_EQ(line["done"].get<bool>(), &line == &lines.back());
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(lines.back()["eval_count"], 12);
  EXPECT_EQ(lines.back()["done_reason"], "length");

  Json prompt = Ask({{"prompt", "The old captain"}});
  prompt.erase("messages");
  EXPECT_EQ(Whole("/api/generate", prompt)["response"], text);  // the template is applied
  prompt["raw"] = true;
  const std::string raw = Whole("/api/generate", prompt)["response"];
  EXPECT_NE(raw, text);
  streamed.clear();
  for (const Json& line : LinesOf(Post(0, "/api/generate", prompt))) {
    streamed += line["response"].get<std::string>();
  }
  EXPECT_EQ(streamed, raw);
}

TEST_F(Ollama, AnswersInASchemaAndCallsTools) {
  const Json schema = {
      {"type", "object"}, {"properties", {{"age", {{"type", "integer"}}}}}, {"required", {"age"}}};
  const Json more = {{"format", schema}, {"options", {{"num_predict", 100}}}};
  const std::string content = Whole("/api/chat", Ask(more))["message"]["content"];
  EXPECT_TRUE(Json::parse(content, nullptr, false)["age"].is_number_integer()) << content;

  const Json tool = {{"type", "function"},
                     {"function",
                      {{"name", "weather"},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", {{"city", {{"enum", {"Rome", "Oslo"}}}}}},
                         {"required", {"city"}}}}}}};
  const Json ask = Ask({{"tools", {tool}},
                        {"tool_choice", "required"},
                        {"parallel_tool_calls", false},
                        {"options", {{"num_predict", 200}}}});
  const Json whole = Whole("/api/chat", ask);
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u) << whole;
  EXPECT_EQ(whole["done_reason"], "stop");
  size_t calls = 0;
  for (const Json& line : LinesOf(Post(0, "/api/chat", ask))) {
    if (!line["message"].contains("tool_calls")) continue;
    ++calls;
    const Json& function = line["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], "weather");
    const Json& city = function["arguments"]["city"];
    EXPECT_TRUE(city == "Rome" || city == "Oslo") << line;
  }
  EXPECT_EQ(calls, 1u);

  // The next turn, as clients send it.
  Json next = Ask({{"tools", {tool}}});
  next["messages"].push_back(whole["message"]);
  next["messages"].push_back({{"role", "tool"}, {"tool_name", "weather"}, {"content", "sun"}});
  EXPECT_EQ(Whole("/api/chat", next)["done"], true);
}

TEST_F(Ollama, TellsItsModels) {
  EXPECT_GE(Json::parse(Get(1, "/api/version").body)["version"].get<std::string>(), "0.1");
  const Json tags = Json::parse(Get(1, "/api/tags").body)["models"];
  ASSERT_EQ(tags.size(), 1u);
  EXPECT_EQ(tags[0]["name"], "Captain");
  EXPECT_EQ(Json::parse(Get(1, "/api/ps").body)["models"][0]["name"], "Captain");
  for (const char* name : {"Captain", "captain", "Captain:latest", "captain-q8.gguf"}) {
    const Json show = Whole("/api/show", {{"model", name}});
    const std::string architecture = show["model_info"]["general.architecture"];
    EXPECT_EQ(show["model_info"][architecture + ".context_length"], 1024) << show;
    EXPECT_EQ(show["capabilities"], Json({"completion", "tools", "thinking"})) << show;
    EXPECT_EQ(show["template"], kTemplate);
  }
  EXPECT_EQ(Whole("/api/pull", {{"model", "Captain"}}), Json({{"status", "success"}}));
  EXPECT_EQ(LinesOf(Post(1, "/api/pull", {{"name", "Captain"}})).back()["status"], "success");
  const Json empty = Whole("/api/generate", {{"model", "Captain"}});
  EXPECT_EQ(empty["done_reason"], "load");
  EXPECT_EQ(empty["response"], "");
}

TEST_F(Ollama, SaysWhatIsWrongInItsWords) {
  EXPECT_THAT(ErrorOf("/api/chat", Ask({{"options", {{"temperature", "hot"}}}}), 400),
              HasSubstr("options.temperature"));
  EXPECT_THAT(ErrorOf("/api/chat", Ask({{"model", "gpt-4o"}}), 404), HasSubstr("Captain"));
  EXPECT_THAT(ErrorOf("/api/show", {{"model", "gpt-4o"}}, 404), HasSubstr("gpt-4o"));
  EXPECT_THAT(ErrorOf("/api/pull", {{"model", "gpt-4o"}}, 404), HasSubstr("gpt-4o"));
  EXPECT_THAT(ErrorOf("/api/generate", {{"prompt", "x"}, {"suffix", "y"}}, 400),
              HasSubstr("suffix"));
  EXPECT_THAT(ErrorOf("/api/embed", {{"input", ""}}, 400), HasSubstr("input"));
  EXPECT_THAT(ErrorOf("/api/create", {{"model", "x"}}, 501), HasSubstr("strata load"));
  HttpClient client(ports_[1]);
  ASSERT_TRUE(
      client.Send("DELETE /api/delete HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                  "13\r\n\r\n{\"model\":\"x\"}"));
  const HttpReply gone = client.Read();
  EXPECT_EQ(gone.status, 501);
  EXPECT_THAT(gone.body, HasSubstr("strata unload"));
}

TEST_F(Ollama, HasAPortOfItsOwnIfAsked) {
  const std::string url = Json::parse(nodes_[0]->FirstLine())["node"]["ollama"];
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1), &port)) << url;
  ASSERT_NE(port, ports_[0]);
  EXPECT_TRUE(Json::parse(nodes_[1]->FirstLine())["node"]["ollama"].is_null());
  for (const char* method : {"GET", "HEAD"}) {
    HttpClient client(static_cast<uint16_t>(port));
    ASSERT_TRUE(client.Send(absl::StrCat(method, " / HTTP/1.1\r\nHost: localhost\r\n\r\n")));
    const HttpReply reply = client.ReadHead();
    EXPECT_EQ(reply.status, 200) << method;
    EXPECT_EQ(reply.Header("content-length"), absl::StrCat(sizeof("Ollama is running") - 1));
  }
  EXPECT_THAT(Get(0, "/").body, Not(HasSubstr("Ollama")));  // the other one has the page there
  HttpClient client(static_cast<uint16_t>(port));
  // This node takes any name of a model.
  ASSERT_TRUE(client.Post("/api/chat", Ask({{"model", "llama3.2"}}).dump()));
  EXPECT_EQ(LinesOf(client.Read()).back()["model"], "Captain");
  HttpClient openai(static_cast<uint16_t>(port));
  ASSERT_TRUE(openai.Get("/v1/models"));
  EXPECT_EQ(openai.Read().status, 200);

  // A port that is taken is said, and the node goes on.
  const std::string data = ::strata::testing::MakeTestFolder();
  Program node({"node", "--listen", "127.0.0.1:0", "--no-mdns", "--no-measure", "--http", "0",
                "--data-dir", data, absl::StrCat("--ollama=", port)});
  const Json ready = Json::parse(node.FirstLine(), nullptr, false);
  ASSERT_TRUE(ready.is_object()) << node.err();
  EXPECT_TRUE(ready["node"]["ollama"].is_null());
  EXPECT_TRUE(ready["node"]["http"].is_string());
  EXPECT_TRUE(node.Says("no API at Ollama's port")) << node.err();

  // Beyond this machine clients need tokens, though --http alone would not ask for them.
  Program open({"node", "--ephemeral", "--listen", "127.0.0.1:0", "--no-mdns", "--no-measure",
                "--http", "0", "--ollama=0.0.0.0:0"});
  EXPECT_TRUE(open.Says("at 0.0.0.0: clients need a token")) << open.err();
}

}  // namespace
}  // namespace strata
