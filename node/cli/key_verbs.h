// `strata key`: the cluster's key in this machine's data dir. Blocks on the disk.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace strata {

struct KeyVerbOptions {
  std::string data_dir;  // of the node; empty: DataDir::Default()
  bool replace = false;  // RunKeySet(): replaces the key that is there
};

// Prints the key to stdout. kNotFound: there is none.
absl::Status RunKeyShow(const KeyVerbOptions& options);
// Makes a key; a node that starts then founds a cluster with it. kAlreadyExists: there is one.
absl::Status RunKeyNew(const KeyVerbOptions& options);
// Reads a key, as RunKeyShow() writes it, from stdin; a terminal does not show it.
// kAlreadyExists: there is another key, and `replace` is false; kInvalidArgument: it is no key.
absl::Status RunKeySet(const KeyVerbOptions& options);

}  // namespace strata
