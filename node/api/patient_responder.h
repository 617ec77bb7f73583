// The response of a request that waits for its model to be loaded. A stream begins before there is
// output, so that its client sees that it waits; errors from then on are events of the stream.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "node/http/forwarding_responder.h"
#include "transport/base/steady_time.h"

namespace strata {

// The form in which a dialect's streams say other things than output.
struct StreamForm {
  HttpResponse (*head)();
  // An event that clients skip; `words` is one line.
  std::string (*waiting)(absl::string_view model, absl::string_view words);
  // The last events of a stream that failed. `error`: in the dialect's form of errors.
  std::string (*failure)(const std::string& error);
};

// Server-sent events: comments, and an error as data.
HttpResponse EventStreamHead();
std::string EventStreamWaiting(absl::string_view model, absl::string_view words);
std::string EventStreamFailure(const std::string& error);
inline constexpr StreamForm kEventStreamForm = {
    .head = EventStreamHead, .waiting = EventStreamWaiting, .failure = EventStreamFailure};

class PatientResponder final : public ForwardingResponder {
 public:
  // A load that fails sooner is answered with an error's HTTP status.
  static constexpr absl::Duration kBeginsAfter = absl::Seconds(2);
  static constexpr absl::Duration kRepeatsAfter = absl::Seconds(5);

  // `form` outlives this; null: the response is no stream, and nothing is said. `model`: as the
  // client names it.
  PatientResponder(std::shared_ptr<HttpResponder> to, const StreamForm* form, std::string model);

  // Says `words` to the client if they are news or nothing was said for some time. Nothing once the
  // response has begun.
  void Say(absl::string_view words, SteadyTime now = SteadyTime::Now());

  void Answer(HttpResponse response) override;
  void Begin(HttpResponse head) override;

 private:
  const StreamForm* const form_;
  const std::string model_;
  const SteadyTime since_;

  absl::Mutex mu_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;    // the stream has begun
  bool has_begun_ ABSL_GUARDED_BY(mu_) = false;  // the response
  std::string said_ ABSL_GUARDED_BY(mu_);
  SteadyTime said_at_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
};

}  // namespace strata
