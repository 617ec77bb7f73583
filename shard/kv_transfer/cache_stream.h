// Sends the contents of a stage's slots to another worker: the server side of Worker.ReadCaches.
// The compute thread reads some parts between two steps, gRPC's threads write them.
#pragma once

#include <memory>

#include "grpcpp/support/server_callback.h"
#include "proto/node.pb.h"
#include "shard/serving/stage_server.h"

namespace strata {

// Most bytes of a CachePiece, and the approximate size of a part.
inline constexpr size_t kCachePieceBytes = size_t{1} << 20;

// Deletes itself, and releases `keeps`, when the call is done; does not keep the stage alive. Ends
// with kInvalidArgument: a slot or a layer that the stage does not have, or parts too long;
// kUnavailable: the stage was unloaded; errors of LayersOf(), Stage::ReadCache() and
// StageServer::Post().
grpc::ServerWriteReactor<wire::CachePiece>* StreamCaches(const std::shared_ptr<StageServer>& stage,
                                                         const wire::ReadCachesRequest& request,
                                                         std::shared_ptr<void> keeps = nullptr);

}  // namespace strata
