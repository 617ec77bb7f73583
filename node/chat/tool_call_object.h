// Reads one tool call while it comes whose name and arguments are members of an object of JSON, in
// any order and with others. Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "node/chat/tool_call_form.h"

namespace strata {

class ToolCallObjectReader {
 public:
  // Whether there is a tool of this name.
  using IsTool = std::function<bool(const std::string& name)>;
  // REQUIRES: `form` outlives this, and so does what `is_tool` has. `before`: the bytes before the
  // object.
  ToolCallObjectReader(const ToolCallForm& form, std::string before, IsTool is_tool)
      : form_(form), is_tool_(std::move(is_tool)), raw_(std::move(before)) {}

  enum class State {
    kReading,
    kRefused,  // it is JSON, but no call of a tool
    kComplete,
  };
  // Takes what it can from the beginning of `*pending`, which begins with "{" at first.
  State Read(std::string* pending);
  State state() const { return state_; }

  // `before` and the bytes so far, as they came.
  const std::string& raw() const { return raw_; }
  // Not empty once it is certain that this is a call.
  const std::string& name() const { return known_name_; }
  // The arguments that have come since the last time. They come behind the name.
  std::string TakeArguments();

 private:
  void Take(char c);
  void TakeQuoted(char c);
  void EndArguments();

  const ToolCallForm& form_;
  const IsTool is_tool_;
  State state_ = State::kReading;
  std::string raw_;
  std::string key_;     // of the current member
  std::string quoted_;  // the current string, with its escapes
  std::string name_, known_name_;
  int depth_ = 0, call_depth_ = 1;  // of the members; 2: within "function"
  bool in_string_ = false, escaped_ = false, is_key_ = true;
  size_t arguments_at_ = 0;     // in raw_; 0: not yet
  size_t arguments_taken_ = 0;  // end of the taken bytes in raw_
  size_t arguments_end_ = 0;    // 0: not yet
  bool is_text_ = false;        // the arguments are JSON in a string
};

}  // namespace strata
