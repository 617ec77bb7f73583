#include "transport/rpc/status_details.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace strata {
namespace {

constexpr char kMemory[] = "strata/memory";
constexpr char kDisk[] = "strata/disk";
constexpr char kStage[] = "strata/stage";
constexpr char kWrongNumbers[] = "strata/wrong-numbers";
// Lines "memory=NEEDED/FREE", "memory=NEEDED/FREE/host" and "disk=NEEDED/FREE".
constexpr absl::string_view kMemoryField = "memory=";
constexpr absl::string_view kDiskField = "disk=";
constexpr absl::string_view kOnHost = "/host";

absl::Status With(absl::Status status, absl::string_view what, absl::string_view text) {
  status.SetPayload(what, absl::Cord(text));
  return status;
}

bool ParseBytes(absl::string_view text, uint64_t* needed, uint64_t* free) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('/', 1));
  return absl::SimpleAtoi(parts.first, needed) && absl::SimpleAtoi(parts.second, free);
}

std::optional<MemoryShortage> ParseMemory(absl::string_view text) {
  MemoryShortage shortage;
  shortage.on_host = absl::ConsumeSuffix(&text, kOnHost);
  if (!ParseBytes(text, &shortage.needed_bytes, &shortage.free_bytes)) return std::nullopt;
  return shortage;
}

std::optional<DiskShortage> ParseDisk(absl::string_view text) {
  DiskShortage shortage;
  if (!ParseBytes(text, &shortage.needed_bytes, &shortage.free_bytes)) return std::nullopt;
  return shortage;
}

}  // namespace

std::string PayloadText(const absl::Status& status, absl::string_view key) {
  // Not value_or(absl::Cord()): under ASan, a Cord made here has poisoned bytes that the library,
  // which is built without ASan, reads.
  const std::optional<absl::Cord> payload = status.GetPayload(key);
  return payload ? std::string(*payload) : std::string();
}

absl::Status Prefixed(absl::string_view where, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status prefixed(status.code(), absl::StrCat(where, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { prefixed.SetPayload(url, payload); });
  return prefixed;
}

absl::Status WithShortage(absl::Status status, const MemoryShortage& shortage) {
  return With(std::move(status), kMemory,
              absl::StrCat(shortage.needed_bytes, "/", shortage.free_bytes,
                           shortage.on_host ? kOnHost : ""));
}

std::optional<MemoryShortage> ShortageOf(const absl::Status& status) {
  return ParseMemory(PayloadText(status, kMemory));
}

absl::Status WithDiskShortage(absl::Status status, const DiskShortage& shortage) {
  return With(std::move(status), kDisk,
              absl::StrCat(shortage.needed_bytes, "/", shortage.free_bytes));
}

std::optional<DiskShortage> DiskShortageOf(const absl::Status& status) {
  return ParseDisk(PayloadText(status, kDisk));
}

absl::Status WithStage(absl::Status status, uint32_t stage) {
  return With(std::move(status), kStage, absl::StrCat(stage));
}

std::optional<uint32_t> StageOf(const absl::Status& status) {
  uint32_t stage = 0;
  if (!absl::SimpleAtoi(PayloadText(status, kStage), &stage)) return std::nullopt;
  return stage;
}

absl::Status WithWrongNumbers(absl::Status status) {
  return With(std::move(status), kWrongNumbers, "");
}

bool HasWrongNumbers(const absl::Status& status) {
  return status.GetPayload(kWrongNumbers).has_value();
}

std::string DetailsText(const absl::Status& status) {
  std::string text;
  const std::string memory = PayloadText(status, kMemory), disk = PayloadText(status, kDisk);
  if (!memory.empty()) absl::StrAppend(&text, "\n", kMemoryField, memory);
  if (!disk.empty()) absl::StrAppend(&text, "\n", kDiskField, disk);
  return text;
}

absl::Status WithDetails(absl::Status status, absl::string_view text) {
  bool has_memory = false, has_disk = false;  // the first of each counts
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!has_memory && absl::ConsumePrefix(&line, kMemoryField)) {
      const auto shortage = ParseMemory(line);
      has_memory = shortage.has_value();
      if (has_memory) status = WithShortage(std::move(status), *shortage);
    } else if (!has_disk && absl::ConsumePrefix(&line, kDiskField)) {
      const auto shortage = ParseDisk(line);
      has_disk = shortage.has_value();
      if (has_disk) status = WithDiskShortage(std::move(status), *shortage);
    }
  }
  return status;
}

}  // namespace strata
