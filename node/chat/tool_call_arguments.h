// Reads the arguments of one tool call while they come, in each shape of ToolCallForm, and writes
// them as JSON. Pure; not thread-safe. No byte of the output is trusted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/chat/tool_call_form.h"
#include "node/chat/tool_parameters.h"

namespace strata {

class ToolArgumentsReader {
 public:
  virtual ~ToolArgumentsReader() = default;
  // Takes what it can from the beginning of `*pending`, the output that has come and not been read
  // yet, and appends JSON to `*out`. True once the arguments are complete: the rest of `*pending`
  // is not theirs.
  virtual bool Read(std::string* pending, std::string* out) = 0;
};

// The reader of the form's shape, from behind the name and `name_close` on. `parameters` are the
// called tool's, empty where they are not known. Both outlive the reader.
std::unique_ptr<ToolArgumentsReader> NewToolArgumentsReader(
    const ToolCallForm& form, const std::vector<ToolParameter>& parameters);

}  // namespace strata
