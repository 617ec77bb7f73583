// An operation of the control API, and how its handler answers. The API's routes and its
// description are both made of lists of these.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/api_exchange.h"
#include "node/api/api_scopes.h"
#include "node/client/coordinator_client.h"
#include "node/control/control_calls.h"
#include "node/control/control_request.h"
#include "node/keys/node_security.h"

namespace strata {

inline constexpr char kJsonType[] = "application/json";
inline constexpr char kEventsType[] = "text/event-stream";

// The node that serves the API.
struct ControlNode {
  std::string id;
  std::string name;
  std::string address;   // host:port of its services
  std::string data_dir;  // empty: it stores nothing
  KeyOptions key;        // where the cluster's key is
  // Called when files of models, or their aliases, have changed on this node. Any thread.
  std::function<void()> on_files_changed;
};

// Shared by all operations, which it outlives.
struct ControlContext {
  explicit ControlContext(ControlNode its)
      : node(std::move(its)), calls([this] { return CoordinatorClient::At(node.address); }) {}
  // Runs `call` on a thread, or answers that there are too many.
  void Start(const SharedExchange& exchange,
             std::function<void(const SharedExchange&, CoordinatorClient*)> call);

  const ControlNode node;
  ControlCalls calls;
};

struct ControlOperation {
  const char* method;
  const char* path;  // behind /api/strata/v1
  ApiScope scope;
  const char* summary;
  absl::Span<const ControlField> fields;  // of its body
  const char* answer;                     // the response's content type
  std::function<void(const SharedExchange& exchange)> run;
  bool is_public = false;
};
using ControlOperations = std::vector<ControlOperation>;

// A response that no browser keeps, and that is part of no other site's page.
HttpResponse PrivateResponse(HttpResponse response);
void AnswerText(const SharedExchange& exchange, std::string json);
void AnswerJson(const SharedExchange& exchange, const nlohmann::json& json);
void FailWith(const SharedExchange& exchange, const absl::Status& status);

// One call's events, which end with "done" or "error".
class CallStream {
 public:
  // Begins the response.
  explicit CallStream(const SharedExchange& exchange);
  void Send(absl::string_view type, const nlohmann::json& json);
  void Note(absl::string_view note);
  void End(const absl::Status& status, const nlohmann::json& done);

 private:
  const std::shared_ptr<HttpResponder> responder_;  // shared with the connection
};

}  // namespace strata
