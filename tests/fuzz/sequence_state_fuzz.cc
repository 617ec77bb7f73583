// A peer's bytes as a sequence's state, taken apart by layers and put together: it ends in a state
// of the wanted layers, or in an error that the headers name. (sequence_state_test checks that the
// state is the right one: bytes made for it may be read as two different states.)
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "shard/engine/sequence_state.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

// None: refused.
std::string Cut(absl::string_view state, uint32_t n_layers, LayerRange layers) {
  const auto cut = LayersOf(state, n_layers, layers);
  if (!cut.ok()) {
    Check(absl::IsUnimplemented(cut.status()));
    return "";
  }
  Check(cut->size() <= state.size());
  return *cut;
}

void CheckLayers(absl::string_view state, uint32_t n_layers, uint32_t cut) {
  const std::string all = Cut(state, n_layers, {0, n_layers});
  Check(all.empty() || all.size() == state.size());
  const std::string lower = Cut(state, n_layers, {0, cut});
  const std::string upper = Cut(state, n_layers, {cut, n_layers});
  Check(lower.empty() == (all.empty() || cut == 0 || cut > n_layers));
  Check(upper.empty() == (all.empty() || cut >= n_layers));
  const auto joined = JoinLayers({lower, upper});
  Check(joined.ok() ? joined->size() <= lower.size() + upper.size()
                    : absl::IsInvalidArgument(joined.status()));
}

void CheckBlocks(absl::string_view state, uint32_t n_positions, size_t n_blocks) {
  const auto blocks = BlocksOf(state, 0, n_positions, n_blocks);
  Check(blocks.ok() ? blocks->size() == n_blocks : absl::IsUnimplemented(blocks.status()));
}

}  // namespace
}  // namespace strata

// The number of layers, where to cut, the state.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const absl::string_view state(reinterpret_cast<const char*>(data) + 2, size - 2);
  strata::CheckLayers(state, data[0], data[1]);
  strata::CheckBlocks(state, data[0], data[1]);
  const size_t half = state.size() / 2;
  const auto joined = strata::JoinLayers({state.substr(0, half), state.substr(half)});
  strata::Check(joined.ok() || absl::IsInvalidArgument(joined.status()));
  return 0;
}
