// A filter before each call to a server: connections outlive a change of the cluster's key, and a
// node that was removed by the change still has some. Thread-safe.
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "transport/base/mutex.h"

namespace strata {

class RemovedPeerFilter final : public grpc::AuthMetadataProcessor {
 public:
  // From now on that node is refused (kPermissionDenied) where it shows a certificate of
  // `cluster_id`, the cluster's key at its removal. With the new key it is a member like any other.
  void Refuse(const std::string& node_id, const std::string& cluster_id);

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                       OutputMetadata* consumed, OutputMetadata* answer) override;

 private:
  struct Removal {
    std::string cluster_id;
    bool is_logged = false;
  };
  Mutex mu_;
  std::map<std::string, Removal> removals_ ABSL_GUARDED_BY(mu_);  // by node id
};

}  // namespace strata
