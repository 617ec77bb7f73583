#include "node/chat/tool_call_object.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

// Bytes that are kept while the name or the arguments do not come.
constexpr size_t kHeldBytesMax = 16 * 1024;

std::string Unquoted(const std::string& quoted) {
  const auto json = nlohmann::json::parse("\"" + quoted + "\"", nullptr, false);
  return json.is_string() ? json.get<std::string>() : quoted;
}

}  // namespace

ToolCallObjectReader::State ToolCallObjectReader::Read(std::string* pending) {
  size_t i = 0;
  while (i < pending->size() && state_ == State::kReading) {
    if (in_string_ && !escaped_ && depth_ != call_depth_) {
      // The inside of a string of the arguments.
      const size_t end = std::min(pending->find_first_of("\"\\", i), pending->size());
      raw_.append(*pending, i, end - i);
      i = end;
      if (i == pending->size()) break;
    }
    Take((*pending)[i++]);
  }
  pending->erase(0, i);
  return state_;
}

void ToolCallObjectReader::TakeQuoted(char c) {
  if (escaped_) {
    escaped_ = false;
  } else if (c == '\\') {
    escaped_ = true;
  } else if (c == '"') {
    in_string_ = false;
    if (depth_ != call_depth_) return;
    if (is_key_) {
      key_ = Unquoted(quoted_);
    } else if (key_ == "name" || key_ == form_.name_key) {
      name_ = Unquoted(quoted_);
      if (is_tool_(name_)) {
        known_name_ = name_;
      } else {
        state_ = State::kRefused;
      }
    }
    return;
  }
  if (depth_ == call_depth_) quoted_.push_back(c);
}

void ToolCallObjectReader::Take(char c) {
  raw_.push_back(c);
  if (in_string_) {
    TakeQuoted(c);
  } else if (!absl::ascii_isspace(static_cast<unsigned char>(c))) {
    const bool at_value = depth_ == call_depth_ && !is_key_;
    if (at_value && arguments_at_ == 0 &&
        (key_ == "arguments" || key_ == "parameters" || key_ == form_.arguments_key)) {
      arguments_at_ = arguments_taken_ = raw_.size() - 1;
      is_text_ = c == '"';
    }
    if (at_value && c == '{' && key_ == "function" && call_depth_ == 1) {
      call_depth_ = 2;
      is_key_ = true;
    }
    if (c == '"') {
      in_string_ = true;
      quoted_.clear();
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      --depth_;
      if (depth_ < call_depth_ || (depth_ == call_depth_ && arguments_at_ != 0)) EndArguments();
      if (depth_ < call_depth_) call_depth_ = std::max(depth_, 1);
    } else if (c == ':' && depth_ == call_depth_) {
      is_key_ = false;
      constexpr absl::string_view kKeys[] = {"name", "arguments", "parameters",   "type",
                                             "id",   "index",     "tool_call_id", "function"};
      const bool is_known = key_ == form_.name_key || key_ == form_.arguments_key ||
                            std::find(std::begin(kKeys), std::end(kKeys), key_) != std::end(kKeys);
      if (known_name_.empty() && !is_known) state_ = State::kRefused;
    } else if (c == ',' && depth_ == call_depth_) {
      EndArguments();
      is_key_ = true;
      key_.clear();
    }
  }
  if (known_name_.empty() && raw_.size() > kHeldBytesMax) state_ = State::kRefused;
  if (depth_ == 0 && state_ == State::kReading) {
    state_ = known_name_.empty() ? State::kRefused : State::kComplete;
  }
}

// The last byte taken is behind the arguments, or ends them.
void ToolCallObjectReader::EndArguments() {
  if (arguments_at_ == 0 || arguments_end_ != 0) return;
  const bool is_inside = depth_ >= call_depth_ && raw_.back() != ',';
  arguments_end_ = is_inside ? raw_.size() : raw_.size() - 1;
}

std::string ToolCallObjectReader::TakeArguments() {
  if (known_name_.empty()) return "";
  if (arguments_at_ == 0) return state_ == State::kComplete ? "{}" : "";
  if (is_text_ && arguments_end_ == 0) return "";  // a string is read whole
  const size_t end = arguments_end_ == 0 ? raw_.size() : arguments_end_;
  const size_t from = std::exchange(arguments_taken_, std::max(end, arguments_taken_));
  if (from >= end) return "";
  absl::string_view more = absl::string_view(raw_).substr(from, end - from);
  if (arguments_end_ != 0) more = absl::StripTrailingAsciiWhitespace(more);
  if (!is_text_) return std::string(more);
  const auto json = nlohmann::json::parse(more, nullptr, /*allow_exceptions=*/false);
  return json.is_string() ? json.get<std::string>() : std::string(more);
}

}  // namespace strata
