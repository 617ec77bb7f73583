#include "node/api/server_sent_events.h"

#include "absl/strings/str_cat.h"

namespace strata {

HttpResponse EventStream() {
  return {.content_type = "text/event-stream; charset=utf-8",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .body = "",
          .when_quiet = ": waiting\n\n"};
}

std::string ServerSentEvent(absl::string_view data) { return absl::StrCat("data: ", data, "\n\n"); }

std::string ServerSentEvent(absl::string_view type, absl::string_view data) {
  return absl::StrCat("event: ", type, "\n", ServerSentEvent(data));
}

}  // namespace strata
