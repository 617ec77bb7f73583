#include "node/api/responses/responses_routes.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/responses/response_store.h"
#include "node/api/responses/responses_error.h"
#include "node/api/responses/responses_request.h"
#include "node/api/responses/responses_writer.h"
#include "node/api/server_sent_events.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr char kPath[] = "/v1/responses/";
constexpr absl::string_view kInputItems = "/input_items";
constexpr size_t kPageItems = 20, kPageItemsMax = 100;

using SharedStore = std::shared_ptr<ResponseStore>;  // shared by the handlers

// Items of the input have ids, too: input_items lists them.
std::string WithIds(Json items, const std::string& key) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (TextMember(items[i], "id") == nullptr) items[i]["id"] = absl::StrCat("in_", key, "_", i);
  }
  return items.dump();
}

std::optional<ResponsesRequest> Parse(ApiBackend* backend, ResponseStore* store,
                                      const SharedExchange& exchange) {
  auto parsed = ParseResponses(exchange->TakeBody(), exchange->Owner(), store);
  if (parsed.ok()) return *std::move(parsed);
  backend->Refuse(exchange, parsed.status());
  return std::nullopt;
}

void Create(ApiBackend* backend, const SharedStore& store, const SharedExchange& exchange) {
  std::optional<ResponsesRequest> request = Parse(backend, store.get(), exchange);
  if (!request) return;
  ResponsesWriter::Options options = {.key = NewAnswerId(""),
                                      .created_s = absl::ToUnixSeconds(WallNow()),
                                      .echo = std::move(request->echo),
                                      .renamed = std::move(request->renamed)};
  if (request->store) {
    // Shared with copies of the callback: it may be large.
    const auto input =
        std::make_shared<const std::string>(WithIds(std::move(request->items), options.key));
    options.on_end = [store, client = exchange->Owner(), input](const std::string& id,
                                                                StoredResponse response) {
      response.input = *input;
      store->Put(client, id, std::move(response));
    };
  }
  const auto shared = std::make_shared<const ResponsesWriter::Options>(std::move(options));
  backend->Generate(exchange, std::move(request->api),
                    [shared](const ApiBackend::ServedModel& model) {
                      ResponsesWriter::Options named = *shared;
                      named.model = model.name;
                      return std::make_unique<ResponsesWriter>(std::move(named));
                    });
}

void CountInput(ApiBackend* backend, const SharedStore& store, const SharedExchange& exchange) {
  std::optional<ResponsesRequest> request = Parse(backend, store.get(), exchange);
  if (!request) return;
  backend->Tokenize(exchange, std::move(request->api),
                    [exchange](const std::vector<int32_t>& tokens) {
                      const nlohmann::ordered_json count = {{"object", "response.input_tokens"},
                                                            {"input_tokens", tokens.size()}};
                      exchange->responder->Answer({.body = count.dump()});
                    });
}

void NotFound(const std::string& id, const SharedExchange& exchange) {
  exchange->Fail(404, absl::StrCat("there is no response with the id \"", id,
                                   "\", or it is no longer stored"));
}

void ListInput(const StoredResponse& stored, const SharedExchange& exchange) {
  const std::string& query = exchange->http.query;
  const std::string limit_text = QueryField(query, "limit"), order = QueryField(query, "order");
  size_t limit = kPageItems;
  if (!limit_text.empty() &&
      (!absl::SimpleAtoi(limit_text, &limit) || limit == 0 || limit > kPageItemsMax)) {
    exchange->Fail(400, absl::StrCat("limit must be from 1 to ", kPageItemsMax));
    return;
  }
  if (!order.empty() && order != "asc" && order != "desc") {
    exchange->Fail(400, "order must be asc or desc");
    return;
  }
  Json items = Json::parse(stored.input);
  if (order != "asc") std::reverse(items.begin(), items.end());
  auto from = items.begin();
  if (const std::string after = QueryField(query, "after"); !after.empty()) {
    from = std::find_if(items.begin(), items.end(),
                        [&after](const Json& item) { return item["id"] == after; });
    if (from != items.end()) ++from;
  }
  Json page = Json::array();
  while (from != items.end() && page.size() < limit) page.push_back(*from++);
  nlohmann::ordered_json list = {{"object", "list"},
                                 {"data", page},
                                 {"first_id", page.empty() ? Json() : page.front()["id"]},
                                 {"last_id", page.empty() ? Json() : page.back()["id"]},
                                 {"has_more", from != items.end()}};
  exchange->responder->Answer({.body = list.dump()});
}

void Show(const SharedStore& store, const SharedExchange& exchange) {
  const std::string rest = RestOfPath(exchange->http.path, kPath);
  const std::string id(absl::StripSuffix(rest, kInputItems));
  const auto stored = store->Find(exchange->Owner(), id);
  if (stored == nullptr) {
    NotFound(id, exchange);
  } else if (absl::EndsWith(rest, kInputItems)) {
    ListInput(*stored, exchange);
  } else if (QueryField(exchange->http.query, "stream") == "true") {
    exchange->Fail(400, "stream is not supported yet: a stored response is sent as a whole");
  } else {
    exchange->responder->Answer({.body = stored->response});
  }
}

void Delete(const SharedStore& store, const SharedExchange& exchange) {
  const std::string id = RestOfPath(exchange->http.path, kPath);
  if (!store->Erase(exchange->Owner(), id)) {
    NotFound(id, exchange);
    return;
  }
  const nlohmann::ordered_json deleted = {{"id", id}, {"object", "response"}, {"deleted", true}};
  exchange->responder->Answer({.body = deleted.dump()});
}

// Of a stream that has no response yet.
std::string EarlyFailure(const std::string& error) {
  using Json = nlohmann::ordered_json;
  Json event = {{"type", "error"}, {"sequence_number", 0}};
  const Json form = Json::parse(error, nullptr, /*allow_exceptions=*/false);
  if (form.is_object() && form.contains("error")) {  // as ResponsesWriter::Failure() has it
    for (const char* member : {"code", "message", "param"}) {
      event[member] = form["error"].value(member, Json());
    }
    event.update(form);
  }
  return ServerSentEvent("error", JsonText(event));
}

}  // namespace

ApiRoutes ResponsesRoutes(ApiBackend* backend) {
  static constexpr StreamForm kStreams = {
      .head = EventStreamHead, .waiting = EventStreamWaiting, .failure = EarlyFailure};
  const auto store = std::make_shared<ResponseStore>();
  DialectRoutes routes(ResponsesError, &kStreams);
  for (const char* path : {"/v1/responses", "/responses"}) {
    routes.Generation(path, [backend, store](const SharedExchange& exchange) {
      Create(backend, store, exchange);
    });
  }
  routes.Generation("/v1/responses/input_tokens", [backend, store](const SharedExchange& exchange) {
    CountInput(backend, store, exchange);
  });
  routes.Get(kPath, [store](const SharedExchange& exchange) { Show(store, exchange); });
  routes.Delete(kPath, [store](const SharedExchange& exchange) { Delete(store, exchange); });
  return routes.Take();
}

}  // namespace strata
