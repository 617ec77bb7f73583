// How nodes of one cluster authenticate each other: gRPC credentials for TLS 1.3 (RFC 8446) with
// certificates of the cluster's authority on both sides (cluster_certificates.h).
//
//   auto tls = ClusterCredentials::Create({.folder = data_dir + "/tls"},
//                                         {authority.certificate_pem()}, node_certificate);
//   builder.AddListeningPort(address, (*tls)->ForServer(), &port);
//   ExpectMember(&channel_arguments);   // or ExpectNode(node_id, …)
//   grpc::CreateCustomChannel(address, (*tls)->ForChannel(), channel_arguments);
//
// The dialling side checks that the peer has a certificate of an authority that it trusts, with the
// name that it expects; a channel that expects no name compares with the address it dials, which no
// certificate has, and fails. The accepting side checks that the peer showed a certificate of the
// authority; PeerNodeId() returns whose. Nothing is ever sent or accepted unencrypted.
//
// Limits of gRPC 1.51, and their workarounds:
// - It has no public API to forbid TLS 1.2. The suites of 1.2 are set by the environment variable
//   GRPC_SSL_CIPHER_SUITES, read once: a program that links this file sets it before main() to a
//   suite of pre-shared keys, which gRPC never has, so a handshake of 1.2 finds no suite. (For
//   later versions it is forbidden by their API as well.) No other TLS of gRPC's in the process can
//   use 1.2 either.
// - Certificates change without a restart only where they are read from files, by a thread that
//   checks each `reread_s`. So the node's certificate and private key are in a folder that only its
//   owner can read.
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
    // Used by this object alone: made if missing, with mode 0700; destruction removes its files.
    // Files left by a process that died are overwritten.
    std::string folder;
    uint32_t reread_s = 1;  // at least 1
  };
  // `authority_pems`: the trusted authorities; more than one while a cluster changes its key.
  // Errors are the file system's and name the file; kInvalidArgument: no authority. Blocks on the
  // disk.
  static absl::StatusOr<std::unique_ptr<ClusterCredentials>> Create(
      const Options& options, absl::Span<const std::string> authority_pems,
      const NodeCertificate& node);
  // Follows the folder that another process has made and keeps: its replacements take effect here.
  // Errors are ReadPrivateFile()'s.
  static absl::StatusOr<std::unique_ptr<ClusterCredentials>> Follow(const Options& options);
  // Without a folder, for programs that end before their certificate expires.
  static std::unique_ptr<ClusterCredentials> InMemory(absl::Span<const std::string> authority_pems,
                                                      const NodeCertificate& node);
  ~ClusterCredentials();
  ClusterCredentials(const ClusterCredentials&) = delete;
  ClusterCredentials& operator=(const ClusterCredentials&) = delete;

  // REQUIRES: made by Create(). Takes effect for connections that begin `reread_s` later; existing
  // connections stay. First trust a new authority, then show its certificates. Errors as
  // Create()'s: the old files are then still in use. Blocks on the disk.
  absl::Status Replace(absl::Span<const std::string> authority_pems, const NodeCertificate& node);

  // For those of Create(): removes the files and the folder, as destruction does; no connection can
  // begin afterwards.
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
  // Shared only with copies of options.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

// A channel made with these arguments accepts any node of the cluster at the other end, or only
// one.
void ExpectMember(grpc::ChannelArguments* arguments);
void ExpectNode(absl::string_view node_id, grpc::ChannelArguments* arguments);

// The node at the other end, from ServerContext::auth_context() or ClientContext's: the id in its
// certificate, which the cluster's authority has signed. kUnauthenticated: the connection has no
// TLS.
absl::StatusOr<std::string> PeerNodeId(const grpc::AuthContext& peer);
// The id of the cluster's key that its certificate comes from; errors as above.
absl::StatusOr<std::string> PeerClusterId(const grpc::AuthContext& peer);

}  // namespace strata
