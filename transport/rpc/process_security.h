// How all channels and servers of this process are secured: a process belongs to one cluster. Said
// once, before the first of them is made; until then they are plain, which is what --open means and
// what tests of other things use. Thread-safe.
#pragma once

#include <memory>
#include <string>

namespace grpc {
class ChannelArguments;
class ChannelCredentials;
class ServerBuilder;
class ServerCredentials;
}  // namespace grpc

namespace strata {

class ClusterCredentials;

// From now on, for as long as the process runs, all is TLS: whoever answers and whoever asks is a
// member of the cluster (tls_credentials.h).
void SecureThisProcess(std::string cluster_id,
                       std::shared_ptr<const ClusterCredentials> credentials);
// The same for one that has no server: its cluster's key has changed since. For channels made
// later.
void SecureThisProcessAnew(std::string cluster_id,
                           std::shared_ptr<const ClusterCredentials> credentials);
// Of that cluster; empty: everything is plain.
std::string ProcessClusterId();
// The cluster's key has changed, and its id with it: `credentials` show the new one's certificates.
void SetProcessClusterId(std::string cluster_id);
// As RemovedPeerFilter::Refuse(), for all servers of the process (removed_peer_filter.h).
void RefuseNode(const std::string& node_id, const std::string& cluster_id);
inline bool ThisProcessIsSecured() { return !ProcessClusterId().empty(); }

// What MakeChannel() and servers are made with (grpc_link.h); sets of `arguments` whom to expect.
std::shared_ptr<grpc::ChannelCredentials> ProcessChannelCredentials(
    grpc::ChannelArguments* arguments);
std::shared_ptr<grpc::ServerCredentials> ProcessServerCredentials();
// A bound on how long a connection stands that was begun with a certificate that has ended since.
void SetConnectionBounds(grpc::ServerBuilder* builder);

}  // namespace strata
