// Models that are to stay loaded and are not: those of a coordinator that has gone, of a cluster
// that was off, and those that were lost in a way that a recovery cannot repair. They are tried
// until they are loaded or somebody unloads them. A state machine without I/O, thread or clock. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "coordinator/models/model_table.h"
#include "proto/coordinator.pb.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"

namespace strata {

class ReloadQueue {
 public:
  struct Entry {
    wire::LoadModelRequest request;
    absl::Status why;  // the last try failed so; OK: it has not been tried

    PrintableText Name() const;
    absl::Status WhyNotHere() const;  // for a request for it
    // Nothing has changed since the last try, and yet another one may succeed.
    bool MayLoadLater() const { return !absl::IsInvalidArgument(why); }
  };
  // By model id.
  const std::map<std::string, Entry>& entries() const { return entries_; }

  // After Forget() and until Learn(): it is not known which models are to stay loaded.
  bool is_unknown() const { return is_unknown_; }
  // Adds models, by id, but those that are there already or that `models` has; at most until there
  // are `entries_max`. True: there are some to be tried.
  bool Learn(std::map<std::string, wire::LoadModelRequest> reloads, const ModelTable& models,
             size_t entries_max);
  // This node is new, or the role has gone from it.
  void Forget();

  void Add(const std::string& id, wire::LoadModelRequest request, const absl::Status& why);
  // It was tried. OK: it is loaded, and leaves the queue.
  void OnTried(const std::string& id, const absl::Status& status);
  void Remove(const std::string& id) { entries_.erase(id); }
  // The id of the one entry that `model`, a name, path or start of an id, means; none or several:
  // nothing.
  std::optional<std::string> Match(const std::string& model) const;
  // Why `model` is not here, if it is an entry. OK: it is not.
  absl::Status WhyNotHere(const std::string& model) const;
  // Some are not known yet, or not tried.
  bool MayLoadSoon() const;

  // Stages that the next plan of a model may keep are not reclaimed: of all entries, of models that
  // are being loaded again, and until `until` of those whose holders are about to ask for them.
  void BeginLoad(const std::string& id) { loading_.insert(id); }
  void EndLoad(const std::string& id) { loading_.erase(loading_.find(id)); }
  void Hold(const std::string& id, SteadyTime until) { held_[id] = until; }
  std::set<std::string> KeptIds(SteadyTime now);

 private:
  bool is_unknown_ = false;
  std::map<std::string, Entry> entries_;
  std::multiset<std::string> loading_;
  std::map<std::string, SteadyTime> held_;
};

}  // namespace strata
