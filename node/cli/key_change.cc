#include "node/cli/key_change.h"

#include <iostream>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/models/node_match.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "node/base/standard_output.h"
#include "node/client/coordinator_client.h"
#include "node/keys/node_security.h"
#include "proto/key.grpc.pb.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"
#include "transport/security/cluster_key.h"

namespace strata {
namespace {

// Nodes need some seconds to read the keys that they trust; slow nodes need more.
constexpr absl::Duration kChangeLimit = absl::Minutes(2);

absl::StatusOr<std::unique_ptr<ClusterStub>> Connect(const KeyChangeOptions& options) {
  if (options.client.key.open) {
    return absl::InvalidArgumentError("--open: open nodes have no key to change");
  }
  return ConnectToCluster(options.client);
}

absl::StatusOr<wire::ChangeKeyResponse> ChangeKey(const std::string& address,
                                                  const std::string& remove) {
  std::cerr << "The nodes take a new key; this takes some seconds…\n";
  const auto stub = wire::Key::NewStub(MakeChannel(address, kPatientTimeoutMs));
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(kChangeLimit));
  wire::ChangeKeyRequest request;
  request.set_remove(remove);
  wire::ChangeKeyResponse response;
  const grpc::Status status = stub->ChangeKey(&context, request, &response);
  if (IsUnknownCall(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the node at ", address, " cannot change keys yet: it is an older version"));
  }
  if (!status.ok()) return FromGrpc(status);
  MakePrintable(&response);
  return response;
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

absl::StatusOr<wire::ClusterNode> Find(const wire::GetClusterResponse& cluster,
                                       const std::string& wanted) {
  std::vector<wire::ClusterNode> meant;
  std::vector<std::string> ids(static_cast<size_t>(cluster.nodes_size()));
  std::vector<NodeNames> names;
  for (const wire::ClusterNode& node : cluster.nodes()) {
    std::string& id = ids[names.size()];
    id = absl::BytesToHexString(node.record().node_id());
    const NodeNames its = {.name = node.record().name(), .id_hex = id};
    if (!MatchesNode(wanted, its)) continue;
    names.push_back(its);
    meant.push_back(node);
  }
  if (meant.empty()) {
    return absl::NotFoundError(absl::StrCat("no node ", wanted, " (see: strata nodes)"));
  }
  if (meant.size() > 1) return MatchesSeveralNodes(wanted, names);
  if (meant.front().record().node_id() == cluster.asked()) {
    return absl::InvalidArgumentError(absl::StrCat(
        wanted, " is the node that this command calls: call another one, with --node HOST:PORT"));
  }
  return meant.front();
}

absl::Status Drain(ClientOptions client, const std::string& address, const std::string& node) {
  client.node = address;
  auto coordinator = CoordinatorClient::Connect(client);
  if (!coordinator.ok()) return coordinator.status();
  wire::DrainNodeRequest request;
  request.set_node(node);
  return (*coordinator)->DrainNode(request, [](const std::string& note) {
    std::cerr << note << "\n";
  });
}

}  // namespace

absl::Status RunKeyRotate(const KeyChangeOptions& options) {
  const auto client = Connect(options);
  if (!client.ok()) return client.status();
  const auto changed = ChangeKey((*client)->address(), "");
  if (!changed.ok()) return changed.status();
  return PrintChange(*changed, options, "");
}

absl::Status RunNodesRemove(const KeyChangeOptions& options) {
  const auto client = Connect(options);
  if (!client.ok()) return client.status();
  const absl::StatusOr<wire::GetClusterResponse> cluster = (*client)->GetCluster();
  if (!cluster.ok()) return cluster.status();
  const absl::StatusOr<wire::ClusterNode> node = Find(*cluster, options.node);
  if (!node.ok()) return node.status();
  const std::string id = absl::BytesToHexString(node->record().node_id());
  if (node->state() == "alive" && !options.now) {
    absl::Status status = Drain(options.client, (*client)->address(), id);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(options.node,
                                       " is not removed, for its layers cannot leave "
                                       "it: ",
                                       status.message(), "; --now removes it all the same"));
    }
  }
  const auto changed = ChangeKey((*client)->address(), node->record().node_id());
  if (!changed.ok()) return changed.status();
  return PrintChange(*changed, options, absl::StrCat(node->record().name(), " is removed. "));
}

}  // namespace strata
