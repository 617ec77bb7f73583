// Nodes and verbs that a test starts are of one cluster, whose key is this test's own: their
// environment says where it is (STRATA_KEY_FILE). A program that is to have none gets
// kNoTestKey.
#pragma once

#include <cstdlib>
#include <string>

#include "absl/log/check.h"
#include "node/keys/key_file.h"
#include "node/keys/node_security.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {

inline constexpr char kNoTestKey[] = "STRATA_KEY_FILE=";

inline std::string MakeTestKey() {
  const std::string path = ProcessTempFolder() + "/cluster_key";
  const absl::StatusOr<ClusterKey> key = ClusterKey::New();
  CHECK_OK(key.status());
  CHECK_OK(CreateKeyFile(path, *key));
  return path;
}

// Before main(): programs are started by the tests' own fixtures in many places.
inline const bool kTestKeyIsThere = setenv("STRATA_KEY_FILE", MakeTestKey().c_str(), 1) == 0;

// For tests that ask such nodes from their own process.
inline void UseTestKey() { CHECK_OK(SecureClient({.file = getenv("STRATA_KEY_FILE")}, "")); }

}  // namespace strata::testing
