#include "shard/serving/same_stage.h"

namespace strata {

bool IsSameStage(const wire::StageSpec& a, const wire::StageSpec& b) {
  const auto plain = [](wire::StageSpec spec) {
    spec.clear_epoch();
    spec.clear_stage();
    spec.clear_n_stages();
    spec.clear_model_path();
    spec.clear_model_name();
    spec.clear_source_address();
    spec.clear_source_node();
    spec.clear_weight_peers();
    spec.clear_no_source();
    spec.clear_origin();
    spec.clear_memory_bytes_max();
    spec.clear_host_bytes_max();
    spec.clear_kept();
    return spec.SerializeAsString();
  };
  return plain(a) == plain(b);
}

}  // namespace strata
