// Which pages in a browser may use the HTTP API: none but the node's own origin and those that its
// owner has listed (--allow-origin), so that no page that happens to be open uses this machine.
//
// CORS: https://fetch.spec.whatwg.org/#http-cors-protocol
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "node/http/http_server.h"

namespace strata {

inline constexpr size_t kAllowedOriginsMax = 64;

// kInvalidArgument: one is no origin as browsers write it, or "*" or "null", or there are too many.
absl::Status CheckOrigins(const std::vector<std::string>& origins);

// kPermissionDenied: a page asks that may not, or a name that somebody else points to this machine.
absl::Status CheckBrowser(const HttpRequest& request, const std::vector<std::string>& allowed);

// Whether a browser asks, for a page that may, what it may send.
bool IsPreflight(const HttpRequest& request, const std::vector<std::string>& allowed);
// `methods`: what the path takes, "POST, OPTIONS".
HttpResponse AnswerPreflight(const HttpRequest& request, absl::string_view methods);

// `to`, with what the browser wants to hear in each answer to `request`. As it is where none is
// allowed.
std::shared_ptr<HttpResponder> WithOrigin(std::shared_ptr<HttpResponder> to,
                                          const HttpRequest& request,
                                          const std::vector<std::string>& allowed);

}  // namespace strata
