// A peer's bytes as a sequence's state: what comes apart by layers goes together again as it was.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "shard/cache_layers.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void CheckLayers(absl::string_view state, uint32_t n_layers, uint32_t cut) {
  const auto all = LayersOf(state, n_layers, {0, n_layers});
  if (!all.ok()) {
    Check(absl::IsUnimplemented(all.status()));
    return;
  }
  Check(all->size() == state.size());
  const auto again = LayersOf(*all, n_layers, {0, n_layers});
  Check(again.ok() && *again == *all);
  if (cut == 0 || cut >= n_layers) return;
  const auto lower = LayersOf(state, n_layers, {0, cut});
  const auto upper = LayersOf(state, n_layers, {cut, n_layers});
  Check(lower.ok() && upper.ok());
  const auto joined = JoinLayers({*lower, *upper});
  Check(joined.ok() && *joined == *all);
}

}  // namespace
}  // namespace strata

// The number of layers, where to cut, the state.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const absl::string_view state(reinterpret_cast<const char*>(data) + 2, size - 2);
  strata::CheckLayers(state, data[0], data[1]);
  const size_t half = state.size() / 2;
  const auto joined = strata::JoinLayers({state.substr(0, half), state.substr(half)});
  strata::Check(joined.ok() || absl::IsInvalidArgument(joined.status()));
  return 0;
}
