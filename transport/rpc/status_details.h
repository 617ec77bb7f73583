// Payloads of a status beside its code and message: how much memory or disk space was missing, and
// where. They are sent in the details of a gRPC status (grpc_status.h), so that the planner has the
// figures for its next plan. Pure functions; any thread.
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

// The device memory that something needed, and the memory that was free for it.
struct MemoryShortage {
  uint64_t needed_bytes = 0;  // 0: neither is known
  uint64_t free_bytes = 0;
  bool on_host = false;  // of host memory, for experts of a stage that is on another device
};
absl::Status WithShortage(absl::Status status, const MemoryShortage& shortage);
// None: `status` has no such figures.
std::optional<MemoryShortage> ShortageOf(const absl::Status& status);

// The space that weights to be fetched needed on the disk of a node's weight cache, and the space
// that was free for them.
struct DiskShortage {
  uint64_t needed_bytes = 0;  // 0: not known
  uint64_t free_bytes = 0;
};
absl::Status WithDiskShortage(absl::Status status, const DiskShortage& shortage);
std::optional<DiskShortage> DiskShortageOf(const absl::Status& status);

// The stage of the plan that a load failed in. Does not leave the process.
absl::Status WithStage(absl::Status status, uint32_t stage);
std::optional<uint32_t> StageOf(const absl::Status& status);

// Marks that a stage computes wrong numbers: its device is not tried again. Does not leave the
// process.
absl::Status WithWrongNumbers(absl::Status status);
bool HasWrongNumbers(const absl::Status& status);

// The details as text, each line preceded by "\n", empty where there are none; and back: unknown
// lines are ignored.
std::string DetailsText(const absl::Status& status);
absl::Status WithDetails(absl::Status status, absl::string_view text);

}  // namespace strata
