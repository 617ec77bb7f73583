// Nodes and verbs that a test starts are of one cluster with a key of this test: STRATA_KEY_FILE in
// their environment names its file. A program that is to have no key gets kNoTestKey.
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

// For tests that call such nodes from their own process.
inline void UseTestKey() { CHECK_OK(SecureClient({.file = getenv("STRATA_KEY_FILE")}, "")); }

}  // namespace strata::testing
