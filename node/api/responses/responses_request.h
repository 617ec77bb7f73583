// Requests of OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses) as
// the API's own. Pure; no byte of the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "node/api/api_request.h"
#include "node/api/responses/response_store.h"
#include "node/api/responses/responses_tools.h"

namespace strata {

struct ResponsesRequest {
  ApiRequest api;
  bool store = true;
  // All items that the response is generated from, those of earlier turns first.
  nlohmann::json items = nlohmann::json::array();
  std::vector<RenamedTool> renamed;
  nlohmann::ordered_json echo;  // the members of the response that repeat the request
};

// `store`: of earlier responses; `client`: who asks. kInvalidArgument (BadParam), kUnimplemented
// (UnsupportedParam).
absl::StatusOr<ResponsesRequest> ParseResponses(absl::string_view body, const std::string& client,
                                                ResponseStore* store);

}  // namespace strata
