#include "node/web/page_routes.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "node/api/openai/openai_error.h"

namespace strata {
namespace {

constexpr char kWithout[] =
    "This program was built without its page: npm could not fetch what the page is made of.\n"
    "Build it again with a network (scripts/demo does), or see node/web/README.md.\n"
    "The API is here all the same: /v1, and /api/strata/v1/openapi.json.\n";
constexpr char kForBrowsers[] =
    "This is a page for browsers, compressed by gzip. The API is at /v1, and at "
    "/api/strata/v1/openapi.json.\n";

// No script, style or image but the page's own, no page around it, no form to elsewhere.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpResponse Words(const char* words) {
  return {.content_type = "text/plain; charset=utf-8", .body = words};
}

HttpResponse Serve(const PageFile& file, const HttpRequest& request) {
  if (!absl::StrContains(request.Header("accept-encoding"), "gzip")) return Words(kForBrowsers);
  const std::string tag = absl::StrCat("\"", file.tag, "\"");
  HttpResponse response = {.content_type = std::string(file.content_type)};
  response.headers = {{"ETag", tag},
                      {"Cache-Control", "no-cache"},
                      {"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (request.Header("if-none-match") == tag) {
    response.status = 304;
    return response;
  }
  response.headers.emplace_back("Content-Encoding", "gzip");
  response.headers.emplace_back("Vary", "Accept-Encoding");
  response.body = std::string(file.bytes);
  return response;
}

}  // namespace

ApiRoutes PageRoutes(absl::Span<const PageFile> files) {
  ApiRoutes routes;
  const auto add = [&routes](std::string path, auto respond) {
    routes.push_back({.method = "GET",
                      .path = std::move(path),
                      .is_public = true,
                      .error_form = OpenAiError,
                      .handle = [respond](const SharedExchange& exchange) {
                        exchange->responder->Answer(respond(exchange->http));
                      }});
  };
  for (const PageFile& file : files) {
    add(std::string(file.path),
        [&file](const HttpRequest& request) { return Serve(file, request); });
  }
  if (files.empty()) add("/", [](const HttpRequest&) { return Words(kWithout); });
  return routes;
}

}  // namespace strata
