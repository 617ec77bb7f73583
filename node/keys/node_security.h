// The use of the cluster's key in this process: the key issues the certificates with which all of
// its channels and servers authenticate (transport/rpc/process_security.h).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/security/cluster_certificates.h"
#include "transport/security/cluster_key.h"

namespace strata {

class ClusterCredentials;

// The options about the key, of a node and of the verbs that call one.
struct KeyOptions {
  bool open = false;  // no key: anybody who can connect may use the node
  std::string file;   // empty: KeyFilePath() of the data dir
};

// Reads the key by the options and the data dir, which may be missing. kNotFound: there is no key;
// else the errors of ReadKeyFile(). Blocks on the disk.
absl::StatusOr<ClusterKey> FindKey(const KeyOptions& options, const std::string& data_dir);

// For a program that calls nodes and ends: it dials with TLS if there is a key, in plain text if
// there is none. Only the first call in a process has an effect. The errors of FindKey(), but
// kNotFound only if the file was named.
absl::Status SecureClient(const KeyOptions& options, const std::string& data_dir);
// The same with `key`.
absl::Status SecureClient(const ClusterKey& key);
// True if the key's file was written within the last seconds: some nodes may still show
// certificates of the old key, or no longer, and a retry is worthwhile. Reads the file again.
bool SecureClientAnew(const KeyOptions& options, const std::string& data_dir);

// The security of a node: its certificates are in a folder, where its workers read them too. The
// key may change while the node runs (node/rpc/key_service.h). Loop thread.
class NodeSecurity {
 public:
  struct Options {
    std::string node_id;
    std::string folder;    // for the certificates of this node alone; empty: a new one
    std::string key_path;  // where this key and the next one are stored; empty: nowhere
  };
  // Secures the process from now on. Blocks on the disk; errors name the file.
  static absl::StatusOr<std::unique_ptr<NodeSecurity>> Start(ClusterKey key, Options options);
  // REQUIRES: the node's servers have shut down.
  ~NodeSecurity();

  const std::string& cluster_id() const { return keys_.front().key.id(); }
  const std::string& folder() const { return options_.folder; }

  // The steps of a change of the key, which apply to connections that begin a second later. Errors
  // are the file system's and name the file; the state before stays valid then.
  //
  // Accepts members that have `next`, too. kResourceExhausted: too many keys are trusted at once.
  absl::Status Trust(ClusterKey next);
  // Makes that trusted key the cluster's: stores it, and shows its certificates. kNotFound: it is
  // not trusted.
  absl::Status CommitKey(const std::string& key_id);
  // Stops to trust all keys but the cluster's; or the one of `key_id`, which is not the cluster's.
  absl::Status ForgetOthers();
  absl::Status Forget(const std::string& key_id);

 private:
  struct TrustedKey {
    ClusterKey key;
    ClusterAuthority authority;
  };
  NodeSecurity(TrustedKey first, Options options);
  // Shows `certificate` and trusts the first `n` of keys_.
  absl::Status PublishCertificates(const NodeCertificate& certificate, size_t n);

  const Options options_;
  std::vector<TrustedKey> keys_;  // the cluster's first
  NodeCertificate certificate_;
  std::shared_ptr<ClusterCredentials> credentials_;  // shared with the process
};

}  // namespace strata
