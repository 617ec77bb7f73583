// Renders chats as a node does, in a template process, for compare_templates.py: stdin has a JSON
// array of chats, stdout gets one of results.
#include <iostream>
#include <iterator>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "node/chat/template_pool.h"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;

ChatMessage MessageOf(const Json& json) {
  ChatMessage message = {.role = json["role"],
                         .content = json.value("content", ""),
                         .name = json.value("name", ""),
                         .call_id = json.value("tool_call_id", ""),
                         .reasoning = json.value("reasoning_content", "")};
  for (const Json& call : json.value("tool_calls", Json::array())) {
    message.calls.push_back({.id = call["id"],
                             .name = call["function"]["name"],
                             .arguments = call["function"]["arguments"].dump()});
  }
  return message;
}

TemplateRequest RequestOf(const Json& chat) {
  TemplateRequest request = {
      .source = {.text = chat["template"], .bos = chat["bos"], .eos = chat["eos"]},
      .now = absl::FromUnixSeconds(chat["now"]),
      .options = {.ends_with_opening = chat.value("add_generation_prompt", true),
                  .continues_last = chat.value("continue_final_message", false),
                  .variables = chat.value("variables", Json::object()).dump()}};
  for (const Json& message : chat["messages"]) request.messages.push_back(MessageOf(message));
  for (const Json& tool : chat["tools"]) {
    request.tools.list.push_back(
        {.name = tool["function"]["name"], .json = tool.dump(), .parameters = ""});
  }
  return request;
}

Json ResultOf(const absl::StatusOr<ChatTemplate::Prompt>& prompt) {
  if (!prompt.ok()) return {{"error", prompt.status().message()}};
  return {{"text", prompt->text}};
}

void RenderAll() {
  TemplatePool pool({.program = STRATA_PROGRAM});
  Json results = Json::array();
  for (const Json& chat : Json::parse(std::cin)) {
    absl::Notification done;
    pool.Render({.model = "m", .client = "c"}, RequestOf(chat), [&](auto prompt) {
      results.push_back(ResultOf(prompt));
      done.Notify();
    });
    done.WaitForNotification();
  }
  std::cout << results.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace
}  // namespace strata

int main() {
  strata::RenderAll();
  return 0;
}
