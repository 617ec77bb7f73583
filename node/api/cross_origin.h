// Access control for pages in browsers: only the node's own origin, those that its owner has listed
// (--allow-origin) and, at loopback, pages of this machine's own programs may use the HTTP API, so
// that no other open page uses this machine.
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
inline constexpr size_t kAllowedHostsMax = 64;

struct BrowserPolicy {
  // As browsers write them: "https://chat.example"; a port may be "*", and so may all behind
  // "://" where the scheme is not the web's: "chrome-extension://*".
  std::vector<std::string> origins;
  // Names under which programs reach this machine at loopback: "host.docker.internal".
  std::vector<std::string> hosts;
};

// kInvalidArgument: an origin is not as browsers write it, or is "*" or "null", a host is no name,
// or there are too many.
absl::Status CheckPolicy(const BrowserPolicy& policy);

// kPermissionDenied: the page's origin is not allowed, or the request reached loopback under a host
// name that is not this machine's own (DNS rebinding).
absl::Status CheckBrowser(const HttpRequest& request, const BrowserPolicy& policy);

// For what is open to clients without a token. kPermissionDenied: the request came under a host
// name that is neither an address nor one of this machine's (a site may give its own name this
// machine's address, and its pages are then of the same origin), or for another site's page, as
// browsers send one without an origin for images and the like.
absl::Status CheckOpenAccess(const HttpRequest& request, const BrowserPolicy& policy);

// Whether the request is a CORS preflight of an allowed origin.
bool IsPreflight(const HttpRequest& request, const BrowserPolicy& policy);
// `methods`: the path's methods, "POST, OPTIONS".
HttpResponse AnswerPreflight(const HttpRequest& request, absl::string_view methods);

// Wraps `to`; adds the CORS headers to each response to `request`. Returns `to` itself where the
// request has no origin and none is listed.
std::shared_ptr<HttpResponder> WithOrigin(std::shared_ptr<HttpResponder> to,
                                          const HttpRequest& request, const BrowserPolicy& policy);

}  // namespace strata
