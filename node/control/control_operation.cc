#include "node/control/control_operation.h"

#include <utility>

#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/openai/openai_error.h"
#include "node/api/server_sent_events.h"

namespace strata {

void ControlContext::Start(const SharedExchange& exchange,
                           std::function<void(const SharedExchange&, CoordinatorClient*)> call) {
  const absl::Status status = calls.Start(
      [exchange, call = std::move(call)](CoordinatorClient* client) { call(exchange, client); });
  if (!status.ok()) FailWith(exchange, status);
}

HttpResponse PrivateResponse(HttpResponse response) {
  for (const char* name : {"Cache-Control", "X-Accel-Buffering"}) {
    std::erase_if(response.headers, [name](const auto& header) { return header.first == name; });
  }
  response.headers.insert(response.headers.end(),
                          {{"Cache-Control", "no-store"},
                           {"X-Accel-Buffering", "no"},
                           {"X-Content-Type-Options", "nosniff"},
                           {"Cross-Origin-Resource-Policy", "same-origin"}});
  return response;
}

void AnswerText(const SharedExchange& exchange, std::string json) {
  exchange->responder->Answer(PrivateResponse({.body = std::move(json)}));
}

void AnswerJson(const SharedExchange& exchange, const nlohmann::json& json) {
  AnswerText(exchange, JsonText(json));
}

void FailWith(const SharedExchange& exchange, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
      return exchange->Fail(409, status.message());
    default:
      return exchange->Fail(status);
  }
}

CallStream::CallStream(const SharedExchange& exchange) : responder_(exchange->responder) {
  responder_->Begin(PrivateResponse(EventStream()));
}

void CallStream::Send(absl::string_view type, const nlohmann::json& json) {
  responder_->Write(ServerSentEvent(type, JsonText(json)));
}

void CallStream::Note(absl::string_view note) { Send("note", {{"note", note}}); }

void CallStream::End(const absl::Status& status, const nlohmann::json& done) {
  if (status.ok()) {
    Send("done", done);
  } else {
    responder_->Write(ServerSentEvent("error", OpenAiError(ErrorOf(status))));
  }
  responder_->End();
}

}  // namespace strata
