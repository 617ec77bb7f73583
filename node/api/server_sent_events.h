// Streams of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
// Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "node/http/http_server.h"

namespace strata {

// A stream's head, without events yet. Proxies may neither cache nor hold back the stream; while it
// is quiet it has comments, which clients ignore: proxies cut a stream that is quiet for long.
HttpResponse EventStream();

// `data`: without line ends.
std::string ServerSentEvent(absl::string_view data);
std::string ServerSentEvent(absl::string_view type, absl::string_view data);

}  // namespace strata
