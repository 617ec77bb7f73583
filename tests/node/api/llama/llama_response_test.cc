#include "node/api/llama/llama_response.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

std::vector<Json> EventsOf(const std::string& stream) {
  std::vector<Json> events;
  for (absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    EXPECT_TRUE(absl::ConsumePrefix(&event, "data: ")) << event;
    events.push_back(Json::parse(event, nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << event;
  }
  return events;
}

wire::SampledToken Token(int32_t id, const std::string& piece) {
  wire::SampledToken token;
  token.set_token(id);
  token.set_piece(piece);
  token.set_logprob(-0.5f);
  wire::TokenLogprob* top = token.add_top();
  top->set_token(id);
  top->set_piece(piece);
  top->set_logprob(-0.5f);
  return token;
}

ApiPiece Piece(uint32_t index, const std::string& text, const std::string& finish = "") {
  return {.index = index, .text = text, .finish_reason = finish, .tokens = {Token(7, text)}};
}

const ApiUsage kUsage = {.prompt_tokens = 10,
                         .cached_tokens = 4,
                         .completion_tokens = 2,
                         .first_token = absl::Milliseconds(30),
                         .total = absl::Milliseconds(50)};
LlamaWriter::Answer OneAnswer() {
  return {.model = "m", .n_ctx = 100, .settings_json = R"({"seed":1})"};
}

TEST(LlamaResponse, AWholeCompletionSaysHowItEnded) {
  LlamaWriter::Answer answer = OneAnswer();
  answer.return_tokens = true;
  answer.n_probs = 1;
  LlamaWriter writer(answer);
  ApiPiece piece = Piece(0, "a\n\xC3", "stop");
  piece.stop_string = "END";
  const Json json = Json::parse(writer.Whole({piece}, kUsage).body);
  EXPECT_EQ(json["content"], "a\n\uFFFD");
  EXPECT_EQ(json["tokens"], Json::array({7}));
  EXPECT_EQ(json["stop"], true);
  EXPECT_EQ(json["stop_type"], "word");
  EXPECT_EQ(json["stopping_word"], "END");
  EXPECT_EQ(json["has_new_line"], true);
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["generation_settings"]["seed"], 1);
  EXPECT_EQ(json["tokens_predicted"], 2);
  EXPECT_EQ(json["tokens_evaluated"], 10);
  EXPECT_EQ(json["tokens_cached"], 4);
  EXPECT_EQ(json["truncated"], false);
  EXPECT_EQ(json["timings"]["prompt_n"], 6);
  EXPECT_EQ(json["timings"]["prompt_ms"], 30);
  EXPECT_EQ(json["timings"]["predicted_per_second"], 100);
  const Json& probability = json["completion_probabilities"][0];
  EXPECT_EQ(probability["id"], 7);
  EXPECT_EQ(probability["bytes"], Json::array({97, 10, 195}));
  EXPECT_EQ(probability["top_logprobs"][0]["logprob"], -0.5);
}

TEST(LlamaResponse, AStreamTellsProgressAndTimesIfAsked) {
  LlamaWriter::Answer answer = OneAnswer();
  answer.timings_in_pieces = true;
  LlamaWriter writer(answer);
  const auto json_of = [](absl::string_view event) {
    EXPECT_TRUE(absl::ConsumePrefix(&event, "data: "));
    return Json::parse(event);
  };
  const Json progress = json_of(
      writer.Progress({.prompt = {.prompt_tokens = 9, .cached_tokens = 1, .done_tokens = 4}}));
  EXPECT_EQ(progress["prompt_progress"]["processed"], 4);
  EXPECT_EQ(progress["content"], "");
  EXPECT_EQ(progress["stop"], false);
  ApiPiece piece = Piece(0, "a", "");
  piece.usage = kUsage;
  EXPECT_EQ(json_of(writer.Piece(piece))["timings"]["predicted_n"], 2);
}

TEST(LlamaResponse, SlotsTellHowManyCompute) {
  wire::ModelStatus model;
  model.set_n_ctx(64);
  model.set_n_seqs(2);
  model.set_requests_running(1);
  const Json slots = Json::parse(LlamaSlotsJson(model));
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[0]["is_processing"], true);
  EXPECT_EQ(slots[1]["is_processing"], false);
  EXPECT_EQ(slots[1]["n_ctx"], 64);
}

TEST(LlamaResponse, LimitsAndEndsAreToldApart) {
  const auto ended = [](const std::string& finish, uint32_t n_ctx) {
    LlamaWriter::Answer answer = OneAnswer();
    answer.n_ctx = n_ctx;
    LlamaWriter writer(answer);
    return Json::parse(writer.Whole({Piece(0, "a", finish)}, kUsage).body);
  };
  EXPECT_EQ(ended("stop", 100)["stop_type"], "eos");
  EXPECT_EQ(ended("length", 100)["stop_type"], "limit");
  EXPECT_EQ(ended("length", 100)["truncated"], false);
  EXPECT_EQ(ended("length", 12)["truncated"], true);
  EXPECT_EQ(ended("length", 12)["tokens"], Json::array());
  EXPECT_FALSE(ended("length", 12).contains("completion_probabilities"));
}

TEST(LlamaResponse, AStreamEndsWithAnEventThatHasNoContent) {
  LlamaWriter writer(OneAnswer());
  std::string stream = writer.Begin({}, {}).body;
  ApiPiece first = Piece(0, "a");
  first.usage.prompt_tokens = 10;
  stream += writer.Piece(first);
  stream += writer.Piece(Piece(0, "b\n", "length"));
  stream += writer.End(kUsage);
  const std::vector<Json> events = EventsOf(stream);
  ASSERT_EQ(events.size(), 3u) << stream;
  EXPECT_EQ(events[0]["content"], "a");
  EXPECT_EQ(events[0]["stop"], false);
  EXPECT_EQ(events[0]["tokens"], Json::array({7}));
  EXPECT_EQ(events[0]["tokens_evaluated"], 10);
  EXPECT_EQ(events[1]["content"], "b\n");
  EXPECT_EQ(events[1]["tokens_predicted"], 2);
  EXPECT_EQ(events[2]["content"], "");
  EXPECT_EQ(events[2]["stop"], true);
  EXPECT_EQ(events[2]["stop_type"], "limit");
  EXPECT_EQ(events[2]["has_new_line"], true);
  EXPECT_EQ(events[2]["generation_settings"]["seed"], 1);
  EXPECT_EQ(events[2]["generation_settings"]["n_ctx"], 100);
}

TEST(LlamaResponse, SeveralChoicesAreAList) {
  LlamaWriter::Answer answer = OneAnswer();
  answer.n_choices = 2;
  answer.is_list = true;
  LlamaWriter whole(answer);
  const Json list =
      Json::parse(whole.Whole({Piece(0, "a", "stop"), Piece(1, "b", "length")}, kUsage).body);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1]["index"], 1);
  EXPECT_EQ(list[1]["content"], "b");
  EXPECT_EQ(list[1]["tokens_predicted"], 1);
  EXPECT_FALSE(list[1].contains("tokens_evaluated"));  // only the sum of all is known

  LlamaWriter streamed(answer);
  std::string stream = streamed.Piece(Piece(1, "b", "length"));
  stream += streamed.Piece(Piece(0, "a", "stop"));
  stream += streamed.End(kUsage);
  const std::vector<Json> events = EventsOf(stream);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[2]["stop_type"], "eos");
  EXPECT_EQ(events[3]["stop_type"], "limit");
}

TEST(LlamaResponse, ErrorsAreEventsOfAStream) {
  LlamaWriter writer(OneAnswer());
  const std::vector<Json> events = EventsOf(writer.Failure(absl::UnavailableError("gone")));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["error"]["code"], 503);
}

TEST(LlamaResponse, PropsTellOfTheModel) {
  wire::ModelStatus model;
  model.set_name("Demo");
  model.set_n_ctx(1024);
  model.set_n_seqs(4);
  model.mutable_source()->set_path("/models/demo.gguf");
  model.set_chat_template("{{ x }}\xFF");
  const Json props = Json::parse(LlamaPropsJson(model));
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 1024);
  EXPECT_EQ(props["default_generation_settings"]["params"]["seed"], 4294967295);
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["model_alias"], "Demo");
  EXPECT_EQ(props["model_path"], "demo.gguf");
}

TEST(LlamaEmbeddingJson, HasEachVectorInAnArray) {
  EXPECT_EQ(LlamaEmbeddingJson({.vectors = {{1, 0}, {0, 1}}}),
            R"([{"index":0,"embedding":[[1.0,0.0]]},{"index":1,"embedding":[[0.0,1.0]]}])");
}

}  // namespace
}  // namespace strata
