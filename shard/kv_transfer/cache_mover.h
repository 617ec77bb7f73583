// Moves the contents of slots from other workers' stages to a new stage. Blocks; on the compute
// thread of the new stage, before its first step.
#pragma once

#include <chrono>
#include <functional>

#include "absl/status/statusor.h"
#include "proto/node.pb.h"
#include "shard/engine/stage.h"

namespace strata {

// After this time without a piece the move fails: the other workers may be waiting for this one.
inline constexpr std::chrono::seconds kCachePieceLimit(30);

// Writes what has changed since `request.from(i).has()` into the slots of `stage`. Several stages
// are read in parallel, and a slot's positions are written once all of their layers are there;
// positions that only some stages have computed yet are left for the next call, and `lags` is set.
// `should_continue` is called several times a second on another thread; false ends the move
// (kCancelled). Errors: Stage::WriteCache()'s and JoinLayers()'s; kInvalidArgument: the other
// stages do not have the layers of this one, or a worker breaks the rules of Worker.ReadCaches;
// kDataLoss: the bytes do not have the hash from their worker; kUnimplemented: these caches cannot
// be split by layers, which the move needs; kDeadlineExceeded: no piece for `piece_limit`; else the
// workers' errors. After an error the slots keep their contents; the next call drops and copies
// again each slot that differs from `has`.
absl::StatusOr<wire::MoveCachesResponse> TakeCaches(
    const wire::MoveCachesRequest& request, const std::function<bool()>& should_continue,
    Stage* stage, std::chrono::milliseconds piece_limit = kCachePieceLimit);

}  // namespace strata
