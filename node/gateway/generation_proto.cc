#include "node/gateway/generation_proto.h"

#include <string>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "transport/base/utf8.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// Of our statuses' payloads.
constexpr absl::string_view kPayloadPrefix = "strata/";
// gRPC sends it in the trailers, beside the message.
constexpr size_t kDetailsBytesMax = 1024;

using WireTotals = google::protobuf::RepeatedPtrField<wire::GenerationStageTotal>;

void ToWire(const std::vector<StageTotal>& totals, WireTotals* out) {
  for (const StageTotal& total : totals) {
    wire::GenerationStageTotal* wire = out->Add();
    wire->set_queue_us(total.queue_us);
    wire->set_compute_us(total.compute_us);
    wire->set_sample_us(total.sample_us);
    wire->set_steps(total.steps);
  }
}

std::vector<StageTotal> TotalsFromWire(const WireTotals& totals) {
  std::vector<StageTotal> out;
  for (const wire::GenerationStageTotal& total : totals) {
    out.push_back({.queue_us = total.queue_us(),
                   .compute_us = total.compute_us(),
                   .sample_us = total.sample_us(),
                   .steps = total.steps()});
  }
  return out;
}

wire::GenerationEnded::Reason ReasonToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return wire::GenerationEnded::LENGTH;
    case FinishReason::kEndOfGeneration:
      return wire::GenerationEnded::STOP;
    case FinishReason::kCancelled:
      return wire::GenerationEnded::CANCELLED;
  }
  return wire::GenerationEnded::UNKNOWN;
}

FinishReason ReasonFromWire(wire::GenerationEnded::Reason reason) {
  switch (reason) {
    case wire::GenerationEnded::LENGTH:
      return FinishReason::kLength;
    case wire::GenerationEnded::STOP:
      return FinishReason::kEndOfGeneration;
    default:
      return FinishReason::kCancelled;
  }
}

}  // namespace

wire::GenerateEvent StartedToWire(const std::vector<int32_t>& prompt) {
  wire::GenerateEvent event;
  event.mutable_started()->mutable_prompt()->Add(prompt.begin(), prompt.end());
  return event;
}

wire::GenerateEvent ProgressToWire(const PromptProgress& progress) {
  wire::GenerateEvent event;
  wire::GenerationProgress* wire = event.mutable_progress();
  wire->set_prompt_tokens(progress.prompt_tokens);
  wire->set_cached_tokens(progress.cached_tokens);
  wire->set_done_tokens(progress.done_tokens);
  return event;
}

PromptProgress ProgressFromWire(const wire::GenerationProgress& progress) {
  return {.prompt_tokens = progress.prompt_tokens(),
          .cached_tokens = progress.cached_tokens(),
          .done_tokens = progress.done_tokens()};
}

wire::GenerateEvent EndedToWire(FinishReason reason, const GenerationUsage& usage) {
  wire::GenerateEvent event;
  wire::GenerationEnded* ended = event.mutable_ended();
  ended->set_reason(ReasonToWire(reason));
  ended->set_cached_tokens(usage.cached_tokens);
  ended->set_queued_us(usage.queued_us);
  ended->set_prompt_us(usage.prompt_us);
  ended->set_decode_us(usage.decode_us);
  ended->set_draft_tokens(usage.draft_tokens);
  ended->set_accepted_tokens(usage.accepted_tokens);
  if (usage.end_token) ended->set_end_token(*usage.end_token);
  ToWire(usage.prompt_stages, ended->mutable_prompt_stages());
  ToWire(usage.decode_stages, ended->mutable_decode_stages());
  return event;
}

GenerationResult EndedFromWire(const wire::GenerationEnded& ended) {
  GenerationResult result;
  result.reason = ReasonFromWire(ended.reason());
  result.usage.cached_tokens = ended.cached_tokens();
  result.usage.queued_us = ended.queued_us();
  result.usage.prompt_us = ended.prompt_us();
  result.usage.decode_us = ended.decode_us();
  result.usage.draft_tokens = ended.draft_tokens();
  result.usage.accepted_tokens = ended.accepted_tokens();
  if (ended.has_end_token()) result.usage.end_token = ended.end_token();
  result.usage.prompt_stages = TotalsFromWire(ended.prompt_stages());
  result.usage.decode_stages = TotalsFromWire(ended.decode_stages());
  return result;
}

grpc::Status RequestStatusToGrpc(const absl::Status& status) {
  grpc::Status plain = ToGrpc(status);
  if (plain.ok()) return plain;
  // "strata\nretry_after_ms=1000\n…"
  std::string details = plain.error_details();
  status.ForEachPayload([&details](absl::string_view key, const absl::Cord& value) {
    if (!absl::ConsumePrefix(&key, kPayloadPrefix)) return;
    const std::string line = absl::StrCat("\n", key, "=", absl::CEscape(std::string(value)));
    if (details.size() + line.size() <= kDetailsBytesMax) details += line;
  });
  return grpc::Status(plain.error_code(), plain.error_message(), details);
}

absl::Status RequestStatusFromGrpc(const grpc::Status& status) {
  absl::Status plain = FromGrpc(status);
  if (plain.ok()) return plain;
  if (IsUnreadable(status)) return plain;
  if (!IsFromPeer(status)) {
    if (absl::IsCancelled(plain)) return absl::CancelledError("the request was cancelled");
    LOG(INFO) << "the coordinator does not answer: " << plain.message();
    return absl::UnavailableError("the coordinator does not answer; try again");
  }
  const std::string& details = status.error_details();
  for (absl::string_view line : absl::StrSplit(details, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    std::string value;
    if (parts.second.empty() || !absl::CUnescape(parts.second, &value)) continue;
    const std::string utf8 = ValidUtf8(value);
    plain.SetPayload(absl::StrCat(kPayloadPrefix, parts.first),
                     absl::Cord(absl::string_view(utf8)));
  }
  return plain;
}

}  // namespace strata
