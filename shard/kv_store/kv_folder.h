// The folders of KV blocks on a node's disk (kv_store.h), whether or not a stage has them open:
// what is there, and how it goes. Any thread; blocks on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "proto/node.pb.h"
#include "transport/base/descriptor.h"

namespace strata {

// Files of a folder beside its blocks.
inline constexpr char kKvLockFile[] = "/lock";    // locked by the stage that has it open
inline constexpr char kKvAboutFile[] = "/about";  // a KvCacheAbout

struct KvFolder {
  std::string path;
  wire::KvCache cache;
};

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
