// `strata key`: the cluster's key in this machine's data dir. Blocks on the disk.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace strata {

struct KeyVerbOptions {
  std::string data_dir;  // of the node; empty: DataDir::Default()
  bool replace = false;  // RunKeySet(): in place of the key that is there
};

// The key goes to stdout. kNotFound: there is none.
absl::Status RunKeyShow(const KeyVerbOptions& options);
// Makes one; a node that starts then founds a cluster with it. kAlreadyExists: there is one.
absl::Status RunKeyNew(const KeyVerbOptions& options);
// Reads one, as RunKeyShow() writes it, from stdin, which shows nothing of it where that is a
// terminal. kAlreadyExists: there is another, unless it is to be replaced; kInvalidArgument: that
// is no key.
absl::Status RunKeySet(const KeyVerbOptions& options);

}  // namespace strata
