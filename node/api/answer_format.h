// What constrains the output of a request: one grammar, schema, regular expression or list of
// strings. Pure; no byte of the input is trusted.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "node/api/api_request.h"
#include "node/grammar/json_schema.h"

namespace strata {

// Sets the request's output constraint. All but set_strict(): kInvalidArgument (BadParam) where it
// is malformed, or a second one. `path`: of the field, for errors.
class AnswerFormat {
 public:
  // `body`: the request's text, in which schemas have the order of their members.
  // REQUIRES: both outlive this.
  AnswerFormat(absl::string_view body, ApiRequest* request) : body_(body), request_(request) {}

  // In GBNF.
  absl::Status Grammar(const nlohmann::json& grammar, const std::string& path);
  // A schema, or its text.
  absl::Status Schema(const SchemaJson& schema, const std::string& path);
  // A regular expression of the whole output.
  absl::Status Regex(const nlohmann::json& regex, const std::string& path);
  // The output is one of these strings.
  absl::Status Choice(const nlohmann::json& choice, const std::string& path);
  // Any JSON object.
  absl::Status AnyJson(const std::string& path);
  // An answer that does not meet the schema is an error.
  void set_strict(bool strict) { request_->answer_strict = strict; }

  // A member of the body, in its order.
  absl::StatusOr<SchemaJson> Ordered(const std::string& name) const;

 private:
  absl::Status Claim(const std::string& path);
  absl::Status SetGrammar(const std::string& grammar, const std::string& path);

  const absl::string_view body_;
  ApiRequest* const request_;
  std::string claimed_by_;
};

}  // namespace strata
