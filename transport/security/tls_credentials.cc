#include "transport/security/tls_credentials.h"

#include <grpc/grpc_security_constants.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/support/channel_arguments.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

constexpr char kSuitesVariable[] = "GRPC_SSL_CIPHER_SUITES";
// Sets the suites of TLS 1.2; those of 1.3 stay. Never empty: OpenSSL refuses an empty list.
constexpr char kNoSuite[] = "PSK-AES256-GCM-SHA384";

// Before main(), because setenv() must not run beside another thread's getenv().
const bool kSuitesSet = setenv(kSuitesVariable, kNoSuite, 1) == 0;

// Sets the minimum version where gRPC's API has it, and checks the variable.
template <typename Options>
void ForbidOlderTls(Options* options) {
  if constexpr (requires { options->set_min_tls_version(grpc_tls_version::TLS1_3); }) {
    options->set_min_tls_version(grpc_tls_version::TLS1_3);
  }
  const char* suites = getenv(kSuitesVariable);
  CHECK(kSuitesSet && suites != nullptr && absl::string_view(suites) == kNoSuite)
      << kSuitesVariable << " was changed: TLS 1.2 is not forbidden";
}

absl::Status WriteFiles(const std::string& authorities_path, const std::string& node_path,
                        absl::Span<const std::string> authority_pems, const NodeCertificate& node) {
  if (authority_pems.empty()) {
    return absl::InvalidArgumentError("there is no authority to trust");
  }
  if (absl::Status status = WritePrivateFile(authorities_path, absl::StrJoin(authority_pems, ""),
                                             PrivateFileMode::kReplace);
      !status.ok()) {
    return status;
  }
  // Both in one file, so that no reader gets the one without the other.
  const Secret both(absl::StrCat(node.private_key_pem.Reveal(), node.certificate_pem));
  return WritePrivateFile(node_path, both.Reveal(), PrivateFileMode::kReplace);
}

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  }
  if (chmod(path.c_str(), S_IRWXU) != 0) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

// The property `name` of the certificate that `peer` has shown.
absl::StatusOr<std::string> OnlyProperty(const grpc::AuthContext& peer, const char* name) {
  const std::vector<grpc::string_ref> values = peer.FindPropertyValues(name);
  if (!peer.IsPeerAuthenticated() || values.size() != 1) {
    return absl::UnauthenticatedError("the peer has shown no certificate");
  }
  return std::string(values[0].data(), values[0].size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterCredentials>> ClusterCredentials::Create(
    const Options& options, absl::Span<const std::string> authority_pems,
    const NodeCertificate& node) {
  CHECK_GE(options.reread_s, 1u);
  if (absl::Status status = MakeFolder(options.folder); !status.ok()) return status;
  std::unique_ptr<ClusterCredentials> made(new ClusterCredentials(options.folder));
  made->owns_folder_ = true;
  if (absl::Status status = made->Replace(authority_pems, node); !status.ok()) return status;
  made->ReadFiles(options.reread_s);
  return made;
}

absl::StatusOr<std::unique_ptr<ClusterCredentials>> ClusterCredentials::Follow(
    const Options& options) {
  CHECK_GE(options.reread_s, 1u);
  std::unique_ptr<ClusterCredentials> made(new ClusterCredentials(options.folder));
  for (const std::string& path : {made->AuthoritiesPath(), made->NodePath()}) {
    if (const auto bytes = ReadPrivateFile(path); !bytes.ok()) return bytes.status();
  }
  made->ReadFiles(options.reread_s);
  return made;
}

std::unique_ptr<ClusterCredentials> ClusterCredentials::InMemory(
    absl::Span<const std::string> authority_pems, const NodeCertificate& node) {
  std::unique_ptr<ClusterCredentials> made(new ClusterCredentials(""));
  made->provider_ = std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      absl::StrJoin(authority_pems, ""),
      std::vector<grpc::experimental::IdentityKeyCertPair>{
          {node.private_key_pem.Reveal(), node.certificate_pem}});
  return made;
}

void ClusterCredentials::ReadFiles(uint32_t reread_s) {
  provider_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      NodePath(), NodePath(), AuthoritiesPath(), reread_s);
}

ClusterCredentials::~ClusterCredentials() {
  provider_.reset();
  RemoveFiles();
}

void ClusterCredentials::RemoveFiles() const {
  if (!owns_folder_) return;
  unlink(NodePath().c_str());
  unlink(AuthoritiesPath().c_str());
  rmdir(folder_.c_str());
}

absl::Status ClusterCredentials::Replace(absl::Span<const std::string> authority_pems,
                                         const NodeCertificate& node) {
  CHECK(owns_folder_);
  return WriteFiles(AuthoritiesPath(), NodePath(), authority_pems, node);
}

std::shared_ptr<grpc::ServerCredentials> ClusterCredentials::ForServer() const {
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ForbidOlderTls(&options);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ClusterCredentials::ForChannel() const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // gRPC's defaults, set explicitly because all security depends on them: the chain is verified,
  // and the expected name is one of the certificate's.
  options.set_verify_server_certs(true);
  options.set_certificate_verifier(
      std::make_shared<grpc::experimental::HostNameCertificateVerifier>());
  ForbidOlderTls(&options);
  return grpc::experimental::TlsCredentials(options);
}

void ExpectMember(grpc::ChannelArguments* arguments) {
  arguments->SetSslTargetNameOverride(std::string(kMemberName));
}

void ExpectNode(absl::string_view node_id, grpc::ChannelArguments* arguments) {
  arguments->SetSslTargetNameOverride(NodeName(node_id));
}

absl::StatusOr<std::string> PeerNodeId(const grpc::AuthContext& peer) {
  return OnlyProperty(peer, GRPC_X509_CN_PROPERTY_NAME);
}

absl::StatusOr<std::string> PeerClusterId(const grpc::AuthContext& peer) {
  const absl::StatusOr<std::string> pem = OnlyProperty(peer, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (!pem.ok()) return pem.status();
  return ClusterIdOf(*pem);
}

}  // namespace strata
