// What a dialect of the API serves: its paths, and what handles each.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "node/api/api_error.h"
#include "node/api/api_exchange.h"

namespace strata {

struct ApiRoute {
  std::string method;       // "GET", which is HEAD's too, "POST", "DELETE"
  std::string path;         // one that ends with a slash stands for all that begin so
  std::string header = {};  // only of requests that have this header; empty: of all
  // Whether a token's limits of requests count it: it may keep the cluster busy.
  bool is_generation = false;
  bool is_public = false;  // needs no token
  ErrorForm error_form = nullptr;
  std::function<void(SharedExchange exchange)> handle;
};

// Of a GET or HEAD without a body, or of a POST; the first whose path it is counts, those with a
// header before the others.
using ApiRoutes = std::vector<ApiRoute>;

// The rest of a path behind a prefix, with its escapes decoded.
std::string RestOfPath(absl::string_view path, absl::string_view prefix);

}  // namespace strata
