// The folders of KV blocks on a node's disk (kv_store.h), whether or not a stage has them open:
// what is there, and how it goes. Any thread; blocks on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/node.pb.h"
#include "shard/kv_store/kv_cipher.h"
#include "transport/base/descriptor.h"
#include "transport/security/secret.h"

namespace strata {

// Files of a folder beside its blocks.
inline constexpr char kKvLockFile[] = "/lock";    // locked by the stage that has it open
inline constexpr char kKvAboutFile[] = "/about";  // a KvCacheAbout

struct KvFolder {
  std::string path;
  wire::KvCache cache;
};

// The node's key, which is made where `root` has none yet. kFailedPrecondition: it is damaged.
absl::StatusOr<Secret> KvKeyOf(const std::string& root);
// Of a store.
absl::StatusOr<KvCipher> KvCipherOf(const Secret& key, const wire::KvIdentity& identity);
// All bytes of a file; kNotFound where it cannot be opened.
absl::StatusOr<std::string> ReadKvFile(const std::string& path);

// Those in `root`, of all stages of the node; those used last first.
std::vector<KvFolder> ListKvFolders(const std::string& root);

// The lock of the folder, taken as flock() has it without waiting; invalid: it has none, or another
// holds it.
Descriptor LockKvFolder(const std::string& path, int how);

// Removes a folder that no stage has open. Returns false where one has, or the system refuses.
bool RemoveKvFolder(const std::string& path);

// Removes those that no stage has open, of the model, or of all where `model_id` is empty. Returns
// the bytes of their blocks.
uint64_t ClearKvFolders(const std::string& root, absl::string_view model_id);

}  // namespace strata
