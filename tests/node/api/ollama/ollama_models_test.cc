#include "node/api/ollama/ollama_models.h"

#include "absl/time/civil_time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

const absl::Time kNow =
    absl::FromCivil(absl::CivilSecond(2026, 1, 31, 23, 59, 59), absl::UTCTimeZone());

wire::ModelStatus Model() {
  wire::ModelStatus model;
  model.set_name("Tiny \xff");
  model.set_model_id(std::string(32, '\x11'));
  model.set_architecture("llama");
  model.set_n_ctx(2048);
  model.set_n_layer(6);
  model.set_tensor_bytes(7);
  model.set_loaded_s_ago(59);
  model.set_chat_template("{{ x }}\xff");
  return model;
}

TEST(OllamaModels, ListsWhatTheClusterKnows) {
  const Json tags = Json::parse(OllamaModels({Model()}, kNow, /*running=*/false))["models"];
  ASSERT_EQ(tags.size(), 1u);
  EXPECT_EQ(tags[0]["name"], "Tiny \uFFFD");
  EXPECT_EQ(tags[0]["model"], tags[0]["name"]);
  EXPECT_EQ(tags[0]["size"], 7);
  EXPECT_EQ(tags[0]["digest"].get<std::string>().size(), 64u);
  EXPECT_EQ(tags[0]["modified_at"], "2026-01-31T23:59:00.000000Z");
  EXPECT_EQ(tags[0]["details"]["family"], "llama");
  EXPECT_EQ(tags[0]["details"]["parameter_size"], "");
  const Json running = Json::parse(OllamaModels({Model()}, kNow, /*running=*/true))["models"];
  EXPECT_EQ(running[0]["context_length"], 2048);
  EXPECT_GT(running[0]["expires_at"].get<std::string>(), "2100");
}

TEST(OllamaModels, AModelGoesWhenItsKeepAliveIsOver) {
  wire::ModelStatus model = Model();
  model.set_keep_alive_ms(60'000);
  model.set_idle_ms(20'000);
  const auto expires_at = [&] {
    return Json::parse(OllamaModels({model}, kNow, /*running=*/true))["models"][0]["expires_at"];
  };
  EXPECT_EQ(expires_at(), OllamaTime(kNow + absl::Seconds(40)));
  model.set_idle_ms(-1);  // in use
  EXPECT_EQ(expires_at(), OllamaTime(kNow + absl::Seconds(60)));
}

TEST(OllamaModels, CapabilitiesAreThoseOfTheTemplate) {
  const Json none = Json::parse(OllamaModel(Model(), {.status = absl::NotFoundError("")}, kNow));
  EXPECT_EQ(none["capabilities"], Json({"completion"}));
  EXPECT_EQ(none["model_info"]["general.architecture"], "llama");
  EXPECT_EQ(none["model_info"]["llama.context_length"], 2048);
  const Json words = Json::parse(OllamaModel(Model(), {.tools_in_words = true}, kNow));
  EXPECT_EQ(words["capabilities"], Json({"completion"}));
  const Json all = Json::parse(OllamaModel(Model(), {.thinks = true}, kNow));
  EXPECT_EQ(all["capabilities"], Json({"completion", "tools", "thinking"}));
}

}  // namespace
}  // namespace strata
