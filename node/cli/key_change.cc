#include "node/cli/key_change.h"

#include <iostream>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "node/base/standard_output.h"
#include "node/client/coordinator_client.h"
#include "node/client/key_client.h"
#include "node/keys/node_security.h"
#include "transport/security/cluster_key.h"

namespace strata {
namespace {

absl::StatusOr<std::unique_ptr<ClusterStub>> Connect(const KeyChangeOptions& options) {
  if (options.client.key.open) {
    return absl::InvalidArgumentError("--open: open nodes have no key to change");
  }
  return ConnectToCluster(options.client);
}

// Prints the result, and what a person has to do for the nodes without the new key.
absl::Status PrintChange(const wire::ChangeKeyResponse& response, const KeyChangeOptions& options,
                         const std::string& first) {
  std::string text = absl::StrCat(first, "The cluster has a new key, id ", response.key_id(),
                                  ". It is with ", absl::StrJoin(response.changed(), ", "), ".\n");
  if (!response.left_out().empty()) {
    absl::StrAppend(&text, "Not with ", absl::StrJoin(response.left_out(), ", "),
                    ", which did not answer: bring it there by hand: 'strata key show' here, "
                    "'strata key set --replace' there, and start the node again.\n");
  }
  // If this machine has a node, its file has the new key by now.
  const absl::StatusOr<ClusterKey> own = FindKey(options.client.key, options.client.data_dir);
  if (own.ok() && own->id() != response.key_id()) {
    absl::StrAppend(&text,
                    "The key that this command has used is the old one: it opens "
                    "nothing any more.\n");
  }
  return WriteToStdout(text);
}

}  // namespace

absl::Status RunKeyRotate(const KeyChangeOptions& options) {
  const auto client = Connect(options);
  if (!client.ok()) return client.status();
  std::cerr << "The nodes take a new key; this takes some seconds…\n";
  const auto changed = ChangeClusterKey((*client)->address(), "");
  if (!changed.ok()) return changed.status();
  return PrintChange(*changed, options, "");
}

absl::Status RunNodesRemove(const KeyChangeOptions& options) {
  const auto client = Connect(options);
  if (!client.ok()) return client.status();
  const std::string address = (*client)->address();
  const auto removed = RemoveNode(CoordinatorClient::At(address).get(),
                                  {.address = address, .node = options.node, .now = options.now},
                                  [](const std::string& note) { std::cerr << note << "\n"; });
  if (!removed.ok()) return removed.status();
  return PrintChange(removed->key, options, absl::StrCat(removed->name, " is removed. "));
}

}  // namespace strata
