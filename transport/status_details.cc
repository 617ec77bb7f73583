#include "transport/status_details.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace strata {
namespace {

constexpr char kShortage[] = "strata/memory";
constexpr char kStage[] = "strata/stage";
// A line "memory=NEEDED/FREE" or "memory=NEEDED/FREE/host".
constexpr absl::string_view kMemoryField = "memory=";
constexpr absl::string_view kOnHost = "/host";

std::optional<MemoryShortage> Parse(absl::string_view text) {
  MemoryShortage shortage;
  shortage.on_host = absl::ConsumeSuffix(&text, kOnHost);
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('/', 1));
  if (!absl::SimpleAtoi(parts.first, &shortage.needed_bytes) ||
      !absl::SimpleAtoi(parts.second, &shortage.free_bytes)) {
    return std::nullopt;
  }
  return shortage;
}

}  // namespace

absl::Status Prefixed(absl::string_view where, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status prefixed(status.code(), absl::StrCat(where, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { prefixed.SetPayload(url, payload); });
  return prefixed;
}

absl::Status WithShortage(absl::Status status, const MemoryShortage& shortage) {
  const std::string text = absl::StrCat(shortage.needed_bytes, "/", shortage.free_bytes,
                                        shortage.on_host ? kOnHost : "");
  status.SetPayload(kShortage, absl::Cord(absl::string_view(text)));
  return status;
}

std::optional<MemoryShortage> ShortageOf(const absl::Status& status) {
  const std::optional<absl::Cord> payload = status.GetPayload(kShortage);
  if (!payload) return std::nullopt;
  return Parse(std::string(*payload));
}

absl::Status WithStage(absl::Status status, uint32_t stage) {
  const std::string text = absl::StrCat(stage);
  status.SetPayload(kStage, absl::Cord(absl::string_view(text)));
  return status;
}

std::optional<uint32_t> StageOf(const absl::Status& status) {
  const std::optional<absl::Cord> payload = status.GetPayload(kStage);
  uint32_t stage = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &stage)) return std::nullopt;
  return stage;
}

std::string DetailsText(const absl::Status& status) {
  const std::optional<absl::Cord> payload = status.GetPayload(kShortage);
  return payload ? absl::StrCat("\n", kMemoryField, std::string(*payload)) : "";
}

absl::Status WithDetails(absl::Status status, absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, kMemoryField)) continue;
    if (const auto shortage = Parse(line)) return WithShortage(std::move(status), *shortage);
  }
  return status;
}

}  // namespace strata
