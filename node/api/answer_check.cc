#include "node/api/answer_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "node/grammar/schema_check.h"

namespace strata {
namespace {

// The words quote neither schema nor value: they go to the log.
absl::Status CheckText(const std::string& text, const std::string& schema,
                       const std::string& path) {
  const auto json = ParseSchema(schema, path);
  if (!json.ok()) return json.status();
  absl::Status status = SchemaCheck(*json).CheckText(text);
  if (status.ok()) return status;
  return WithErrorCode(absl::InternalError(absl::StrCat("the output does not meet ", path,
                                                        ", which is strict, in: ", status.message(),
                                                        "; ask again, or set strict to false")),
                       "schema_not_met");
}

}  // namespace

void AnswerCheck::Add(const ToolPiece& piece) {
  content_ += piece.content;
  for (const ToolPiece::Call& call : piece.calls) {
    if (calls_.size() <= call.index) calls_.resize(call.index + size_t{1});
    calls_[call.index].name += call.name;
    calls_[call.index].arguments += call.arguments;
  }
}

absl::Status AnswerCheck::Finish() const {
  const std::vector<ChatTool>& tools = request_->tools.list;
  for (const Call& call : calls_) {
    const std::vector<std::string>& checked = request_->checked_tools;
    if (std::find(checked.begin(), checked.end(), call.name) == checked.end()) continue;
    const auto tool = std::find_if(tools.begin(), tools.end(), [&call](const ChatTool& each) {
      return each.name == call.name;
    });
    absl::Status status = CheckText(call.arguments, tool->parameters, tool->path);
    if (!status.ok()) return status;
  }
  if (!request_->checks_answer || !calls_.empty()) return absl::OkStatus();
  return CheckText(content_, request_->answer_schema, request_->answer_path);
}

}  // namespace strata
