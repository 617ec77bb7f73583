// The models that a coordinator has placed, and for how long: loaded to stay (pinned), perhaps only
// while they are used (model_retention.h), or held by the leases of callers. A state machine
// without I/O, thread or clock. Not thread-safe.
//
// 18 public methods: ten look, the others are the steps of one life, from Put() to Remove().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/models/deployment.h"
#include "proto/coordinator.pb.h"
#include "transport/base/printable_text.h"

namespace strata {

class ModelTable {
 public:
  using DeploymentPtr = std::shared_ptr<Deployment>;  // shared with calls under way

  // Leases are numbered from there on: no two coordinators of a cluster give out the same.
  explicit ModelTable(uint64_t first_lease) : last_lease_(first_lease) {}

  // By model id.
  const std::map<std::string, DeploymentPtr>& models() const { return models_; }
  DeploymentPtr Get(const std::string& id) const;  // null: there is none
  bool Has(const DeploymentPtr& deployment) const;
  // By which no other model is known at present (model_match.h).
  PrintableText ShownName(const DeploymentPtr& deployment) const;
  // The one that `model` means: name, path or start of its id; empty: the only one. kNotFound and
  // kInvalidArgument (several) list those there are.
  absl::StatusOr<DeploymentPtr> Find(const std::string& model) const;
  // A model lost a stage, and its layers are placed again.
  bool AnyRecovering() const;

  // `next` takes the place of `before`, and has its pin and its leases. False: `before` is not
  // there any more.
  bool Replace(const DeploymentPtr& before, const DeploymentPtr& next);
  // REQUIRES: it is not there, or what is there has failed to load.
  void Put(const DeploymentPtr& deployment) { models_[deployment->model_id()] = deployment; }
  // With its pin and its leases. False: it was not there.
  bool Remove(const DeploymentPtr& deployment);
  // All of them, when the role goes.
  std::vector<DeploymentPtr> Clear();
  bool is_empty() const { return models_.empty() && leases_.empty() && pins_.empty(); }

  // A lease of what is there, if the request holds it and it does not stay by itself; else it is
  // pinned. Returns the lease; 0: it stays. Nothing: it is not there any more.
  std::optional<uint64_t> Join(const DeploymentPtr& there, const wire::LoadModelRequest& request);
  // The same for one that was just loaded. It may be gone already: then the lease is of nothing.
  uint64_t OnLoaded(const DeploymentPtr& loaded, bool hold);
  bool HasLease(uint64_t lease) const;
  bool IsHeld(const std::string& id) const { return leases_.contains(id); }
  // Takes it out if that was its last lease and it is not pinned, and returns it; else null.
  DeploymentPtr Release(uint64_t lease);
  // It stays for so long without requests, as of LoadModelRequest. False: nothing changes, as it
  // does for a model that is not pinned, or that is protected from making room.
  bool SetKeepAlive(const std::string& id, int64_t keep_alive_ms);
  // By id, of all pinned models: the request that loads the model again.
  const std::map<std::string, wire::LoadModelRequest>& pins() const { return pins_; }

 private:
  void Pin(const DeploymentPtr& deployment);
  // Another load asks for a pinned model: it stays for the longer time of both, and is protected
  // from making room for others where one of them protects it.
  void Extend(const std::string& id, const wire::LoadModelRequest& request);

  std::map<std::string, DeploymentPtr> models_;
  std::map<std::string, wire::LoadModelRequest> pins_;
  // A pinned model has some where it would else go when it is idle.
  std::map<std::string, std::set<uint64_t>> leases_;
  uint64_t last_lease_;
};

}  // namespace strata
