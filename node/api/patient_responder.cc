#include "node/api/patient_responder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "node/api/server_sent_events.h"

namespace strata {

HttpResponse EventStreamHead() { return EventStream(); }

std::string EventStreamWaiting(absl::string_view /*model*/, absl::string_view words) {
  return absl::StrCat(": ", absl::StrReplaceAll(words, {{"\n", " "}, {"\r", " "}}), "\n\n");
}

std::string EventStreamFailure(const std::string& error) { return ServerSentEvent(error); }

PatientResponder::PatientResponder(std::shared_ptr<HttpResponder> to, const StreamForm* form,
                                   std::string model)
    : ForwardingResponder(std::move(to)),
      form_(form),
      model_(std::move(model)),
      since_(SteadyTime::Now()) {}

void PatientResponder::Say(absl::string_view words, SteadyTime now) {
  if (form_ == nullptr || now - since_ < kBeginsAfter) return;
  absl::MutexLock lock(mu_);
  if (has_begun_ || (said_ == words && now - said_at_ < kRepeatsAfter)) return;
  said_ = std::string(words);
  said_at_ = now;
  const std::string event = form_->waiting(model_, words);
  if (std::exchange(is_open_, true)) return Write(event);
  HttpResponse head = form_->head();
  head.body = event;
  ForwardingResponder::Begin(std::move(head));
}

void PatientResponder::Answer(HttpResponse response) {
  absl::MutexLock lock(mu_);
  has_begun_ = true;
  if (!is_open_) return ForwardingResponder::Answer(std::move(response));
  Write(response.status == 200 ? response.body : form_->failure(response.body));
  End();
}

void PatientResponder::Begin(HttpResponse head) {
  absl::MutexLock lock(mu_);
  has_begun_ = true;
  if (!is_open_) return ForwardingResponder::Begin(std::move(head));
  Write(head.body);
}

}  // namespace strata
