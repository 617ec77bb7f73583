#include "transport/rpc/process_security.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"
#include "transport/base/mutex.h"
#include "transport/rpc/removed_peer_filter.h"
#include "transport/security/tls_credentials.h"

namespace strata {
namespace {

// After this a connection takes no new calls, and its client reconnects; calls in flight go on.
constexpr int kConnectionAgeMaxMs = 60'000;

struct Security {
  Mutex mu;
  std::string cluster_id ABSL_GUARDED_BY(mu);
  // Shared with their renewal.
  std::shared_ptr<const ClusterCredentials> credentials ABSL_GUARDED_BY(mu);
  const std::shared_ptr<RemovedPeerFilter> removed_peers =
      std::make_shared<RemovedPeerFilter>();  // shared with all servers
};

// Lives as long as the process, since its channels use it.
Security& Process() {
  static Security* const security = new Security;
  return *security;
}

std::shared_ptr<const ClusterCredentials> Credentials() {
  MutexLock lock(&Process().mu);
  return Process().credentials;
}

}  // namespace

void SecureThisProcess(std::string cluster_id,
                       std::shared_ptr<const ClusterCredentials> credentials) {
  CHECK(credentials != nullptr && !cluster_id.empty());
  MutexLock lock(&Process().mu);
  CHECK(Process().credentials == nullptr) << "a process belongs to one cluster";
  Process().cluster_id = std::move(cluster_id);
  Process().credentials = std::move(credentials);
}

void ReplaceProcessCredentials(std::string cluster_id,
                               std::shared_ptr<const ClusterCredentials> credentials) {
  CHECK(credentials != nullptr && !cluster_id.empty());
  MutexLock lock(&Process().mu);
  CHECK(Process().credentials != nullptr);
  Process().cluster_id = std::move(cluster_id);
  Process().credentials = std::move(credentials);
}

std::string ProcessClusterId() {
  MutexLock lock(&Process().mu);
  return Process().cluster_id;
}

void SetProcessClusterId(std::string cluster_id) {
  MutexLock lock(&Process().mu);
  CHECK(Process().credentials != nullptr && !cluster_id.empty());
  Process().cluster_id = std::move(cluster_id);
}

void RefuseNode(const std::string& node_id, const std::string& cluster_id) {
  Process().removed_peers->Refuse(node_id, cluster_id);
}

std::shared_ptr<grpc::ChannelCredentials> ProcessChannelCredentials(
    grpc::ChannelArguments* arguments) {
  const std::shared_ptr<const ClusterCredentials> credentials = Credentials();
  if (credentials == nullptr) return grpc::InsecureChannelCredentials();
  ExpectMember(arguments);
  return credentials->ForChannel();
}

std::shared_ptr<grpc::ServerCredentials> ProcessServerCredentials() {
  const std::shared_ptr<const ClusterCredentials> credentials = Credentials();
  if (credentials == nullptr) return grpc::InsecureServerCredentials();
  std::shared_ptr<grpc::ServerCredentials> made = credentials->ForServer();
  made->SetAuthMetadataProcessor(Process().removed_peers);
  return made;
}

void SetConnectionBounds(grpc::ServerBuilder* builder) {
  if (ThisProcessIsSecured()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kConnectionAgeMaxMs);
  }
}

}  // namespace strata
