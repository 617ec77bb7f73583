// A stage takes over what the slots of another worker's stage hold. Blocks; on the compute thread
// of the stage that takes over, before its first step.
#pragma once

#include <chrono>
#include <functional>

#include "absl/status/statusor.h"
#include "proto/node.pb.h"
#include "shard/stage.h"

namespace strata {

// Without a piece for so long the other worker is given up: it may wait for this one.
inline constexpr std::chrono::seconds kCachePieceLimit(30);

// Writes what has changed since `request.has()` into the slots of `stage`. `go_on` is asked several
// times a second on another thread; false ends it (kCancelled). Errors: Stage::WriteCache()'s;
// kInvalidArgument: the other worker breaks the rules of Worker.ReadCaches; kDeadlineExceeded: it
// sends nothing for `piece_limit`; else what it says. After an error the slots hold what they hold,
// and `has` is not told.
absl::StatusOr<wire::MoveCachesResponse> TakeCaches(
    const wire::MoveCachesRequest& request, const std::function<bool()>& go_on, Stage* stage,
    std::chrono::milliseconds piece_limit = kCachePieceLimit);

}  // namespace strata
