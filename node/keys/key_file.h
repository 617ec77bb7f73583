// The cluster's key in a node's data directory: one line, as ClusterKey writes it, in a file that
// nobody but its owner may read (transport/security/private_file.h). Any thread; blocks on the
// disk. Errors name the file and what to do, never what is in it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/security/cluster_key.h"

namespace strata {

// Where a node that keeps its things in `data_dir` has its key.
std::string KeyFilePath(const std::string& data_dir);

// kNotFound: there is none. kPermissionDenied: others may read it, or it belongs to somebody else.
// kFailedPrecondition: what is in it is no key, or it is no plain file. A file that is none of
// these is never written over by CreateKeyFile().
absl::StatusOr<ClusterKey> ReadKeyFile(const std::string& path);

// kAlreadyExists: there is a key, or something else of that name, which stays.
absl::Status CreateKeyFile(const std::string& path, const ClusterKey& key);

// Whether ReplaceKeyFile() will be able to, as far as that can be known before.
absl::Status CheckKeyFileCanChange(const std::string& path);

// In place of the key that was there, if any: whoever reads sees the one or the other.
absl::Status ReplaceKeyFile(const std::string& path, const ClusterKey& key);

}  // namespace strata
