// The tools of a request to OpenAI's Responses API. Pure; no byte of the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "node/api/api_request.h"

namespace strata {

// A tool that the model knows by another name than the client, or in another form.
struct RenamedTool {
  std::string shown;       // the model's
  std::string name_space;  // empty: none
  std::string name;
  bool is_custom = false;  // its argument is a text, which the model writes as {"input":…}
};

// The name of a namespace's tool, as the model gets it.
std::string ShownToolName(absl::string_view name_space, absl::string_view name);
// A text for a custom tool as the model's arguments, JSON's text, and back.
std::string CustomArguments(const std::string& input);
std::string CustomInput(const std::string& arguments);

// "tools", "tool_choice" and "parallel_tool_calls". Tools that OpenAI itself would run are refused,
// but for those which clients offer with each request without needing them: these are passed over.
// `echo`: gets the fields as the response repeats them.
absl::Status ReadResponsesTools(const nlohmann::json& json, absl::string_view body,
                                ApiRequest* request, std::vector<RenamedTool>* renamed,
                                nlohmann::ordered_json* echo);

}  // namespace strata
