#include "node/api/json_body.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/api/api_request.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr size_t kJsonErrorBytesMax = 300;

// Empty: there are none.
std::string WithoutLoneSurrogates(absl::string_view body) {
  std::string text;
  size_t high_at = 0;  // behind the escape of a high surrogate
  for (size_t i = body.find('\\'); i < body.size(); i = body.find('\\', i)) {
    uint32_t code = 0;
    const bool is_code = body.substr(i, 2) == "\\u" && i + 6 <= body.size() &&
                         absl::SimpleHexAtoi(body.substr(i + 2, 4), &code);
    const size_t end = is_code ? i + 6 : i + 2;
    const bool is_high = is_code && code >= 0xD800 && code < 0xDC00;
    const bool is_low = is_code && code >= 0xDC00 && code < 0xE000;
    uint32_t low = 0;
    const bool low_follows = is_high && body.substr(end, 2) == "\\u" && end + 6 <= body.size() &&
                             absl::SimpleHexAtoi(body.substr(end + 2, 4), &low) && low >= 0xDC00 &&
                             low < 0xE000;
    if ((is_high && !low_follows) || (is_low && (high_at == 0 || high_at != i))) {
      if (text.empty()) text = std::string(body);
      text.replace(i, 6, "\\ufffd");
    }
    high_at = low_follows ? end : 0;
    i = end;
  }
  return text;
}

}  // namespace

absl::StatusOr<JsonBody> JsonBody::Parse(absl::string_view text) {
  JsonBody body;
  body.given_ = text;
  body.cleaned_ = WithoutLoneSurrogates(text);
  auto json = ParseJsonObject(body.text());
  if (!json.ok()) return json.status();
  body.json_ = *std::move(json);
  return body;
}

absl::StatusOr<Json> ParseJsonObject(absl::string_view body) {
  // Checked before the tree is built: a deep tree overflows the stack when it is copied or
  // destroyed, and one of many small values takes far more memory than its text.
  int depth = 0;
  size_t values = 1;
  bool too_deep = false;
  bool quoted = false;
  for (size_t i = 0; i < body.size() && !too_deep && values <= kApiJsonValuesMax; ++i) {
    const char c = body[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == ',' || c == '{' || c == '[') ++values;
    if (c == '{' || c == '[') too_deep = ++depth > kApiJsonDepthMax;
    if (c == '}' || c == ']') --depth;
  }
  if (too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body nests deeper than ", kApiJsonDepthMax, " levels"));
  }
  if (values > kApiJsonValuesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body has more than ", kApiJsonValuesMax, " values"));
  }
  if (absl::StripAsciiWhitespace(body).empty()) {
    return absl::InvalidArgumentError("the body is empty; it must be a JSON object");
  }
  try {
    Json json = Json::parse(body.begin(), body.end());
    if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
    return json;
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: …"
    absl::string_view words = error.what();
    words.remove_prefix(std::min(words.size(), words.find("] ") + 2));
    return absl::InvalidArgumentError(absl::StrCat("the body is not JSON in UTF-8: ",
                                                   ValidUtf8(words.substr(0, kJsonErrorBytesMax))));
  }
}

std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::string_view MemberText(absl::string_view body, absl::string_view name) {
  absl::string_view found, key;
  int depth = 0;
  size_t value_at = 0;  // 0: in a key
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') {
      const size_t from = ++i;
      while (i < body.size() && body[i] != '"') i += body[i] == '\\' ? 2 : 1;
      if (depth == 1 && value_at == 0) key = body.substr(from, i - from);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 1 && c == ':' && value_at == 0) {
      value_at = i + 1;
    } else if (c == '}' || c == ']' || c == ',') {
      if (depth == 1 && value_at != 0) {
        if (key == name) found = body.substr(value_at, i - value_at);
        value_at = 0;
      }
      if (c != ',') --depth;
    }
  }
  return found;
}

nlohmann::ordered_json FloatsJson(absl::Span<const float> values) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const float value : values) {
    char digits[32];
    const char* const end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
    double shortest = value;
    if (!absl::SimpleAtod({digits, static_cast<size_t>(end - digits)}, &shortest)) shortest = value;
    json.push_back(shortest);
  }
  return json;
}

std::vector<absl::string_view> ElementTexts(absl::string_view array) {
  std::vector<absl::string_view> elements;
  array = absl::StripAsciiWhitespace(array);
  if (!absl::StartsWith(array, "[")) return elements;
  int depth = 0;
  size_t from = 1;
  for (size_t i = 0; i < array.size(); ++i) {
    const char c = array[i];
    if (c == '"') {
      ++i;
      while (i < array.size() && array[i] != '"') i += array[i] == '\\' ? 2 : 1;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if ((c == ',' || c == ']') && depth == 1) {
      const absl::string_view element = array.substr(from, i - from);
      if (!absl::StripAsciiWhitespace(element).empty()) elements.push_back(element);
      from = i + 1;
    }
    if (c == '}' || c == ']') --depth;
  }
  return elements;
}

}  // namespace strata
