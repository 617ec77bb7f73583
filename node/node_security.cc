#include "node/node_security.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "node/data_dir.h"
#include "node/key_file.h"
#include "transport/process_security.h"
#include "transport/tls_credentials.h"

namespace strata {
namespace {

// Certificates are good for a month.
constexpr uint64_t kRenewalLookMs = 3'600'000;

}  // namespace

absl::StatusOr<std::string> NewPrivateFolder() {
  std::error_code error;
  const std::string temporary = std::filesystem::temp_directory_path(error).string();
  // First in memory, where keys leave nothing on a disk.
  for (const std::string& parent : {std::string("/dev/shm"), temporary, std::string("/tmp")}) {
    std::string made = parent + "/strata-XXXXXX";
    if (!parent.empty() && mkdtemp(made.data()) != nullptr) return made;
  }
  return absl::ErrnoToStatus(errno, "no folder for certificates can be made, not even in /tmp");
}

absl::StatusOr<ClusterKey> FindKey(const KeyOptions& options, const std::string& data_dir) {
  if (!options.file.empty()) return ReadKeyFile(options.file);
  const absl::StatusOr<std::string> folder = DataDir::PathOf(data_dir);
  if (!folder.ok()) return absl::NotFoundError(folder.status().message());
  return ReadKeyFile(KeyFilePath(*folder));
}

absl::Status SecureClient(const KeyOptions& options, const std::string& data_dir) {
  if (options.open || ThisProcessIsSecured()) return absl::OkStatus();
  const absl::StatusOr<ClusterKey> key = FindKey(options, data_dir);
  if (absl::IsNotFound(key.status()) && options.file.empty()) return absl::OkStatus();
  if (!key.ok()) return key.status();
  return SecureClient(*key);
}

absl::Status SecureClient(const ClusterKey& key) {
  const absl::StatusOr<ClusterAuthority> authority = ClusterAuthority::Of(key);
  if (!authority.ok()) return authority.status();
  const absl::StatusOr<NodeCertificate> certificate = authority->Issue({.node_id = NewNodeId()});
  if (!certificate.ok()) return certificate.status();
  SecureThisProcess(key.id(),
                    ClusterCredentials::InMemory({authority->certificate_pem()}, *certificate));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<NodeSecurity>> NodeSecurity::Start(EventLoop* loop, ClusterKey key,
                                                                  Options options) {
  if (options.folder.empty()) {
    absl::StatusOr<std::string> folder = NewPrivateFolder();
    if (!folder.ok()) return folder.status();
    options.folder = *std::move(folder);
  }
  absl::StatusOr<ClusterAuthority> authority = ClusterAuthority::Of(key);
  if (!authority.ok()) return authority.status();
  std::unique_ptr<NodeSecurity> made(
      new NodeSecurity(std::move(key), *std::move(authority), std::move(options)));
  absl::StatusOr<NodeCertificate> certificate =
      made->authority_.Issue({.node_id = made->options_.node_id});
  if (!certificate.ok()) return certificate.status();
  made->certificate_ = *std::move(certificate);
  auto credentials = ClusterCredentials::Create(
      {.folder = made->folder()}, {made->authority_.certificate_pem()}, made->certificate_);
  if (!credentials.ok()) return credentials.status();
  made->credentials_ = *std::move(credentials);
  SecureThisProcess(made->cluster_id(), made->credentials_);
  made->renewal_ = loop->StartTimer({.delay_ms = kRenewalLookMs, .repeat_ms = kRenewalLookMs},
                                    [node = made.get()] { node->RenewIfDue(); });
  return made;
}

NodeSecurity::NodeSecurity(ClusterKey key, ClusterAuthority authority, Options options)
    : key_(std::move(key)), authority_(std::move(authority)), options_(std::move(options)) {}

NodeSecurity::~NodeSecurity() {
  if (credentials_ != nullptr) credentials_->RemoveFiles();
}

void NodeSecurity::RenewIfDue() {
  if (!certificate_.RenewalDue(absl::Now())) return;
  absl::StatusOr<NodeCertificate> certificate = authority_.Issue({.node_id = options_.node_id});
  absl::Status status = certificate.status();
  if (status.ok()) status = credentials_->Replace({authority_.certificate_pem()}, *certificate);
  if (status.ok()) {
    certificate_ = *std::move(certificate);
  } else {
    LOG(ERROR) << "this node's certificate ends on "
               << absl::FormatTime("%Y-%m-%d", certificate_.not_after, absl::LocalTimeZone())
               << " and cannot be renewed: " << status.message();
  }
}

}  // namespace strata
