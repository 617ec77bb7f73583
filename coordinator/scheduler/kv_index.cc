#include "coordinator/scheduler/kv_index.h"

#include <algorithm>

namespace strata {

KvIndex::KvIndex(const PipelineFacts& facts) : n_max_(facts.kv_blocks_max) {
  if (n_max_ == 0) return;
  std::map<KvName, uint32_t> n_stages;
  for (const std::vector<KvName>& of_stage : facts.kv_blocks) {
    for (const KvName& name : of_stage) {
      ++n_stages[name];
      Touch(name);
    }
  }
  for (auto& [name, block] : blocks_) {
    block.is_kept = n_stages[name] == facts.n_stages;
    if (block.is_kept) ++n_kept_;
  }
}

void KvIndex::Touch(const KvName& name) {
  Block& block = blocks_[name];
  if (block.used != 0) {
    by_use_.erase(block.used);
  } else {
    ++lengths_[KvStateLength(name)];
  }
  block.used = ++last_used_;
  by_use_.emplace(block.used, name);
}

void KvIndex::Erase(const KvName& name) {
  const auto found = blocks_.find(name);
  if (found->second.is_kept) --n_kept_;
  by_use_.erase(found->second.used);
  const auto length = lengths_.find(KvStateLength(name));
  if (--length->second == 0) lengths_.erase(length);
  blocks_.erase(found);
}

bool KvIndex::Has(const KvName& name) const {
  const auto found = blocks_.find(name);
  return found != blocks_.end() && found->second.is_kept;
}

size_t KvIndex::Find(absl::Span<const KvName> names) const {
  const auto first = std::ranges::find_if(names, [this](const KvName& name) { return !Has(name); });
  return static_cast<size_t>(first - names.begin());
}

std::optional<KvName> KvIndex::FindState(absl::string_view scope,
                                         absl::Span<const int32_t> tokens) const {
  std::vector<uint32_t> lengths;
  for (const auto& [length, n] : lengths_) {
    if (length <= tokens.size()) lengths.push_back(length);
  }
  const std::vector<KvName> names = KvStateNamesOf(scope, tokens, lengths);
  const auto longest =
      std::find_if(names.rbegin(), names.rend(), [this](const KvName& name) { return Has(name); });
  if (longest == names.rend()) return std::nullopt;
  return *longest;
}

size_t KvIndex::Use(absl::Span<const KvName> names) {
  const size_t n = Find(names);
  for (size_t i = n; i > 0; --i) Touch(names[i - 1]);
  return n;
}

KvIndex::Added KvIndex::Add(absl::Span<const KvName> names) {
  Added added = {.end = std::min(names.size(), n_max_)};
  added.first = Find(names.first(added.end));
  for (size_t i = added.end; i > 0; --i) Touch(names[i - 1]);
  while (blocks_.size() > n_max_) {
    const KvName oldest = by_use_.begin()->second;
    added.dropped.push_back(oldest);
    Erase(oldest);
  }
  return added;
}

void KvIndex::Confirm(absl::Span<const KvName> names) {
  for (const KvName& name : names) {
    const auto found = blocks_.find(name);
    if (found == blocks_.end() || found->second.is_kept) continue;
    found->second.is_kept = true;
    ++n_kept_;
  }
}

std::vector<KvName> KvIndex::Forget(absl::Span<const KvName> names) {
  std::vector<KvName> known;
  for (const KvName& name : names) {
    if (!blocks_.contains(name)) continue;
    known.push_back(name);
    Erase(name);
  }
  return known;
}

std::vector<KvName> KvIndex::ForgetAll() {
  std::vector<KvName> names;
  for (const auto& [name, block] : blocks_) names.push_back(name);
  return Forget(names);
}

std::vector<KvName> KvIndex::ForgetUnconfirmed() {
  std::vector<KvName> names;
  for (const auto& [name, block] : blocks_) {
    if (!block.is_kept) names.push_back(name);
  }
  return Forget(names);
}

}  // namespace strata
