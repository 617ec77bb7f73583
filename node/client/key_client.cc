#include "node/client/key_client.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/cluster/cluster_stub.h"
#include "coordinator/models/node_match.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/key.grpc.pb.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

// Nodes need some seconds to read the keys that they trust; slow nodes need more.
constexpr absl::Duration kChangeLimit = absl::Minutes(2);
constexpr int64_t kClusterCallMs = 5'000;

absl::StatusOr<wire::ClusterNode> FindNodeToRemove(const wire::GetClusterResponse& cluster,
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
        wanted, " is the node that is called: call another one (strata: --node HOST:PORT)"));
  }
  return meant.front();
}

}  // namespace

absl::StatusOr<wire::ChangeKeyResponse> ChangeClusterKey(const std::string& address,
                                                         const std::string& remove) {
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

absl::StatusOr<RemovedNode> RemoveNode(CoordinatorClient* client, const NodeRemoval& removal,
                                       CoordinatorClient::Note note) {
  const absl::StatusOr<wire::GetClusterResponse> cluster =
      ClusterStub(removal.address, kClusterCallMs).GetCluster();
  if (!cluster.ok()) return cluster.status();
  const absl::StatusOr<wire::ClusterNode> node = FindNodeToRemove(*cluster, removal.node);
  if (!node.ok()) return node.status();
  if (node->state() == "alive" && !removal.now) {
    wire::DrainNodeRequest request;
    request.set_node(absl::BytesToHexString(node->record().node_id()));
    if (absl::Status status = client->DrainNode(request, note); !status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat(removal.node, " is not removed, for its layers cannot leave it: ",
                       status.message(), "; --now removes it all the same"));
    }
  }
  note("the nodes take a new key; this takes some seconds…");
  auto changed = ChangeClusterKey(removal.address, node->record().node_id());
  if (!changed.ok()) return changed.status();
  return RemovedNode{.name = node->record().name(), .key = *std::move(changed)};
}

}  // namespace strata
