// The cluster's key at work in this process: from it come the certificates with which all of its
// channels and servers prove themselves (transport/rpc/process_security.h).
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

// What a person says of the key, to a node and to the verbs that ask one.
struct KeyOptions {
  bool open = false;  // none: everybody who reaches a port of ours may use it
  std::string file;   // empty: KeyFilePath() of the data dir
};

// Of the options and the data dir, which may not be there. kNotFound: there is no key; else as
// ReadKeyFile(). Blocks on the disk.
absl::StatusOr<ClusterKey> FindKey(const KeyOptions& options, const std::string& data_dir);

// For a program that asks nodes and ends: all that it dials is TLS where there is a key, plain
// where there is none. Once in a process, then it does nothing. An error is FindKey()'s, but no
// kNotFound unless the file was named.
absl::Status SecureClient(const KeyOptions& options, const std::string& data_dir);
// With that key.
absl::Status SecureClient(const ClusterKey& key);
// Whether the key's file was written within the last seconds: then nodes may show certificates of
// the key before, or not any more, and it is worth another try. Reads the file again.
bool SecureClientAnew(const KeyOptions& options, const std::string& data_dir);

// A node's: its certificates lie in a folder, where its workers read them too. The key may change
// while the node runs (key_change.h). Loop thread.
class NodeSecurity {
 public:
  struct Options {
    std::string node_id;
    std::string folder;    // for the certificates; of this node alone. Empty: a new one
    std::string key_path;  // where the key is kept, and the next one will be; empty: nowhere
  };
  // From here on the process is secured. Blocks on the disk; errors name the file.
  static absl::StatusOr<std::unique_ptr<NodeSecurity>> Start(ClusterKey key, Options options);
  // After the node's servers have shut down.
  ~NodeSecurity();

  const std::string& cluster_id() const { return keys_.front().key.id(); }
  const std::string& folder() const { return options_.folder; }

  // The key's change, of which connections that begin a second later hear. Errors are the file
  // system's and name the file; what there was is good then.
  //
  // Takes members in that have `next`, too. kResourceExhausted: too many keys are trusted at once.
  absl::Status Trust(ClusterKey next);
  // Keeps that one, which is trusted, as the cluster's, and shows its certificates. kNotFound: it
  // is not trusted.
  absl::Status Use(const std::string& key_id);
  // Trusts no other key than the cluster's any more; nor that one, which is not the cluster's.
  absl::Status ForgetOthers();
  absl::Status Forget(const std::string& key_id);

 private:
  struct Trusted {
    ClusterKey key;
    ClusterAuthority authority;
  };
  NodeSecurity(Trusted first, Options options);
  // Shows `certificate` and trusts the first `n` of keys_.
  absl::Status Show(const NodeCertificate& certificate, size_t n);

  const Options options_;
  std::vector<Trusted> keys_;  // the cluster's first
  NodeCertificate certificate_;
  std::shared_ptr<ClusterCredentials> credentials_;  // shared with the process
};

}  // namespace strata
