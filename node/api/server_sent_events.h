// Streams of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
// Pure.
#pragma once

#include "node/http/http_server.h"

namespace strata {

// A stream's head, without events yet. Proxies may neither cache nor hold back the stream; while it
// is quiet it has comments, which clients ignore: proxies cut a stream that is quiet for long.
HttpResponse EventStream();

}  // namespace strata
