// One small random model, or several, for every row of the table of architectures, with which tests
// prove the row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/random_model.h"

namespace strata::testing {

struct ZooModel {
  std::string name;  // of the test; letters, digits and underscores
  std::string architecture;
  uint32_t n_layer;
  // "key=value key=[1,2] …" as in RandomModelSpec. $moe and $ssm stand for the keys that models
  // with experts and with recurrent layers have in common.
  std::string metadata;
  std::string without = "";  // parts of names of tensors it does not have
  int weight_type = 0;       // ggml_type
};

const std::vector<ZooModel>& ModelZoo();

RandomModelSpec SpecOf(const ZooModel& model);

}  // namespace strata::testing
