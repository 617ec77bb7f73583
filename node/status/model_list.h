// The models that a cluster or this machine has, in one list, each with whether the cluster can run
// it. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/models/cluster_snapshot.h"
#include "nlohmann/json.hpp"
#include "node/hub/local_models.h"
#include "proto/coordinator.pb.h"

namespace strata {

// Whether a cluster can run a model.
struct ModelFit {
  enum class Kind { kUnknown, kFits, kDoesNotFit };
  Kind kind = Kind::kUnknown;
  double tokens_per_second = 0;  // predicted, of one request; 0: unknown
  uint64_t n_ctx = 0;            // the context that it gets; 0: unknown
  uint64_t n_ctx_max = 0;        // that it was made for; 0: unknown
  uint64_t missing_bytes = 0;    // of memory; 0: unknown
  std::string why;               // of kDoesNotFit and kUnknown, one line
};
// As the planner says.
ModelFit FitOf(const absl::StatusOr<wire::PlanExplained>& plan);
// "yes, 12.3 tokens/s", "no: 3.2 GiB missing", "?".
std::string FitText(const ModelFit& fit);

// Memory that the nodes have free, each device once, and what of it a model may have; the rest is
// for its caches and activations. 0: nobody knows.
struct ModelRoom {
  uint64_t free_bytes = 0;
  uint64_t model_bytes = 0;
};
ModelRoom RoomForModels(const ClusterSnapshot& report);

struct ListedModel {
  // Where it is.
  struct Copy {
    std::string node_id;  // hex; empty: this machine, where no node tells of it
    std::string node_name;
    std::string path;
    std::string place;
  };
  std::string name, quant;
  uint64_t bytes = 0;
  uint64_t n_ctx_max = 0;  // 0: unknown
  std::vector<Copy> copies;
  std::vector<std::string> aliases;
  std::optional<bool> is_loaded;  // nullopt: no cluster answers
  ModelFit fit;
};

// Each model once: copies on several nodes that have one name, quant and size are the same one.
// Those of this machine that no node tells of come last.
std::vector<ListedModel> ListModelsOf(const wire::ListKnownModelsResponse& known,
                                      absl::Span<const LocalModel> here);

// Marks those that are loaded. A model's path is compared on its node.
void MarkLoaded(absl::Span<const wire::ModelStatus> loaded, absl::Span<ListedModel> models);

// "kitchen, attic (Ollama)".
std::string PlacesText(const ListedModel& model);
nlohmann::json ListedModelJson(const ListedModel& model);

}  // namespace strata
