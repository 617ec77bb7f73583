// Checks a choice of a strict request once it is whole, where no grammar keeps its schemas. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "node/api/api_request.h"
#include "node/chat/tool_call_reader.h"

namespace strata {

// REQUIRES: the request outlives it.
class AnswerCheck {
 public:
  explicit AnswerCheck(const ApiRequest* request) : request_(request) {}
  static bool IsNeeded(const ApiRequest& request) {
    return request.checks_answer || !request.checked_tools.empty();
  }

  // The next piece of the output.
  void Add(const ToolPiece& piece);
  // At the end. kInternal, "schema_not_met": the answer or a call's arguments do not meet the
  // schema.
  absl::Status Finish() const;

 private:
  struct Call {
    std::string name, arguments;
  };

  const ApiRequest* const request_;
  std::string content_;
  std::vector<Call> calls_;
};

}  // namespace strata
