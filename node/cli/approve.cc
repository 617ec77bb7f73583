#include "node/cli/approve.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "node/base/standard_input.h"
#include "node/keys/node_approval.h"

namespace strata {
namespace {

absl::StatusOr<bool> ConfirmCode(const std::string& code) {
  return Confirm(absl::StrCat("The code is  ", code, "  . Does the new node show the same?"));
}

}  // namespace

absl::Status RunApprove(const ApproveOptions& options) {
  const absl::StatusOr<ClusterKey> key = FindKey(options.client.key, options.client.data_dir);
  if (!key.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this machine is no member of a cluster, so it cannot admit others: run 'strata "
        "approve' on one that is (",
        key.status().message(), ")"));
  }
  auto client = ConnectToCluster(options.client);
  if (!client.ok()) return client.status();
  absl::Status status = ApproveNode(client->get(), options.node, *key, ConfirmCode);
  if (status.ok()) std::cerr << "The node is admitted; 'strata nodes' will show it in a moment.\n";
  return status;
}

}  // namespace strata
