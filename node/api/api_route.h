// What a dialect of the API serves: its paths, and what handles each.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/api/api_error.h"
#include "node/api/api_exchange.h"
#include "node/api/api_scopes.h"
#include "node/api/patient_responder.h"

namespace strata {

struct ApiRoute {
  std::string method;       // "GET", which is HEAD's too, "POST", "DELETE"
  std::string path;         // one that ends with a slash stands for all that begin so
  std::string header = {};  // only of requests that have this header; empty: of all
  // Whether a token's limits of requests count it: it may keep the cluster busy.
  bool is_generation = false;
  bool is_public = false;            // needs no token
  ApiScope scope = ApiScope::kChat;  // that its clients need
  ErrorForm error_form = nullptr;
  const StreamForm* stream_form = nullptr;
  std::function<void(SharedExchange exchange)> handle;
};

// Of a GET or HEAD without a body, or of a POST; the first whose path it is counts, those with a
// header before the others.
using ApiRoutes = std::vector<ApiRoute>;

// Collects a dialect's routes: all have the form of its errors and streams.
class DialectRoutes {
 public:
  using Handler = std::function<void(const SharedExchange& exchange)>;

  // `stream_form`: constant.
  explicit DialectRoutes(ErrorForm error_form, const StreamForm* stream_form = &kEventStreamForm)
      : error_form_(error_form), stream_form_(stream_form) {}

  void Get(std::string path, Handler handle) { Add("GET", std::move(path), std::move(handle)); }
  void Post(std::string path, Handler handle) { Add("POST", std::move(path), std::move(handle)); }
  void Delete(std::string path, Handler handle) {
    Add("DELETE", std::move(path), std::move(handle));
  }
  // A POST that keeps the cluster busy.
  void Generation(std::string path, Handler handle);
  // Only of requests that have this header.
  void GetWithHeader(std::string path, std::string header, Handler handle);

  ApiRoutes Take() { return std::move(routes_); }

 private:
  void Add(const char* method, std::string path, Handler handle);

  const ErrorForm error_form_;
  const StreamForm* const stream_form_;
  ApiRoutes routes_;
};

// The rest of a path behind a prefix, with its escapes decoded.
std::string RestOfPath(absl::string_view path, absl::string_view prefix);

// The value of a field of a query, with its escapes decoded; empty: none.
std::string QueryField(absl::string_view query, absl::string_view name);

// An id that no other answer has: the prefix and 24 hexadecimal digits.
std::string NewAnswerId(absl::string_view prefix);

}  // namespace strata
