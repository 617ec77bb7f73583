#include "node/api/answer_format.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/request/request_status.h"
#include "node/api/json_body.h"
#include "node/grammar/regex_grammar.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr char kAnyObject[] = R"({"type":"object"})";

}  // namespace

absl::Status AnswerFormat::Grammar(const Json& grammar, const std::string& path) {
  if (absl::Status status = Claim(path); !status.ok()) return status;
  if (!grammar.is_string()) return BadParam(path, "must be a grammar in GBNF, a string");
  return SetGrammar(grammar.get_ref<const std::string&>(), path);
}

absl::Status AnswerFormat::Schema(const SchemaJson& schema, const std::string& path) {
  if (absl::Status status = Claim(path); !status.ok()) return status;
  SchemaJson read = schema;
  if (const auto* text = schema.get_ptr<const std::string*>()) {
    auto parsed = ParseSchema(*text, path);
    if (!parsed.ok()) return parsed.status();
    read = *std::move(parsed);
  }
  request_->answer_path = path;
  request_->answer_schema = read.dump();
  return absl::OkStatus();
}

absl::Status AnswerFormat::Regex(const Json& regex, const std::string& path) {
  if (absl::Status status = Claim(path); !status.ok()) return status;
  const auto* pattern = regex.get_ptr<const std::string*>();
  if (pattern == nullptr) return BadParam(path, "must be a regular expression, a string");
  const auto grammar = RegexGrammar(*pattern);
  if (!grammar.ok()) return BadParam(path, grammar.status().message());
  return SetGrammar(PrintGbnf(*grammar), path);
}

absl::Status AnswerFormat::Choice(const Json& choice, const std::string& path) {
  if (absl::Status status = Claim(path); !status.ok()) return status;
  GbnfGrammar grammar;
  std::vector<GbnfExpr> strings;
  for (const Json& each : choice.is_array() ? choice : Json::array()) {
    const auto* text = each.get_ptr<const std::string*>();
    if (text == nullptr || text->empty()) strings.clear();
    if (text == nullptr || text->empty()) break;
    strings.push_back(GbnfExpr::Text(*text));
  }
  if (strings.empty() || strings.size() > kApiAnswerChoicesMax) {
    return BadParam(path,
                    absl::StrCat("must be an array of 1 to ", kApiAnswerChoicesMax, " strings"));
  }
  grammar.rules.push_back({.name = "root", .body = GbnfExpr::Choice(std::move(strings))});
  return SetGrammar(PrintGbnf(grammar), path);
}

absl::Status AnswerFormat::AnyJson(const std::string& path) {
  return Schema(SchemaJson::parse(kAnyObject), path);
}

absl::StatusOr<SchemaJson> AnswerFormat::Ordered(const std::string& name) const {
  return ParseSchema(MemberText(body_, name), name);
}

absl::Status AnswerFormat::Claim(const std::string& path) {
  if (claimed_by_.empty()) {
    claimed_by_ = path;
    return absl::OkStatus();
  }
  return BadParam(path, absl::StrCat("and ", claimed_by_, " cannot both constrain the output"));
}

absl::Status AnswerFormat::SetGrammar(const std::string& grammar, const std::string& path) {
  const auto parsed = ParseGbnf(grammar);
  const absl::Status status = parsed.ok() ? CheckGbnf(*parsed) : parsed.status();
  if (!status.ok()) {
    absl::string_view words = status.message();  // "grammar, line 1: …", "grammar has …"
    if (absl::ConsumePrefix(&words, "grammar")) {
      while (!words.empty() && absl::StrContains(":, ", words[0])) words.remove_prefix(1);
    }
    return BadParam(path, words);
  }
  request_->sampler.set_grammar(grammar);
  return absl::OkStatus();
}

}  // namespace strata
