// The models whose files the nodes of a cluster have.
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/client/coordinator_client.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/http_client.h"
#include "tests/support/program.h"
#include "tests/support/renamed_model.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_key.h"

namespace strata {
namespace {

using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The demo model under three names, of which the nodes' memory has room for one.
class Autoload : public testing::TwoNodes {
 protected:
  void SetUp() override {
    const std::string home = testing::MakeTestFolder();
    for (const char* variable : {"HOME", "XDG_CACHE_HOME"}) {
      setenv(variable, home.c_str(), /*overwrite=*/1);
    }
    for (const char* name : {"first", "other", "third"}) {
      ASSERT_NO_FATAL_FAILURE(testing::WriteRenamedModel(
          STRATA_DEMO_MODEL, absl::StrCat("Model ", name), PathOf(name)));
    }
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
  }
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    if (node == 1) return {"--memory", "CPU=20MiB"};
    return {"--models", models_, "--memory", "CPU=120MiB"};
  }
  std::string PathOf(const std::string& name) const { return models_ + "/" + name + ".gguf"; }

  // By name, of the models that are loaded: that of `strata status --json`.
  std::map<std::string, Json> Loaded() {
    std::map<std::string, Json> loaded;
    const Json status = Run(0, {"status", "--json"});
    EXPECT_TRUE(status.is_object()) << status;
    if (!status.is_object()) return loaded;
    for (const Json& model : status["models"]) loaded[model["name"]] = model;
    return loaded;
  }
  bool LoadsOnly(const std::string& name) {
    const auto loaded = Loaded();
    return loaded.size() == 1 && loaded.contains(name);
  }
  Json Chat(const std::string& model, bool stream = false) const {
    return {{"model", model},
            {"stream", stream},
            {"max_tokens", 4},
            {"messages", Json::array({{{"role", "user"}, {"content", "The sea"}}})}};
  }
  Json PostJson(size_t node, const std::string& path, const Json& body) {
    const HttpReply reply = Post(node, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  }
  // In order: "ID STATUS" of /v1/models.
  std::vector<std::string> Listed(size_t node) {
    std::vector<std::string> listed;
    const Json list = Json::parse(Get(node, "/v1/models").body, nullptr, false);
    for (const Json& model : list["data"]) {
      listed.push_back(absl::StrCat(model["id"].get<std::string>(), " ",
                                    model["status"]["value"].get<std::string>()));
    }
    return listed;
  }

  const std::string models_ = testing::MakeTestFolder();
};

TEST_F(Autoload, ARequestLoadsWhatItNamesAndWhatIsIdleGoes) {
  testing::UseTestKey();
  for (size_t node : {0, 1}) {
    const auto client = CoordinatorClient::Connect({.node = addresses_[node]});
    ASSERT_TRUE(client.ok()) << client.status();
    const auto known = (*client)->ListKnownModels();
    ASSERT_TRUE(known.ok()) << known.status();
    std::vector<std::string> found;
    for (const wire::KnownModel& model : known->models()) {
      found.push_back(
          absl::StrCat(model.node_name(), " ", model.file().name(), " ", model.file().path()));
      EXPECT_GT(model.file().bytes(), 7'000'000u);
    }
    EXPECT_THAT(found,
                ElementsAre("attic first " + PathOf("first"), "attic other " + PathOf("other"),
                            "attic third " + PathOf("third")));
    EXPECT_THAT(known->silent(), IsEmpty());
  }
  EXPECT_THAT(Listed(1), ElementsAre("first unloaded", "other unloaded", "third unloaded"));
  EXPECT_EQ(Json::parse(Get(1, "/v1/models/first").body)["status"]["value"], "unloaded");
  const HttpReply near = Post(1, "/v1/chat/completions", Chat("firts"));
  EXPECT_EQ(near.status, 404);
  EXPECT_THAT(near.body, HasSubstr("near are: first"));

  // One load for all requests, whichever node and dialect they come in by.
  std::string streamed;
  std::thread client([&] { streamed = Post(1, "/v1/chat/completions", Chat("first", true)).body; });
  std::thread anthropic([&] { PostJson(0, "/v1/messages", Chat("first.gguf")); });
  EXPECT_EQ(PostJson(0, "/v1/responses",
                     {{"model", "First"}, {"input", "The sea"}, {"max_output_tokens", 4}})["model"],
            "Model first");
  client.join();
  anthropic.join();
  EXPECT_THAT(streamed, HasSubstr("data: [DONE]"));
  EXPECT_THAT(streamed, Not(HasSubstr("error")));
  auto loaded = Loaded();
  ASSERT_TRUE(loaded.size() == 1 && loaded.contains("Model first"));
  EXPECT_EQ(loaded["Model first"]["keep_alive_ms"], 300'000);
  EXPECT_EQ(loaded["Model first"]["pinned"], false);
  EXPECT_THAT(Listed(1), ElementsAre("Model first loaded", "first loaded", "other unloaded",
                                     "third unloaded"));

  // There is no room for both; the shortest time is over a moment after the request.
  const Json generated = PostJson(1, "/api/generate",
                                  {{"model", "other:latest"},
                                   {"prompt", "The sea"},
                                   {"stream", false},
                                   {"keep_alive", "4s"},
                                   {"options", {{"num_predict", 4}}}});
  EXPECT_EQ(generated["model"], "Model other");
  EXPECT_TRUE(LoadsOnly("Model other"));
  EXPECT_TRUE(Eventually([this] { return Loaded().empty(); }));
  absl::SleepFor(absl::Seconds(2));  // a coordinator looks for what is to be loaded again
  EXPECT_THAT(Loaded(), IsEmpty());

  // Without a prompt, Ollama's clients only load and unload.
  EXPECT_EQ(PostJson(1, "/api/generate", {{"model", "third"}})["done_reason"], "load");
  EXPECT_TRUE(LoadsOnly("Model third"));
  EXPECT_EQ(PostJson(1, "/api/generate", {{"model", "third"}, {"keep_alive", 0}})["done_reason"],
            "unload");
  EXPECT_TRUE(Eventually([this] { return Loaded().empty(); }));
  EXPECT_EQ(PostJson(1, "/api/chat", {{"model", "third"}, {"keep_alive", 0}})["done_reason"],
            "unload");

  // What a person pins stays, also for another person's load.
  const Json pinned = Run(1, {"load", PathOf("third"), "--pin", "--keep-alive", "30m", "--json"});
  ASSERT_TRUE(pinned.is_object()) << pinned;
  const HttpReply refused = Post(1, "/v1/chat/completions", Chat("first"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("Model third (pinned)"));
  const auto by_hand = Strata(1, {"load", PathOf("other")});
  EXPECT_NE(by_hand->ExitStatus(), 0);
  EXPECT_THAT(by_hand->err(), HasSubstr("Model third (pinned)"));
  loaded = Loaded();
  EXPECT_EQ(loaded["Model third"]["keep_alive_ms"], 1'800'000);
  EXPECT_EQ(loaded["Model third"]["pinned"], true);
  const auto status = Strata(1, {"status"});
  EXPECT_EQ(status->ExitStatus(), 0) << status->err();
  EXPECT_THAT(status->out(),
              AllOf(HasSubstr("Model Model third"), HasSubstr(", pinned, goes after ")));
}

TEST(NoAutoload, ARequestForWhatIsNotLoadedFindsNothing) {
  const std::string models = testing::MakeTestFolder();
  ASSERT_NO_FATAL_FAILURE(
      testing::WriteRenamedModel(STRATA_DEMO_MODEL, "Model first", models + "/first.gguf"));
  Program node({"node", "--listen", "127.0.0.1:0", "--no-mdns", "--no-measure", "--ephemeral",
                "--http", "0", "--models", models, "--no-autoload"});
  const auto ready = nlohmann::json::parse(node.FirstLine(), nullptr, false);
  ASSERT_TRUE(ready.is_object()) << node.err();
  const std::string url = ready["node"]["http"];
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1), &port)) << url;
  HttpClient client(static_cast<uint16_t>(port));
  HttpReply reply;
  const absl::Time until = absl::Now() + Program::kLong;
  do {  // until the node coordinates
    absl::SleepFor(absl::Milliseconds(50));
    ASSERT_TRUE(client.Post("/v1/completions", R"({"model":"first","prompt":"The sea"})"));
    reply = client.Read();
  } while (reply.status == 503 && absl::Now() < until);
  EXPECT_EQ(reply.status, 404);
  EXPECT_THAT(reply.body, HasSubstr("none is loaded"));
}

}  // namespace
}  // namespace strata
