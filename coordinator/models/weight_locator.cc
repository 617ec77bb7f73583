#include "coordinator/models/weight_locator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/planner/unit_text.h"
#include "shard/model/weight_blocks.h"

namespace strata {

WeightLocator::WeightLocator(absl::Span<NodeClient* const> nodes, const std::string& model_id) {
  std::vector<absl::StatusOr<wire::BlockList>> lists(nodes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == nullptr) continue;
    threads.emplace_back([&, i] { lists[i] = nodes[i]->ListBlocks(model_id); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == nullptr) continue;
    const absl::Status& status = lists[i].status();
    if (absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) continue;  // nothing
    if (!status.ok()) {
      silent_.push_back(nodes[i]->name());
    } else if (lists[i]->blocks_size() > 0) {
      caches_.push_back({nodes[i], *std::move(lists[i])});
    }
  }
}

std::vector<NodeClient*> WeightLocator::nodes() const {
  std::vector<NodeClient*> nodes;
  for (const Cache& cache : caches_) nodes.push_back(cache.node);
  return nodes;
}

absl::StatusOr<std::vector<NodeClient*>> WeightLocator::HoldersOf(
    const std::shared_ptr<const ModelFile>& model, LayerRange layers, const SliceOptions& options,
    const NodeClient* for_node) const {
  const auto slice = Slice::Make(model, layers, options);
  if (!slice.ok()) return slice.status();
  const WeightBlocks blocks(*model);
  const std::vector<uint32_t> wanted = blocks.OfTensors(slice->source_tensors());
  struct Holder {
    NodeClient* node = nullptr;
    std::vector<bool> has;
  };
  std::vector<Holder> left;
  std::vector<uint32_t> missing = wanted;
  for (const Cache& cache : caches_) {
    auto has = ReadBlockList(cache.list, blocks.size());
    if (!has.ok()) continue;
    // A node that has all may have them in a file, at a path where its stages do not look: it
    // serves them to itself, as to others.
    if (cache.node == for_node && !absl::c_all_of(*has, std::identity())) {
      std::erase_if(missing, [&](uint32_t block) { return (*has)[block]; });
    } else {
      left.push_back({cache.node, *std::move(has)});
    }
  }
  std::vector<NodeClient*> holders;
  // Adds the node that has most of the blocks that are still missing.
  const auto add_next = [&] {
    const auto count = [&missing](const Holder& holder) {
      return absl::c_count_if(missing, [&](uint32_t block) { return holder.has[block]; });
    };
    const auto most = absl::c_max_element(
        left, [&](const Holder& a, const Holder& b) { return count(a) < count(b); });
    if (most == left.end() || count(*most) == 0) return false;
    holders.push_back(most->node);
    std::erase_if(missing, [&](uint32_t block) { return most->has[block]; });
    left.erase(most);
    return true;
  };
  while (!missing.empty()) {
    if (add_next()) continue;
    return absl::UnavailableError(
        absl::StrCat("weights of ", LayersText(layers), " are in no node's cache",
                     silent_.empty() ? "" : "; it is not known what is in those of ",
                     absl::StrJoin(silent_, ", ")));
  }
  if (holders.size() > size_t{kWeightPeersMax}) {
    return absl::UnavailableError(absl::StrCat("the weights of ", LayersText(layers),
                                               " are spread over the caches of ", holders.size(),
                                               " nodes, and a node asks ", kWeightPeersMax));
  }
  // Further nodes that have some of the blocks may replace another.
  do {
    missing = wanted;
  } while (add_next());
  return holders;
}

absl::StatusOr<std::vector<uint64_t>> WeightLocator::FetchBytes(
    const std::shared_ptr<const ModelFile>& model, const std::vector<uint32_t>& cuts,
    const SliceOptions& options, const NodeClient* node) const {
  const WeightBlocks blocks(*model);
  std::vector<bool> has(blocks.size(), false);
  const auto cache = absl::c_find_if(caches_, [&](const Cache& each) { return each.node == node; });
  if (cache != caches_.end()) {
    auto listed = ReadBlockList(cache->list, blocks.size());
    // A node that has all and is short of room has them in a file where its stages do not look.
    if (listed.ok() && !absl::c_all_of(*listed, std::identity())) has = *std::move(listed);
  }
  std::vector<uint64_t> fetched(model->n_layer() + size_t{1}, 0);
  std::vector<uint32_t> ends = cuts;
  ends.push_back(model->n_layer());
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    const auto slice = Slice::Make(model, {begin, end}, options);
    if (!slice.ok()) return slice.status();
    std::vector<uint32_t> missing = blocks.OfTensors(slice->source_tensors());
    std::erase_if(missing, [&](uint32_t block) { return has[block]; });
    for (uint32_t layer = begin + 1; layer < end; ++layer) fetched[layer] = fetched[begin];
    fetched[end] = fetched[begin] + blocks.BytesOf(missing);
    begin = end;
  }
  return fetched;
}

}  // namespace strata
