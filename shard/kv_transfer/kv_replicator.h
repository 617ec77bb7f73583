// Copies a stage's KV blocks to the node that would get its layers if the stage's node were lost
// (coordinator/models/replica_targets.h), so that its sequences are loaded there and not fed again:
// the client side of Node.KeepReplicas. What is there is made equal to what the store keeps, the
// most recently used blocks first, so that nothing that a slow or broken link has missed is missing
// for good. Blocks of which nobody has told the scope since the store was opened cannot be read,
// and are not copied.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "proto/node.pb.h"
#include "shard/kv_store/kv_store.h"

namespace strata {

// A copier waits for so many times what a block has cost it: of the processor's time, so that
// copies take at most 3 % of a core, and of the time, so that links are free for steps.
inline constexpr int kReplicaProcessorWaits = 32;
inline constexpr int kReplicaTimeWaits = 2;
// Until a call that broke, or was refused, is tried again; twice as long each time, up to a minute.
inline constexpr absl::Duration kReplicaRetry = absl::Seconds(5);

// `store` outlives it, and `target` has a node. A thread of its own copies until it is destroyed;
// errors are in its status. Layers other than the store's are taken out of each block.
std::unique_ptr<KvFollower> StartReplicator(KvStore* store, const wire::ReplicaTarget& target,
                                            absl::Duration retry = kReplicaRetry);
// Only tells why there are no copies.
std::unique_ptr<KvFollower> NoReplicator(const wire::ReplicaTarget& target);

}  // namespace strata
