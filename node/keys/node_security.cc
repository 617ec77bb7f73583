#include "node/keys/node_security.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "node/base/data_dir.h"
#include "node/keys/key_file.h"
#include "transport/base/node_id.h"
#include "transport/rpc/process_security.h"
#include "transport/security/private_file.h"
#include "transport/security/tls_credentials.h"

namespace strata {
namespace {

// More than one while the key changes; more than two after a change that failed.
constexpr size_t kTrustedKeysMax = 8;

// How long a changed key counts as new: nodes take it, and read it again (tls_credentials.h).
constexpr std::chrono::seconds kKeyIsNew(10);

absl::StatusOr<std::string> KeyPath(const KeyOptions& options, const std::string& data_dir) {
  if (!options.file.empty()) return options.file;
  const absl::StatusOr<std::string> folder = DataDir::PathOf(data_dir);
  if (!folder.ok()) return absl::NotFoundError(folder.status().message());
  return KeyFilePath(*folder);
}

absl::StatusOr<std::shared_ptr<const ClusterCredentials>> ClientCredentials(const ClusterKey& key) {
  const absl::StatusOr<ClusterAuthority> authority = ClusterAuthority::Of(key);
  if (!authority.ok()) return authority.status();
  const absl::StatusOr<NodeCertificate> certificate = authority->Issue({.node_id = NewNodeId()});
  if (!certificate.ok()) return certificate.status();
  return ClusterCredentials::InMemory({authority->certificate_pem()}, *certificate);
}

}  // namespace

absl::StatusOr<ClusterKey> FindKey(const KeyOptions& options, const std::string& data_dir) {
  const absl::StatusOr<std::string> path = KeyPath(options, data_dir);
  if (!path.ok()) return path.status();
  return ReadKeyFile(*path);
}

absl::Status SecureClient(const KeyOptions& options, const std::string& data_dir) {
  if (options.open || ThisProcessIsSecured()) return absl::OkStatus();
  const absl::StatusOr<ClusterKey> key = FindKey(options, data_dir);
  if (absl::IsNotFound(key.status()) && options.file.empty()) return absl::OkStatus();
  if (!key.ok()) return key.status();
  return SecureClient(*key);
}

absl::Status SecureClient(const ClusterKey& key) {
  auto credentials = ClientCredentials(key);
  if (!credentials.ok()) return credentials.status();
  SecureThisProcess(key.id(), *std::move(credentials));
  return absl::OkStatus();
}

bool SecureClientAnew(const KeyOptions& options, const std::string& data_dir) {
  if (options.open || !ThisProcessIsSecured()) return false;
  const absl::StatusOr<std::string> path = KeyPath(options, data_dir);
  if (!path.ok()) return false;
  std::error_code error;
  const auto written = std::filesystem::last_write_time(*path, error);
  const auto age = std::filesystem::file_time_type::clock::now() - written;
  if (error || age < age.zero() || age > kKeyIsNew) return false;
  const absl::StatusOr<ClusterKey> key = ReadKeyFile(*path);
  if (!key.ok() || key->id() == ProcessClusterId()) return true;
  auto credentials = ClientCredentials(*key);
  if (credentials.ok()) ReplaceProcessCredentials(key->id(), *std::move(credentials));
  return true;
}

absl::StatusOr<std::unique_ptr<NodeSecurity>> NodeSecurity::Start(ClusterKey key, Options options) {
  if (options.folder.empty()) {
    absl::StatusOr<std::string> folder = NewPrivateFolder();
    if (!folder.ok()) return folder.status();
    options.folder = *std::move(folder);
  }
  absl::StatusOr<ClusterAuthority> authority = ClusterAuthority::Of(key);
  if (!authority.ok()) return authority.status();
  std::unique_ptr<NodeSecurity> made(
      new NodeSecurity({std::move(key), *std::move(authority)}, std::move(options)));
  const ClusterAuthority& first = made->keys_.front().authority;
  absl::StatusOr<NodeCertificate> certificate = first.Issue({.node_id = made->options_.node_id});
  if (!certificate.ok()) return certificate.status();
  made->certificate_ = *std::move(certificate);
  auto credentials = ClusterCredentials::Create({.folder = made->folder()},
                                                {first.certificate_pem()}, made->certificate_);
  if (!credentials.ok()) return credentials.status();
  made->credentials_ = *std::move(credentials);
  SecureThisProcess(made->cluster_id(), made->credentials_);
  return made;
}

NodeSecurity::NodeSecurity(TrustedKey first, Options options) : options_(std::move(options)) {
  keys_.push_back(std::move(first));
}

NodeSecurity::~NodeSecurity() {
  if (credentials_ != nullptr) credentials_->RemoveFiles();
}

absl::Status NodeSecurity::PublishCertificates(const NodeCertificate& certificate, size_t n) {
  std::vector<std::string> authorities;
  for (size_t i = 0; i < n; ++i) authorities.push_back(keys_[i].authority.certificate_pem());
  return credentials_->Replace(authorities, certificate);
}

absl::Status NodeSecurity::Trust(ClusterKey next) {
  const bool is_known =
      absl::c_any_of(keys_, [&](const TrustedKey& each) { return each.key.id() == next.id(); });
  if (is_known) return absl::OkStatus();
  if (keys_.size() >= kTrustedKeysMax) {
    return absl::ResourceExhaustedError(
        "several changes of the key have failed; restart this node");
  }
  if (!options_.key_path.empty()) {
    if (auto status = CheckKeyFileCanChange(options_.key_path); !status.ok()) return status;
  }
  absl::StatusOr<ClusterAuthority> authority = ClusterAuthority::Of(next);
  if (!authority.ok()) return authority.status();
  keys_.push_back({std::move(next), *std::move(authority)});
  const absl::Status status = PublishCertificates(certificate_, keys_.size());
  if (!status.ok()) keys_.pop_back();
  return status;
}

absl::Status NodeSecurity::CommitKey(const std::string& key_id) {
  const auto found =
      absl::c_find_if(keys_, [&](const TrustedKey& each) { return each.key.id() == key_id; });
  if (found == keys_.end()) return absl::NotFoundError("this node does not know the new key");
  if (found == keys_.begin()) return absl::OkStatus();
  absl::StatusOr<NodeCertificate> certificate =
      found->authority.Issue({.node_id = options_.node_id});
  if (!certificate.ok()) return certificate.status();
  // The file first: a node that restarts with the old key could reach no other.
  if (!options_.key_path.empty()) {
    if (auto status = ReplaceKeyFile(options_.key_path, found->key); !status.ok()) return status;
  }
  if (auto status = PublishCertificates(*certificate, keys_.size()); !status.ok()) return status;
  certificate_ = *std::move(certificate);
  std::rotate(keys_.begin(), found, std::next(found));
  SetProcessClusterId(cluster_id());
  return absl::OkStatus();
}

absl::Status NodeSecurity::ForgetOthers() {
  if (auto status = PublishCertificates(certificate_, 1); !status.ok()) return status;
  keys_.erase(std::next(keys_.begin()), keys_.end());
  return absl::OkStatus();
}

absl::Status NodeSecurity::Forget(const std::string& key_id) {
  if (key_id == cluster_id()) return absl::FailedPreconditionError("this is the cluster's key");
  std::erase_if(keys_, [&](const TrustedKey& each) { return each.key.id() == key_id; });
  return PublishCertificates(certificate_, keys_.size());
}

}  // namespace strata
