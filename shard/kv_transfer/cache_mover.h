// A stage takes over what the slots of other workers' stages hold. Blocks; on the compute thread of
// the stage that takes over, before its first step.
#pragma once

#include <chrono>
#include <functional>

#include "absl/status/statusor.h"
#include "proto/node.pb.h"
#include "shard/engine/stage.h"

namespace strata {

// Without a piece for so long the other workers are given up: they may wait for this one.
inline constexpr std::chrono::seconds kCachePieceLimit(30);

// Writes what has changed since `request.from(i).has()` into the slots of `stage`. Several stages
// are read side by side, and a slot's positions are written once all of their layers are there;
// what one stage has and another one has not got to yet is left for the next call, which
// `lags` tells. `should_continue` is asked several times a second on another thread; false ends it
// (kCancelled). Errors: Stage::WriteCache()'s and JoinLayers()'s; kInvalidArgument: the other
// stages do not have the layers of this one, or a worker breaks the rules of Worker.ReadCaches;
// kDataLoss: what came is not what was read there, by its hash; kUnimplemented: layers have to come
// apart, and these caches do not; kDeadlineExceeded: nothing
// comes for `piece_limit`; else what the workers say. After an error the slots hold what they hold;
// what `has` does not tell of them, or tells otherwise, the next call drops and takes anew.
absl::StatusOr<wire::MoveCachesResponse> TakeCaches(
    const wire::MoveCachesRequest& request, const std::function<bool()>& should_continue,
    Stage* stage, std::chrono::milliseconds piece_limit = kCachePieceLimit);

}  // namespace strata
