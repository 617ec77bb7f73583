// The tools of a request, and calls and results in its messages. Pure; no byte of the input is
// trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/chat/chat_message.h"
#include "node/grammar/json_schema.h"

namespace strata {

// The list of tools in the body's member `name`, in its order; empty: there is none. `body`: the
// text that `json` was parsed from. kInvalidArgument (BadParam).
absl::StatusOr<SchemaJson> ReadToolList(const nlohmann::json& json, absl::string_view body,
                                        const std::string& name);

// A tool as a client describes it; each of these may be null.
struct ToolFields {
  const SchemaJson* name = nullptr;
  const SchemaJson* description = nullptr;
  const SchemaJson* parameters = nullptr;
  const SchemaJson* strict = nullptr;
  std::string path;             // of the tool's object in the request
  std::string parameters_name;  // of the field that has the parameters' schema
};
// Adds it in OpenAI's form, which templates know. kInvalidArgument (BadParam).
absl::Status AddTool(const ToolFields& fields, ChatTools* tools);

// kInvalidArgument: no tool has this name.
absl::Status CheckOffered(const std::string& name, const ChatTools& tools);

// "parallel_tool_calls".
absl::Status ReadParallelCalls(const nlohmann::json& json, ChatTools* tools);
// "tool_choice" in the forms of OpenAI's Chat and Responses, Mistral's and Anthropic's.
// REQUIRES: the tools have been added.
absl::Status ReadToolChoice(const nlohmann::json& choice, ChatTools* tools);

// Gives calls and results without an id one, in the order in which they come. kInvalidArgument: a
// result without an id has no call.
absl::Status MatchResults(std::vector<ChatMessage>* messages);

}  // namespace strata
