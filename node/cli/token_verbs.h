// `strata token`: the tokens with which clients may use a node's HTTP API. Works on the file in the
// node's data dir, whether the node runs or not; a running node sees changes within a second.
// Blocks on the disk.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace strata {

struct TokenOptions {
  std::string data_dir;  // of the node; empty: DataDir::Default()
  std::string name;
  uint32_t requests_per_minute = 0;  // 0: no limit
  uint32_t streams_max = 0;          // requests at once; 0: no limit
  uint32_t days = 0;                 // until it expires; 0: never
  std::string scopes = "chat";       // as ParseApiScopes() takes them
  bool json = false;
};

// Prints the token to stdout, only this once. Errors of AddApiToken().
absl::Status RunTokenNew(const TokenOptions& options);
absl::Status RunTokenList(const TokenOptions& options);
absl::Status RunTokenRevoke(const TokenOptions& options);

// `strata page`: prints a link to the page of this machine's node that admits whoever opens it
// first as an admin. kNotFound: no node of that data dir runs with a page.
absl::Status RunPage(const TokenOptions& options);

}  // namespace strata
