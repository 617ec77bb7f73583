// Forms of tool calls that model families are trained on. A template that shows its calls decides
// (LearnToolCallForm); these are for templates that do not, and for models that fall into another
// family's form: a call needs the name of an offered tool. Pure.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "node/chat/tool_call_form.h"

namespace strata {

const std::vector<ToolCallForm>& KnownToolCallForms();

// The known form whose mark the template's text has; else that of Hermes, in which templates
// without tools are told them in words (chat_template.h).
const ToolCallForm& ToolCallFormNamedIn(absl::string_view chat_template);

}  // namespace strata
