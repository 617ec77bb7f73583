#include "node/status/model_list.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

wire::KnownModel Known(const std::string& node, const std::string& name, uint64_t bytes,
                       const std::string& path, const std::string& place = "Strata") {
  wire::KnownModel known;
  known.set_node(std::string(15, '\0') + node[0]);
  known.set_node_name(node);
  known.mutable_file()->set_name(name);
  known.mutable_file()->set_bytes(bytes);
  known.mutable_file()->set_path(path);
  known.mutable_file()->set_place(place);
  return known;
}

LocalModel Here(const std::string& name, uint64_t bytes, const std::string& path) {
  LocalModel model = {.name = name, .path = path, .place = "Ollama"};
  model.variant = {.parts = {{.name = "m-Q4_0.gguf", .bytes = bytes}}, .bytes = bytes};
  return model;
}

TEST(ModelList, HasOneThatSeveralNodesHaveOnce) {
  wire::ListKnownModelsResponse known;
  *known.add_models() = Known("attic", "m", 5, "/a/m.gguf");
  *known.add_models() = Known("cellar", "m", 5, "/b/m.gguf");
  *known.add_models() = Known("kitchen", "m", 5, "/c/m.gguf", "LM Studio");
  *known.add_models() = Known("kitchen", "m", 6, "/d/m.gguf");
  const auto models = ListModelsOf(known, {Here("m", 5, "/b/m.gguf"), Here("n", 5, "/x/n.gguf")});
  ASSERT_THAT(models, SizeIs(3));
  EXPECT_EQ(PlacesText(models[0]), "attic, cellar (Strata), kitchen (LM Studio)");
  EXPECT_EQ(PlacesText(models[1]), "kitchen (Strata)");
  EXPECT_EQ(PlacesText(models[2]), "Ollama") << "of this machine alone";
  EXPECT_EQ(models[2].quant, "Q4_0");
  EXPECT_EQ(ListedModelJson(models[0])["nodes"].size(), 3);
}

TEST(ModelList, AModelIsLoadedByItsFileOnItsNode) {
  wire::ListKnownModelsResponse known;
  *known.add_models() = Known("attic", "m", 5, "/a/m.gguf");
  *known.add_models() = Known("attic", "n", 5, "/a/n.gguf");
  *known.add_models() = Known("attic", "o", 5, "/a/o.gguf");
  auto models = ListModelsOf(known, {});
  std::vector<wire::ModelStatus> loaded(3);
  for (wire::ModelStatus& status : loaded) status.set_state(wire::ModelStatus::SERVING);
  loaded[0].mutable_source()->set_path("/a/m.gguf");
  loaded[0].mutable_source()->set_node(models[0].copies[0].node_id);
  loaded[1].mutable_source()->set_path("/a/n.gguf");
  loaded[1].mutable_source()->set_node(std::string(32, 'f'));
  loaded[2].mutable_source()->set_path("/a/o.gguf");
  loaded[2].mutable_source()->set_node(models[2].copies[0].node_id);
  loaded[2].set_state(wire::ModelStatus::FAILED);
  MarkLoaded(loaded, absl::MakeSpan(models));
  EXPECT_EQ(models[0].is_loaded, true);
  EXPECT_EQ(models[1].is_loaded, false) << "another node's file of that path is loaded";
  EXPECT_EQ(models[2].is_loaded, false);
}

TEST(ModelList, FitIsThePlannersPrediction) {
  wire::PlanExplained plan;
  plan.set_json(R"({"ctx": 4096, "model": {"ctx_max": 8192},
      "steps": [{"sequences": 4, "step_ms": 9}, {"sequences": 1, "step_ms": 80.0}]})");
  const ModelFit fit = FitOf(plan);
  EXPECT_EQ(FitText(fit), "yes, 12.5 tokens/s, context 4096");
  EXPECT_EQ(fit.n_ctx_max, 8192);
  for (const char* json : {"", "[]", "{"}) {
    plan.set_json(json);
    EXPECT_EQ(FitText(FitOf(plan)), "?") << json;
  }
  plan.set_json(R"({"ctx": "x", "model": 5, "steps": [5, {"sequences": 1, "step_ms": 0}]})");
  EXPECT_EQ(FitText(FitOf(plan)), "yes");
}

TEST(ModelList, WhatIsMissingIsSaidInBytes) {
  const ModelFit fit =
      FitOf(WithShortage(absl::ResourceExhaustedError("the model does not fit"),
                         {.needed_bytes = uint64_t{5} << 30, .free_bytes = uint64_t{3} << 30}));
  EXPECT_EQ(FitText(fit), "no: 2.0 GiB missing");
  EXPECT_THAT(fit.why, HasSubstr("does not fit"));
  EXPECT_EQ(FitText(FitOf(absl::ResourceExhaustedError("too many models"))), "no");
  const ModelFit unknown = FitOf(absl::UnavailableError("two\nlines"));
  EXPECT_EQ(FitText(unknown), "?");
  EXPECT_EQ(unknown.why, "two\\nlines");
  ListedModel model = {.copies = {{}}, .fit = fit};
  EXPECT_EQ(ListedModelJson(model)["missing_bytes"], uint64_t{2} << 30);
  EXPECT_EQ(ListedModelJson(model)["fits"], false);
  model.fit = unknown;
  EXPECT_FALSE(ListedModelJson(model).contains("fits"));
}

TEST(ModelList, AliasesOfAllCopiesAreListed) {
  wire::ListKnownModelsResponse known;
  *known.add_models() = Known("attic", "m", 5, "/a/m.gguf");
  *known.add_models() = Known("cellar", "m", 5, "/b/m.gguf");
  known.mutable_models(0)->mutable_file()->add_aliases("fast");
  known.mutable_models(1)->mutable_file()->add_aliases("fast");
  known.mutable_models(1)->mutable_file()->add_aliases("mine");
  EXPECT_THAT(ListModelsOf(known, {})[0].aliases, ElementsAre("fast", "mine"));
  EXPECT_THAT(ListModelsOf({}, {}), IsEmpty());
}

}  // namespace
}  // namespace strata
