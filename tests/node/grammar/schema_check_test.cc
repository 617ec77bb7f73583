#include "node/grammar/schema_check.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

absl::Status Check(const std::string& schema, const std::string& value) {
  return SchemaCheck(SchemaJson::parse(schema)).CheckText(value);
}

TEST(SchemaCheck, TellsWhetherAValueMeetsTheSchema) {
  const struct {
    const char* schema;
    std::vector<const char*> good, bad;
  } cases[] = {
      {R"({"type":["integer","null"]})", {"1", "1.0", "null"}, {"1.5", "\"1\""}},
      {R"({"type":"string","nullable":true})", {"null", "\"a\""}, {"1"}},
      {R"({"enum":[1,{"a":1,"b":2}]})", {"1.0", R"({"b":2,"a":1})"}, {"2", R"({"a":1})"}},
      {R"({"minimum":0.5,"exclusiveMaximum":2,"multipleOf":0.5})",
       {"0.5", "1.5"},
       {"0", "2", "0.7"}},
      {R"({"minimum":1,"exclusiveMinimum":true})", {"1.5", "\"a\""}, {"1"}},
      {R"({"minimum":-5,"maximum":18446744073709551615})",
       {"-5", "0", "18446744073709551615"},
       {"-6"}},
      {R"({"multipleOf":0.01})", {"0.07", "1.1", "4.35"}, {"0.075"}},
      {R"({"minLength":2,"maxLength":3})", {"\"\u00e9\u00e9\"", "1"}, {"\"a\"", "\"abcd\""}},
      {R"j({"pattern":"^a(?!b)"})j", {"\"ac\""}, {"\"ab\""}},
      {R"({"format":"date"})", {"\"2024-02-29\""}, {"\"2023-02-29\""}},
      {R"({"format":"color"})", {"\"any\""}, {}},
      {R"({"items":{"type":"integer"},"minItems":1,"maxItems":2,"uniqueItems":true})",
       {"[1]", "[1,2]"},
       {"[]", "[1,1.0]", "[1,2,3]", "[\"a\"]"}},
      {R"({"prefixItems":[{"type":"integer"}],"items":false})",
       {"[]", "[1]"},
       {"[1,2]", "[\"a\"]"}},
      {R"({"items":[{"type":"integer"}],"additionalItems":{"type":"string"}})",
       {"[1,\"a\"]"},
       {"[1,2]"}},
      {R"({"contains":{"const":1},"maxContains":2})", {"[1,2]", "[1,1]"}, {"[]", "[2]", "[1,1,1]"}},
      {R"({"contains":{"const":1},"minContains":0})", {"[]", "[2]"}, {}},
      {R"({"required":["a"],"properties":{"a":{"type":"integer"}},"additionalProperties":false})",
       {R"({"a":1})"},
       {"{}", R"({"a":"x"})", R"({"a":1,"b":1})"}},
      {R"({"patternProperties":{"^x":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
       {R"({"x1":1,"y":"a"})"},
       {R"({"x1":"a"})", R"({"y":1})"}},
      {R"({"propertyNames":{"maxLength":1},"minProperties":1,"maxProperties":2})",
       {R"({"a":1})"},
       {"{}", R"({"ab":1})", R"({"a":1,"b":1,"c":1})"}},
      {R"({"dependentRequired":{"a":["b"]},"dependentSchemas":{"c":{"required":["d"]}}})",
       {"{}", R"({"a":1,"b":1})", R"({"c":1,"d":1})"},
       {R"({"a":1})", R"({"c":1})"}},
      {R"({"dependencies":{"a":["b"],"c":{"required":["d"]}}})",
       {R"({"b":1})"},
       {R"({"a":1})", R"({"c":1})"}},
      {R"({"allOf":[{"minimum":1},{"maximum":2}]})", {"1", "2"}, {"0", "3"}},
      {R"({"oneOf":[{"type":"integer"},{"minimum":2}]})", {"1", "2.5"}, {"3", "1.5"}},
      {R"({"not":{"type":"null"}})", {"1"}, {"null"}},
      {R"({"if":{"properties":{"a":{"const":1}},"required":["a"]},"then":{"required":["b"]},
          "else":{"required":["c"]}})",
       {R"({"a":1,"b":1})", R"({"c":1})"},
       {R"({"a":1})", R"({"a":2})"}},
      {R"({"$ref":"#/$defs/n","$defs":{"n":{"properties":{"next":{"$ref":"#/$defs/n"}},"required":["v"]}}})",
       {R"({"v":1,"next":{"v":2}})"},
       {R"({"v":1,"next":{}})"}},
      {R"({"$id":"T0","properties":{"kids":{"items":{"$ref":"T0"}}},"required":["v"]})",
       {R"({"v":1,"kids":[{"v":1}]})"},
       {R"({"v":1,"kids":[{}]})"}},
      {R"({"$defs":{"s":{"$anchor":"short","maxLength":1}},"$ref":"#short"})",
       {"\"a\""},
       {"\"ab\""}},
      {"true", {"1"}, {}},
      {"false", {}, {"1"}},
  };
  for (const auto& test : cases) {
    for (const char* value : test.good) {
      EXPECT_THAT(Check(test.schema, value), IsOk()) << test.schema << "\n" << value;
    }
    for (const char* value : test.bad) {
      EXPECT_THAT(Check(test.schema, value), StatusIs(absl::StatusCode::kFailedPrecondition))
          << test.schema << "\n"
          << value;
    }
  }
  EXPECT_THAT(Check("true", "{"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "it is not JSON"));
}

TEST(SchemaCheck, NamesTheKeywordThatIsNotMet) {
  EXPECT_EQ(Check(R"({"properties":{"a":{"anyOf":[{"type":"null"},{"type":"integer"}]}}})",
                  R"({"a":"x"})")
                .message(),
            "anyOf");
  EXPECT_EQ(Check(R"({"items":{"multipleOf":5}})", "[5,6]").message(), "multipleOf");
}

TEST(SchemaCheck, AHostileSchemaIsBounded) {
  // A value that would be looked at 2^40 times, and a circle.
  std::string doubling = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&doubling, "\"a", i, R"(":{"allOf":[{"$ref":"#/$defs/a)", i + 1,
                    R"("},{"$ref":"#/$defs/a)", i + 1, "\"}]},");
  }
  EXPECT_THAT(Check(doubling + R"("a40":{"type":"integer"}}})", "1"), IsOk());
  for (const char* circle :
       {R"({"not":{"not":{"$ref":"#"}}})", R"({"anyOf":[{"$ref":"#"},{"$ref":"#"}]})"}) {
    EXPECT_THAT(Check(circle, "1"), StatusIs(absl::StatusCode::kFailedPrecondition)) << circle;
  }
  const std::string each_level_twice =
      R"({"$defs":{"n":{"allOf":[{"items":{"$ref":"#/$defs/n"}},{"items":{"$ref":"#/$defs/n"}}]}},
          "$ref":"#/$defs/n"})";
  EXPECT_THAT(Check(each_level_twice, std::string(60, '[') + std::string(60, ']')), IsOk());
  EXPECT_THAT(Check(each_level_twice, std::string(100'000, '[') + std::string(100'000, ']')),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(
      Check(R"({"items":{"pattern":"^(?:a|b){9000}$"},"contains":{"not":{"pattern":"c{9000}"}}})",
            absl::StrCat("[\"", std::string(20'000, 'a'), "\"]")),
      StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(SchemaCheck, RefusesWhatItCannotCheck) {
  const struct {
    const char* schema;
    const char* param;
  } cases[] = {
      {R"({"properties":{"a":{"pattern":"(?<=a)b"}}})", "schema.properties.a.pattern"},
      {R"j({"anyOf":[{"pattern":"(a)\\1"}]})j", "schema.anyOf[0].pattern"},
      {R"({"patternProperties":{"\\p{L}":true}})", "schema.patternProperties.\\p{L}"},
      {R"({"not":{"pattern":"("}})", "schema.not.pattern"},
  };
  for (const auto& test : cases) {
    const absl::Status status = SchemaCheck::CanCheck(SchemaJson::parse(test.schema), "schema");
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << test.schema;
    EXPECT_EQ(ParamOf(status), test.param);
  }
  EXPECT_THAT(SchemaCheck::CanCheck(
                  SchemaJson::parse(
                      R"j({"enum":[{"pattern":"("}],"properties":{"pattern":{"type":"string"}}})j"),
                  "schema"),
              IsOk());
}

}  // namespace
}  // namespace strata
