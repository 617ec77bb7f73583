// How all channels and servers of this process are secured: a process belongs to one cluster. Set
// once, before the first of them is made; without it they are plain, as with --open and in tests of
// other things. Thread-safe.
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

// From now on, for as long as the process runs, all connections use TLS: both ends are members of
// the cluster (tls_credentials.h).
void SecureThisProcess(std::string cluster_id,
                       std::shared_ptr<const ClusterCredentials> credentials);
// The same for a process without servers whose cluster's key has changed since. For channels made
// later.
void ReplaceProcessCredentials(std::string cluster_id,
                               std::shared_ptr<const ClusterCredentials> credentials);
// The id of that cluster; empty: all connections are plain.
std::string ProcessClusterId();
// The cluster's key has changed, and its id with it: `credentials` show the new one's certificates.
void SetProcessClusterId(std::string cluster_id);
// As RemovedPeerFilter::Refuse(), for all servers of the process (removed_peer_filter.h).
void RefuseNode(const std::string& node_id, const std::string& cluster_id);
inline bool ThisProcessIsSecured() { return !ProcessClusterId().empty(); }

// The credentials of MakeChannel() and of servers; sets in `arguments` which peer to expect.
std::shared_ptr<grpc::ChannelCredentials> ProcessChannelCredentials(
    grpc::ChannelArguments* arguments);
std::shared_ptr<grpc::ServerCredentials> ProcessServerCredentials();
// Bounds how long a connection lasts after the certificate that it began with has expired.
void SetConnectionBounds(grpc::ServerBuilder* builder);

}  // namespace strata
