// How nodes of one cluster know each other when they connect: gRPC credentials for TLS 1.3 (RFC
// 8446) with certificates of the cluster's authority on both sides (cluster_certificates.h).
//
//   auto tls = ClusterCredentials::Create({.folder = data_dir + "/tls"},
//                                         {authority.certificate_pem()}, node_certificate);
//   builder.AddListeningPort(address, (*tls)->ForServer(), &port);
//   ExpectMember(&channel_arguments);   // or ExpectNode(node_id, …)
//   grpc::CreateCustomChannel(address, (*tls)->ForChannel(), channel_arguments);
//
// Who dials sees that whoever answers has a certificate of an authority that it trusts, with the
// name that it expects; a channel that expects nothing compares with the address it dials, which no
// certificate has, and fails. Who answers sees that a certificate of the authority was shown; whose
// is PeerNodeId()'s answer. Nothing is ever sent or taken in plain text.
//
// Limits of gRPC 1.51, and what is done about them:
// - It has no public way to forbid TLS 1.2. What a channel or server would take of 1.2 is set by
//   the environment variable GRPC_SSL_CIPHER_SUITES, read once: a program that has this file
//   linked in sets it before main() to a suite of pre-shared keys, which gRPC never has, so a
//   handshake of 1.2 finds no suite. (Later versions are told directly as well.) No other TLS of
//   gRPC's in the process can use 1.2 either.
// - Certificates change without a restart only where they are read from files, by a thread that
//   looks each `reread_s`. So the node's certificate and private key lie in a folder that is its
//   owner's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/security/cluster_certificates.h"

namespace grpc {
class AuthContext;
class ChannelArguments;
class ChannelCredentials;
class ServerCredentials;
namespace experimental {
class CertificateProviderInterface;
}
}  // namespace grpc

namespace strata {

// Thread-safe. Outlives every channel and server made with its credentials, unless it is in memory.
class ClusterCredentials {
 public:
  struct Options {
    // Of this object alone: made if it is not there, with mode 0700, and emptied of its files at
    // the end. What a process that died left there is written over.
    std::string folder;
    uint32_t reread_s = 1;  // at least 1
  };
  // `authority_pems`: whom to trust; more than one while a cluster changes its key. Errors are the
  // file system's and name the file; kInvalidArgument: nobody to trust. Blocks on the disk.
  static absl::StatusOr<std::unique_ptr<ClusterCredentials>> Create(
      const Options& options, absl::Span<const std::string> authority_pems,
      const NodeCertificate& node);
  // Of the folder that another process has made, and keeps: what it replaces is seen here. Errors
  // are ReadPrivateFile()'s.
  static absl::StatusOr<std::unique_ptr<ClusterCredentials>> Follow(const Options& options);
  // Without a folder, for programs that end before a certificate does.
  static std::unique_ptr<ClusterCredentials> InMemory(absl::Span<const std::string> authority_pems,
                                                      const NodeCertificate& node);
  ~ClusterCredentials();
  ClusterCredentials(const ClusterCredentials&) = delete;
  ClusterCredentials& operator=(const ClusterCredentials&) = delete;

  // Of Create()'s. For connections that begin from `reread_s` after this on; those that stand stay.
  // Trusting a new authority comes first, showing its certificates second. Errors as Create()'s:
  // what there was is still good. Blocks on the disk.
  absl::Status Replace(absl::Span<const std::string> authority_pems, const NodeCertificate& node);

  // Of Create()'s: its files and folder go, as when it is destroyed; no connection begins any more.
  void RemoveFiles() const;

  std::shared_ptr<grpc::ServerCredentials> ForServer() const;
  std::shared_ptr<grpc::ChannelCredentials> ForChannel() const;

 private:
  explicit ClusterCredentials(std::string folder) : folder_(std::move(folder)) {}
  void ReadFiles(uint32_t reread_s);
  std::string AuthoritiesPath() const { return folder_ + "/authorities.pem"; }
  std::string NodePath() const { return folder_ + "/node.pem"; }

  const std::string folder_;  // empty: in memory
  bool owns_folder_ = false;
  // Shared with nobody but copies of options.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

// A channel made with these arguments takes any node of the cluster at the other end, or only one.
void ExpectMember(grpc::ChannelArguments* arguments);
void ExpectNode(absl::string_view node_id, grpc::ChannelArguments* arguments);

// The node at the other end, of ServerContext::auth_context() or ClientContext's: what its
// certificate says, which the cluster's authority has signed. kUnauthenticated where there is none:
// the connection has no TLS.
absl::StatusOr<std::string> PeerNodeId(const grpc::AuthContext& peer);
// The id of the cluster's key that its certificate comes from; the same.
absl::StatusOr<std::string> PeerClusterId(const grpc::AuthContext& peer);

}  // namespace strata
