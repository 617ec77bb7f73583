// The messages of a chat and the tools that it offers, as templates take them.
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
  std::string call_id = {};              // of a tool: which call it answers
};

struct ChatTool {
  std::string name;
  std::string json;        // all of it, as the client wrote it
  std::string parameters;  // a JSON Schema's text; empty: any object
};
struct ChatTools {
  std::vector<ChatTool> list;
  enum class Choice { kNone, kAuto, kRequired };
  Choice choice = Choice::kAuto;
  std::string only;      // with kRequired: the one that must be called; empty: any
  bool parallel = true;  // several calls in one answer

  bool offered() const { return !list.empty() && choice != Choice::kNone; }
};

}  // namespace strata
