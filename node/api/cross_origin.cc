#include "node/api/cross_origin.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "node/http/forwarding_responder.h"
#include "transport/base/peer_addresses.h"

namespace strata {
namespace {

constexpr size_t kOriginBytesMax = 256;

std::string HostOf(absl::string_view authority) {
  const auto parsed = ParseHostPort(authority);
  std::string host = parsed.ok() ? parsed->host : std::string(authority);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))
    host = host.substr(1, host.size() - 2);
  return host;
}

bool IsOfWeb(absl::string_view scheme) { return scheme == "http" || scheme == "https"; }

struct Origin {
  absl::string_view scheme, host;  // the host with its port
};
Origin Split(absl::string_view origin) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(origin, absl::MaxSplits("://", 1));
  return {parts.first, parts.second};
}

bool Matches(absl::string_view origin, absl::string_view pattern) {
  if (!absl::ConsumeSuffix(&pattern, "*")) return origin == pattern;
  if (absl::EndsWith(pattern, "://")) return absl::StartsWith(origin, pattern);
  absl::string_view rest = origin;  // any port, or none
  const absl::string_view host = absl::StripSuffix(pattern, ":");
  if (!absl::ConsumePrefix(&rest, host)) return false;
  return rest.empty() || (absl::ConsumePrefix(&rest, ":") && !rest.empty() &&
                          absl::c_all_of(rest, absl::ascii_isdigit));
}

// Pages of programs on this machine: those that it serves itself, and those of desktop programs,
// whose origins no site can have.
bool IsOfThisMachine(absl::string_view origin) {
  const auto [scheme, host] = Split(origin);
  if (scheme == "app" || scheme == "tauri" || scheme == "vscode-webview") return true;
  // On Windows the desktop shell of tauri:// has this host, which resolves to loopback.
  return IsOfWeb(scheme) && (IsLoopbackHost(HostOf(host)) || host == "tauri.localhost");
}

bool IsAllowed(const HttpRequest& request, const BrowserPolicy& policy) {
  const absl::string_view origin = request.Header("origin");
  if (origin.empty()) return false;
  return (request.to_loopback && IsOfThisMachine(origin)) ||
         absl::c_any_of(policy.origins,
                        [origin](const std::string& pattern) { return Matches(origin, pattern); });
}

bool IsOwnName(const std::string& host, const BrowserPolicy& policy) {
  return IsLoopbackHost(host) || absl::c_any_of(policy.hosts, [&host](const std::string& name) {
           return absl::EqualsIgnoreCase(name, host);
         });
}

absl::Status CheckOrigin(const std::string& origin) {
  if (origin == "*" || origin == "null") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--allow-origin ", origin,
        origin == "*" ? ": would let every page that somebody here opens use this node"
                      : ": is what pages from anywhere may say, those in sandboxes and in files",
        "; list the origins of those that may"));
  }
  auto [scheme, host] = Split(origin);
  if (!absl::ConsumeSuffix(&host, ":*") && !IsOfWeb(scheme) && host == "*") host = "any";
  const auto is_plain = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || absl::StrContains("-._:[]+", c);
  };
  if (origin.size() <= kOriginBytesMax && !scheme.empty() && !host.empty() &&
      absl::c_all_of(scheme, is_plain) && absl::c_all_of(host, is_plain)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--allow-origin ", origin,
      ": must be an origin as browsers write it, in lower case and without a path: "
      "https://chat.example, http://192.168.1.5:* for any port, chrome-extension://*"));
}

class OriginResponder final : public ForwardingResponder {
 public:
  OriginResponder(std::shared_ptr<HttpResponder> to, std::string origin)
      : ForwardingResponder(std::move(to)), origin_(std::move(origin)) {}

  void Answer(HttpResponse response) override {
    ForwardingResponder::Answer(With(std::move(response)));
  }
  void Begin(HttpResponse head) override { ForwardingResponder::Begin(With(std::move(head))); }

 private:
  HttpResponse With(HttpResponse response) const {
    response.headers.emplace_back("Vary", "Origin");
    if (!origin_.empty()) {
      response.headers.emplace_back("Access-Control-Allow-Origin", origin_);
      response.headers.emplace_back("Access-Control-Expose-Headers",
                                    "X-Request-Id, Request-Id, Retry-After, Retry-After-Ms");
    }
    return response;
  }

  const std::string origin_;  // empty: the origin is not listed
};

}  // namespace

absl::Status CheckPolicy(const BrowserPolicy& policy) {
  if (policy.origins.size() > kAllowedOriginsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--allow-origin: may be given ", kAllowedOriginsMax, " times"));
  }
  for (const std::string& origin : policy.origins) {
    if (absl::Status status = CheckOrigin(origin); !status.ok()) return status;
  }
  if (policy.hosts.size() > kAllowedHostsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--allow-host: may be given ", kAllowedHostsMax, " times"));
  }
  for (const std::string& host : policy.hosts) {
    const bool is_name = !host.empty() && host.size() <= kOriginBytesMax &&
                         absl::c_all_of(host, [](unsigned char c) {
                           return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
                         });
    if (!is_name) {
      return absl::InvalidArgumentError(
          absl::StrCat("--allow-host ", host,
                       ": must be a host's name without a port, as host.docker.internal"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBrowser(const HttpRequest& request, const BrowserPolicy& policy) {
  const absl::string_view host = request.Header("host");
  absl::string_view origin = request.Header("origin");
  if (!origin.empty() && !IsAllowed(request, policy) &&
      !(absl::ConsumePrefix(&origin, request.secure ? "https://" : "http://") && origin == host)) {
    return absl::PermissionDeniedError(
        "pages of other sites may not use this API; start this node with --allow-origin and the "
        "page's origin to let it");
  }
  if (request.to_loopback && !host.empty() && !IsOwnName(HostOf(host), policy)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "this machine is not called ", host,
        " here: use localhost or 127.0.0.1, or start this node with --allow-host ", HostOf(host)));
  }
  return absl::OkStatus();
}

absl::Status CheckOpenAccess(const HttpRequest& request, const BrowserPolicy& policy) {
  if (request.Header("origin").empty() && request.Header("sec-fetch-site") == "cross-site") {
    return absl::PermissionDeniedError("pages of other sites may not use this API");
  }
  const std::string host = HostOf(request.Header("host"));
  if (host.empty() || IsNumericHost(host) || IsOwnName(host, policy)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("this machine is not known as ", host,
                   ": use its address, or start this node with --allow-host ", host));
}

bool IsPreflight(const HttpRequest& request, const BrowserPolicy& policy) {
  return request.method == "OPTIONS" && IsAllowed(request, policy) &&
         !request.Header("access-control-request-method").empty();
}

HttpResponse AnswerPreflight(const HttpRequest& request, absl::string_view methods) {
  std::vector<std::string> headers = {"Authorization", "Content-Type", "X-Request-Id"};
  for (absl::string_view name : absl::StrSplit(request.Header("access-control-request-headers"),
                                               ',', absl::SkipWhitespace())) {
    const std::string header = absl::AsciiStrToLower(absl::StripAsciiWhitespace(name));
    const bool plain = std::all_of(header.begin(), header.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
    });
    // Clients identify themselves and send their keys in headers of many names.
    const bool known = std::any_of(headers.begin(), headers.end(), [&](const std::string& h) {
      return absl::EqualsIgnoreCase(h, header);
    });
    if (plain && !known) headers.push_back(header);
  }
  HttpResponse response = {.status = 204, .body = ""};
  response.headers = {{"Allow", std::string(methods)},
                      {"Access-Control-Allow-Methods", std::string(methods)},
                      {"Access-Control-Allow-Headers", absl::StrJoin(headers, ", ")},
                      {"Access-Control-Max-Age", "600"}};
  if (request.Header("access-control-request-private-network") == "true") {
    response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  }
  return response;
}

std::shared_ptr<HttpResponder> WithOrigin(std::shared_ptr<HttpResponder> to,
                                          const HttpRequest& request, const BrowserPolicy& policy) {
  const absl::string_view origin = request.Header("origin");
  if (origin.empty() && policy.origins.empty()) return to;
  return std::make_shared<OriginResponder>(std::move(to),
                                           std::string(IsAllowed(request, policy) ? origin : ""));
}

}  // namespace strata
