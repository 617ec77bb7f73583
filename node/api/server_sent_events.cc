#include "node/api/server_sent_events.h"

namespace strata {

HttpResponse EventStream() {
  return {.content_type = "text/event-stream; charset=utf-8",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .body = "",
          .when_quiet = ": waiting\n\n"};
}

}  // namespace strata
