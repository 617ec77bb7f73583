// The coordinator's view of loaded models, as JSON for programs. Pure.
#pragma once

#include "nlohmann/json.hpp"
#include "proto/coordinator.pb.h"

namespace strata {

// [{"node":…,"device":…,"layers":[begin, end),"slice_bytes":…,…}], in the plan's order; sizes in
// bytes.
nlohmann::json ModelStagesJson(const wire::ModelStatus& model);

nlohmann::json ModelJson(const wire::ModelStatus& model);

}  // namespace strata
