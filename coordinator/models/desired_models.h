// The models that are decided to stay loaded, from the decision until all disks have it; and
// those that a coordinator is to load and unload when it learns of a newer desired state. A state
// machine without I/O, thread or clock. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/membership/membership_types.h"
#include "coordinator/models/model_table.h"
#include "coordinator/models/reload_queue.h"
#include "proto/coordinator.pb.h"

namespace strata {

// By model id; what is no request is left out.
std::map<std::string, wire::LoadModelRequest> ModelsOf(const DesiredState& desired);
// Whether a model that is loaded by that request is to stay when its caller has gone: until it is
// unloaded, or idle for its keep-alive.
bool StaysLoaded(const wire::LoadModelRequest& request);

class DesiredModels {
 public:
  // A model is to stay, with the request that loads it again; or is to stay no more.
  void Keep(const wire::LoadModelRequest& origin) { Decide(origin.model_id(), origin); }
  void Drop(const std::string& id) { Decide(id, std::nullopt); }
  // The role has gone: decisions that are in no desired state yet are lost.
  void Forget();

  // The models of the next desired state. Nothing: no decision changes it.
  std::optional<std::vector<std::string>> Next(const DesiredState& desired);
  // All disks have the present desired state.
  void OnStored();
  // Of the last decision; and of the last that all disks have, or that is lost.
  uint64_t decided() const { return decided_; }
  uint64_t stored() const { return stored_; }

  // The desired state is `desired`. Takes models that are pinned and not in it out of `models`, and
  // returns them: they are to be unloaded. Those that are in it and not there are in `reloads`
  // then, at most until there are `entries_max`, and no others.
  struct Followed {
    std::vector<ModelTable::DeploymentPtr> unloads;
    bool reloads = false;  // there are some to be tried
  };
  Followed Follow(const DesiredState& desired, size_t entries_max, ModelTable* models,
                  ReloadQueue* reloads) const;

 private:
  void Decide(const std::string& id, std::optional<wire::LoadModelRequest> origin);

  std::map<std::string, std::optional<wire::LoadModelRequest>> pending_;  // by id; nothing: unload
  uint64_t decided_ = 0, applied_ = 0, stored_ = 0;
};

}  // namespace strata
