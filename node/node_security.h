// The cluster's key at work in this process: from it come the certificates with which all of its
// channels and servers prove themselves (transport/process_security.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/cluster_certificates.h"
#include "transport/cluster_key.h"
#include "transport/event_loop.h"

namespace strata {

class ClusterCredentials;

// What a person says of the key, to a node and to the verbs that ask one.
struct KeyOptions {
  bool open = false;  // none: everybody who reaches a port of ours may use it
  std::string file;   // empty: KeyFilePath() of the data dir
};

// For what nobody else may read and is needed for a while: whoever made it removes it.
absl::StatusOr<std::string> NewPrivateFolder();

// Of the options and the data dir, which may not be there. kNotFound: there is no key; else as
// ReadKeyFile(). Blocks on the disk.
absl::StatusOr<ClusterKey> FindKey(const KeyOptions& options, const std::string& data_dir);

// For a program that asks nodes and ends: all that it dials is TLS where there is a key, plain
// where there is none. Once in a process, then it does nothing. An error is FindKey()'s, but no
// kNotFound unless the file was named.
absl::Status SecureClient(const KeyOptions& options, const std::string& data_dir);
// With that key.
absl::Status SecureClient(const ClusterKey& key);

// A node's: its certificates lie in a folder, where its workers read them too.
class NodeSecurity {
 public:
  struct Options {
    std::string node_id;
    std::string folder;  // for the certificates; of this node alone. Empty: a new one
  };
  // From here on the process is secured. `loop` outlives it. Blocks on the disk; errors name the
  // file.
  static absl::StatusOr<std::unique_ptr<NodeSecurity>> Start(EventLoop* loop, ClusterKey key,
                                                             Options options);
  // After the node's servers have shut down.
  ~NodeSecurity();

  const std::string& cluster_id() const { return key_.id(); }
  const std::string& folder() const { return options_.folder; }

 private:
  NodeSecurity(ClusterKey key, ClusterAuthority authority, Options options);
  void RenewIfDue();

  const ClusterKey key_;
  const ClusterAuthority authority_;
  const Options options_;
  NodeCertificate certificate_;
  std::shared_ptr<ClusterCredentials> credentials_;  // shared with the process
  std::unique_ptr<EventLoop::Handle> renewal_;
};

}  // namespace strata
