// The messages of a chat and the tools that it offers, the input of chat templates.
#pragma once

#include <string>
#include <vector>

namespace strata {

struct ChatToolCall {
  std::string id, name;
  std::string arguments;  // JSON's text
};

struct ChatMessage {
  std::string role;
  std::string content;
  std::string name = {};                 // may be empty
  std::vector<ChatToolCall> calls = {};  // of an assistant
  std::string call_id = {};              // of a tool: the id of the call that it answers
  std::string reasoning = {};            // of an assistant: what it thought before; may be empty
};

struct ChatTool {
  std::string name;
  std::string json;        // the whole object, as the client wrote it
  std::string parameters;  // a JSON Schema's text; empty: any object
  std::string path = {};   // of `parameters` in the request, for errors
  bool strict = false;     // arguments that do not meet it are an error
};
struct ChatTools {
  std::vector<ChatTool> list;
  enum class Choice { kNone, kAuto, kRequired };
  Choice choice = Choice::kAuto;
  std::string only;      // with kRequired: the one that must be called; empty: any
  bool parallel = true;  // several calls in one response

  bool offered() const { return !list.empty() && choice != Choice::kNone; }
};

}  // namespace strata
