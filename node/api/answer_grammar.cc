#include "node/api/answer_grammar.h"

#include <utility>
#include <vector>

#include "node/chat/tool_call_grammar.h"
#include "node/grammar/json_schema_grammar.h"
#include "node/grammar/schema_check.h"

namespace strata {
namespace {

// What must be strict is checked once it is whole, where no grammar keeps it.
absl::Status CheckAtTheEnd(bool answers, ApiRequest* request) {
  const auto can_check = [](const std::string& schema, const std::string& path) {
    const auto json = ParseSchema(schema, path);
    return json.ok() ? SchemaCheck::CanCheck(*json, path) : json.status();
  };
  if (answers && request->answer_strict) {
    request->checks_answer = true;
    absl::Status status = can_check(request->answer_schema, request->answer_path);
    if (!status.ok()) return status;
  }
  const std::vector<ChatTool>& tools = request->tools.list;
  for (size_t i = 0; i < tools.size() && request->tools.offered(); ++i) {
    if (!tools[i].strict || tools[i].parameters.empty()) continue;
    request->checked_tools.push_back(tools[i].name);
    absl::Status status = can_check(tools[i].parameters, tools[i].path);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Constrain(const ChatFormat& format, ApiRequest* request) {
  const ChatTools& tools = request->tools;
  const bool must_call = tools.offered() && tools.choice == ChatTools::Choice::kRequired;
  const bool answers = !must_call && !request->answer_schema.empty();
  // The model may call or not: its arguments have no grammar.
  if (!must_call && !answers) return CheckAtTheEnd(/*answers=*/false, request);
  JsonGrammar grammar;
  std::vector<GbnfExpr> parts;
  if (answers) {
    const auto json = ParseSchema(request->answer_schema, request->answer_path);
    if (!json.ok()) return json.status();
    auto answer = grammar.Schema(*json, request->answer_path);
    if (!answer.ok()) return answer.status();
    if (request->chat && format.is_harmony) {
      answer =
          GbnfExpr::Sequence({GbnfExpr::Text("<|channel|>final<|message|>"), *std::move(answer)});
    }
    parts.push_back(*std::move(answer));
  }
  if (tools.offered()) {
    std::vector<CallableTool> list;
    for (size_t i = 0; i < tools.list.size(); ++i) {
      if (!tools.only.empty() && tools.list[i].name != tools.only) continue;
      list.push_back({.name = tools.list[i].name,
                      .parameters = tools.list[i].parameters,
                      .path = tools.list[i].path});
    }
    // Harmony's end of a call ends the generation.
    const bool several = tools.parallel && tools.only.empty() && !format.is_harmony;
    auto call = ToolCallGrammar(format.calls, list, several, &grammar);
    if (!call.ok()) return call.status();
    parts.push_back(*std::move(call));
  }
  auto text =
      grammar.Finish(GbnfExpr::Choice(std::move(parts)), answers ? request->answer_path : "tools");
  if (!text.ok()) return text.status();
  request->sampler.set_grammar(*std::move(text));
  request->constrains_answer = true;
  return grammar.relaxed().empty() ? absl::OkStatus() : CheckAtTheEnd(answers, request);
}

}  // namespace strata
