// The items of a conversation in OpenAI's Responses API, as messages of a chat. Pure; no byte of
// the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "node/chat/chat_message.h"

namespace strata {

// An item as it is kept: with its type, and a message's content as parts. Anything else stays as it
// is.
nlohmann::json NormalItem(nlohmann::json item);

// Makes messages of items, in order. Items of the assistant that follow each other, its thoughts,
// words and calls, are one message.
class ItemReader {
 public:
  explicit ItemReader(std::vector<ChatMessage>* messages) : messages_(messages) {}

  // `path`: of the item in the request, for errors. kInvalidArgument (BadParam), kUnimplemented
  // (UnsupportedParam).
  absl::Status Add(const nlohmann::json& item, const std::string& path);

 private:
  absl::Status AddMessage(const nlohmann::json& item, const std::string& path);
  absl::Status AddCall(const nlohmann::json& item, bool is_custom, const std::string& path);
  absl::Status AddResult(const nlohmann::json& item, const std::string& path);
  absl::Status AddThought(const nlohmann::json& item, const std::string& path);
  ChatMessage& Assistant();

  std::vector<ChatMessage>* const messages_;
  std::string thought_;  // that has no message yet
};

}  // namespace strata
