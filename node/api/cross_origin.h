// Access control for pages in browsers: only the node's own origin and those that its owner has
// listed (--allow-origin) may use the HTTP API, so that no other open page uses this machine.
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

// kInvalidArgument: an entry is not an origin as browsers write it, or is "*" or "null", or there
// are too many.
absl::Status CheckOrigins(const std::vector<std::string>& origins);

// kPermissionDenied: the page's origin is not allowed, or the request reached loopback under a host
// name that is not this machine's own (DNS rebinding).
absl::Status CheckBrowser(const HttpRequest& request, const std::vector<std::string>& allowed);

// Whether the request is a CORS preflight of an allowed origin.
bool IsPreflight(const HttpRequest& request, const std::vector<std::string>& allowed);
// `methods`: the path's methods, "POST, OPTIONS".
HttpResponse AnswerPreflight(const HttpRequest& request, absl::string_view methods);

// Wraps `to`; adds the CORS headers to each response to `request`. Returns `to` itself where no
// origin is allowed.
std::shared_ptr<HttpResponder> WithOrigin(std::shared_ptr<HttpResponder> to,
                                          const HttpRequest& request,
                                          const std::vector<std::string>& allowed);

}  // namespace strata
