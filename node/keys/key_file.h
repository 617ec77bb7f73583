// The cluster's key in a node's data directory: one line, as ClusterKey writes it, in a file that
// only its owner may read (transport/security/private_file.h). Any thread; blocks on the disk.
// Errors name the file and what to do, never its contents.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/security/cluster_key.h"

namespace strata {

// The path of the key of a node whose data directory is `data_dir`.
std::string KeyFilePath(const std::string& data_dir);

// kNotFound: there is none. kPermissionDenied: others may read it, or it belongs to somebody else.
// kFailedPrecondition: it holds no key, or is no plain file. CreateKeyFile() never writes over any
// of these.
absl::StatusOr<ClusterKey> ReadKeyFile(const std::string& path);

// The key in a file that others may read: an orchestrator has mounted it, and answers for them. It
// may be a link. The system's own reason, or kFailedPrecondition: it holds no key.
absl::StatusOr<ClusterKey> TakeKeyFile(const std::string& path);

// kAlreadyExists: there is a key, or another file of that name; it stays.
absl::Status CreateKeyFile(const std::string& path, const ClusterKey& key);

// OK if ReplaceKeyFile() can be expected to succeed, as far as that can be known before.
absl::Status CheckKeyFileCanChange(const std::string& path);

// Replaces the key that was there, if any, atomically: readers see either the old or the new key.
absl::Status ReplaceKeyFile(const std::string& path, const ClusterKey& key);

}  // namespace strata
