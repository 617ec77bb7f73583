#include "node/api/openai/openai_fields.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/openai/openai_error.h"
#include "node/api/openai/openai_request.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using Json = nlohmann::json;

absl::Status Parse(const std::string& field, const Json& value, ApiPath path) {
  if (path == ApiPath::kChat) {
    return ParseChat(
               Json({{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {field, value}}).dump())
        .status();
  }
  return ParseCompletion(Json({{"prompt", "Hi"}, {field, value}}).dump()).status();
}

TEST(ApiFields, UnsupportedFieldsAreRefusedByName) {
  for (const ApiField& field : ApiFields()) {
    if (field.fate != ApiFate::kRefused) continue;
    for (const ApiPath path : {ApiPath::kText, ApiPath::kChat}) {
      if (!(path == ApiPath::kChat ? field.chat : field.text)) continue;
      const std::string name(field.name);
      for (const Json& value :
           {Json::object({{"x", 1}}), Json(12345), Json("x"), Json::array({"x"})}) {
        const absl::Status status = Parse(name, value, path);
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(name)));
        EXPECT_EQ(HttpStatusOf(status), 400);
        const Json error = Json::parse(OpenAiError(ErrorOf(status)))["error"];
        EXPECT_EQ(error["param"], name);
        EXPECT_EQ(error["code"], "unsupported_parameter");
      }
    }
  }
}

TEST(ApiFields, NeutralValuesPass) {
  for (const ApiField& field : ApiFields()) {
    if (field.fate != ApiFate::kRefused) continue;
    Json values = Json::parse(field.neutral);
    for (Json nothing : {Json(), Json(""), Json::array(), Json::object()}) {
      values.push_back(std::move(nothing));
    }
    for (const Json& value : values) {
      for (const ApiPath path : {ApiPath::kText, ApiPath::kChat}) {
        if (!(path == ApiPath::kChat ? field.chat : field.text)) continue;
        EXPECT_THAT(CheckApiFields(Json::object({{std::string(field.name), value}}), path), IsOk())
            << field.name << value;
      }
    }
  }
}

// As clients send them without being asked.
TEST(ApiFields, FieldsWithoutEffectPass) {
  for (const ApiField& field : ApiFields()) {
    if (field.fate != ApiFate::kNoEffect) continue;
    EXPECT_THAT(Parse(std::string(field.name), "high", ApiPath::kChat), IsOk()) << field.name;
  }
  EXPECT_THAT(Parse("nobody_knows_this", {1, 2}, ApiPath::kChat), IsOk());
}

TEST(ApiFields, EachIsListedOnceForAPath) {
  std::set<std::pair<std::string, bool>> seen;
  for (const ApiField& field : ApiFields()) {
    for (const bool chat : {false, true}) {
      if (!(chat ? field.chat : field.text)) continue;
      EXPECT_TRUE(seen.emplace(field.name, chat).second) << field.name;
    }
  }
}

TEST(ApiFields, ThePageShowsEachWithItsFate) {
  std::stringstream page;
  page << std::ifstream(API_PAGE).rdbuf();
  const std::string text = page.str();
  for (const ApiField& field : ApiFields()) {
    const char* title = field.fate == ApiFate::kSupported ? "## Fields that are kept"
                        : field.fate == ApiFate::kRefused ? "## Fields that are refused"
                                                          : "## Fields without effect";
    const size_t from = text.find(title);
    ASSERT_NE(from, std::string::npos) << title;
    const std::string part = text.substr(from, text.find("\n## ", from + 1) - from);
    EXPECT_THAT(part, HasSubstr(absl::StrCat("`", field.name, "`")));
  }
}

}  // namespace
}  // namespace strata
