#include "node/text_wire.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

constexpr absl::string_view kRetryAfter = "retry_after_ms=";

using WireTotals = google::protobuf::RepeatedPtrField<wire::TextStageTotal>;

void ToWire(const std::vector<StageTotal>& totals, WireTotals* out) {
  for (const StageTotal& total : totals) {
    wire::TextStageTotal* wire = out->Add();
    wire->set_queue_us(total.queue_us);
    wire->set_compute_us(total.compute_us);
    wire->set_sample_us(total.sample_us);
    wire->set_steps(total.steps);
  }
}

std::vector<StageTotal> TotalsFromWire(const WireTotals& totals) {
  std::vector<StageTotal> out;
  for (const wire::TextStageTotal& total : totals) {
    out.push_back({.queue_us = total.queue_us(),
                   .compute_us = total.compute_us(),
                   .sample_us = total.sample_us(),
                   .steps = total.steps()});
  }
  return out;
}

wire::TextEnded::Reason ReasonToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return wire::TextEnded::LENGTH;
    case FinishReason::kEndOfGeneration:
      return wire::TextEnded::STOP;
    case FinishReason::kCancelled:
      return wire::TextEnded::CANCELLED;
  }
  return wire::TextEnded::UNKNOWN;
}

FinishReason ReasonFromWire(wire::TextEnded::Reason reason) {
  switch (reason) {
    case wire::TextEnded::LENGTH:
      return FinishReason::kLength;
    case wire::TextEnded::STOP:
      return FinishReason::kEndOfGeneration;
    default:
      return FinishReason::kCancelled;
  }
}

}  // namespace

wire::GenerateTextEvent StartedToWire(const std::vector<int32_t>& prompt) {
  wire::GenerateTextEvent event;
  event.mutable_started()->mutable_prompt()->Add(prompt.begin(), prompt.end());
  return event;
}

wire::GenerateTextEvent EndedToWire(FinishReason reason, const TextUsage& usage) {
  wire::GenerateTextEvent event;
  wire::TextEnded* ended = event.mutable_ended();
  ended->set_reason(ReasonToWire(reason));
  ended->set_cached_tokens(usage.cached_tokens);
  ended->set_queued_us(usage.queued_us);
  ended->set_prompt_us(usage.prompt_us);
  ended->set_decode_us(usage.decode_us);
  ToWire(usage.prompt_stages, ended->mutable_prompt_stages());
  ToWire(usage.decode_stages, ended->mutable_decode_stages());
  return event;
}

EndedText EndedFromWire(const wire::TextEnded& ended) {
  EndedText text;
  text.reason = ReasonFromWire(ended.reason());
  text.usage.cached_tokens = ended.cached_tokens();
  text.usage.queued_us = ended.queued_us();
  text.usage.prompt_us = ended.prompt_us();
  text.usage.decode_us = ended.decode_us();
  text.usage.prompt_stages = TotalsFromWire(ended.prompt_stages());
  text.usage.decode_stages = TotalsFromWire(ended.decode_stages());
  return text;
}

grpc::Status TextStatusToGrpc(const absl::Status& status) {
  const grpc::Status plain = ToGrpc(status);
  const std::optional<int64_t> retry = RetryAfterMs(status);
  if (!retry) return plain;
  return grpc::Status(plain.error_code(), plain.error_message(), absl::StrCat(kRetryAfter, *retry));
}

absl::Status TextStatusFromGrpc(const grpc::Status& status) {
  absl::Status plain = FromGrpc(status);
  absl::string_view details = status.error_details();
  int64_t retry_ms = 0;
  if (plain.ok() || !absl::ConsumePrefix(&details, kRetryAfter) ||
      !absl::SimpleAtoi(details, &retry_ms) || retry_ms < 0) {
    return plain;
  }
  return WithRetryAfterMs(std::move(plain), retry_ms);
}

}  // namespace strata
