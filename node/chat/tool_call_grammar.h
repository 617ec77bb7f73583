// The grammar of tool calls in a model's form. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "node/chat/tool_call_form.h"
#include "node/grammar/json_schema_grammar.h"

namespace strata {

struct CallableTool {
  std::string name;
  std::string parameters;  // a JSON Schema's text; empty: any object
  std::string path;        // of the schema, for errors
};

// One call of one of the tools, or several calls. kInvalidArgument (BadSchema).
absl::StatusOr<GbnfExpr> ToolCallGrammar(const ToolCallForm& form,
                                         const std::vector<CallableTool>& tools, bool several,
                                         JsonGrammar* grammar);

}  // namespace strata
