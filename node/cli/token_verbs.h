// `strata token`: who may use a node's HTTP API from elsewhere. Works on the file in the node's
// data dir, whether the node runs or not; one that runs sees it within a second. Blocks on the
// disk.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace strata {

struct TokenOptions {
  std::string data_dir;  // of the node; empty: DataDir::Default()
  std::string name;
  uint32_t requests_per_minute = 0;  // 0: no limit
  uint32_t streams_max = 0;          // texts at once; 0: no limit
  uint32_t days = 0;                 // that it is good for; 0: until it is revoked
  bool json = false;
};

// The token goes to stdout, this once. Errors of AddApiToken().
absl::Status RunTokenNew(const TokenOptions& options);
absl::Status RunTokenList(const TokenOptions& options);
absl::Status RunTokenRevoke(const TokenOptions& options);

}  // namespace strata
