// Schemas as people's libraries write them (library_schemas.json): each has a grammar, which has
// the good values and not the bad ones.
#include <fstream>
#include <random>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/grammar/json_schema_grammar.h"
#include "node/grammar/schema_check.h"
#include "tests/support/gbnf_text.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;

SchemaJson Schemas() {
  std::ifstream file(LIBRARY_SCHEMAS);
  return SchemaJson::parse(file);
}

TEST(LibrarySchemas, HaveGrammarsOfTheirValues) {
  const SchemaJson schemas = Schemas();
  ASSERT_GT(schemas.size(), 20u);
  for (const SchemaJson& each : schemas) {
    const std::string from = each["from"].get<std::string>();
    const SchemaJson& schema = each["schema"];
    JsonGrammar grammar;
    auto root = grammar.Schema(schema, "schema");
    ASSERT_THAT(root, IsOk()) << from;
    const auto printed = grammar.Finish(*std::move(root), "schema");
    ASSERT_THAT(printed, IsOk()) << from;
    const GbnfGrammar parsed = ParseGbnf(*printed).value();
    const GbnfText texts(parsed);
    SchemaCheck check(schema);
    for (const SchemaJson& good : each["good"]) {
      EXPECT_TRUE(texts.Reads(good.dump())) << from << "\n" << good.dump() << "\n" << schema.dump();
      EXPECT_THAT(check.CheckText(good.dump()), IsOk()) << from << "\n" << good.dump();
    }
    for (const SchemaJson& bad : each["bad"]) {
      EXPECT_FALSE(texts.Reads(bad.dump()) && check.CheckText(bad.dump()).ok())
          << from << "\n"
          << bad.dump() << "\n"
          << schema.dump();
    }
    EXPECT_EQ(!grammar.relaxed().empty(), each.contains("relaxed"))
        << from << ": " << ::testing::PrintToString(grammar.relaxed());
    std::mt19937 random(7);
    for (int i = 0; i < 20; ++i) {
      const std::string text =
          texts.Write([&](uint32_t n) { return static_cast<uint32_t>(random() % n); }, 100);
      if (!grammar.relaxed().empty()) continue;
      EXPECT_THAT(check.CheckText(text), IsOk()) << from << "\n" << text;
    }
  }
}

}  // namespace
}  // namespace strata
