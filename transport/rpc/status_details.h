// What a status says beside its code and its words: how much memory was short, or room on a disk,
// and where. It travels in the details of a gRPC status (grpc_status.h), so that whoever plans
// again has the figures. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// "where: message", with the details of `status`. OK stays OK.
absl::Status Prefixed(absl::string_view where, const absl::Status& status);

// The text of one payload; empty: `status` has none.
std::string PayloadText(const absl::Status& status, absl::string_view key);

// What something wanted of a device's memory, and what there was for it.
struct MemoryShortage {
  uint64_t needed_bytes = 0;  // 0: neither is known
  uint64_t free_bytes = 0;
  bool on_host = false;  // of the host's, for experts of a stage that is on another device
};
absl::Status WithShortage(absl::Status status, const MemoryShortage& shortage);
// None: `status` has no such figures.
std::optional<MemoryShortage> ShortageOf(const absl::Status& status);

// What weights that a node was to fetch wanted of the disk where it keeps them, and what there was
// for them.
struct DiskShortage {
  uint64_t needed_bytes = 0;  // 0: it is not known
  uint64_t free_bytes = 0;
};
absl::Status WithDiskShortage(absl::Status status, const DiskShortage& shortage);
std::optional<DiskShortage> DiskShortageOf(const absl::Status& status);

// The stage of the plan that a load failed in. Does not leave the process.
absl::Status WithStage(absl::Status status, uint32_t stage);
std::optional<uint32_t> StageOf(const absl::Status& status);

// That a stage computes other numbers than it should: its device is not tried again. Does not leave
// the process.
absl::Status WithWrongNumbers(absl::Status status);
bool HasWrongNumbers(const absl::Status& status);

// The details as text, in lines that begin with their end, empty where there are none; and back:
// lines that are not understood add nothing.
std::string DetailsText(const absl::Status& status);
absl::Status WithDetails(absl::Status status, absl::string_view text);

}  // namespace strata
