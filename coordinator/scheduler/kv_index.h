// Which KV blocks the stages of a pipeline keep on their disks (shard/kv_store), and for how long:
// all stages keep the same ones, so that the scheduler decides it here. The least recently used go
// first; of one sequence the last, since a block is of use only behind those before it. No I/O, one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "shard/kv_store/kv_block.h"

namespace strata {

class KvIndex {
 public:
  KvIndex() = default;  // of stages that keep none
  // Of what the stages report. Blocks that some of them lack are of no use, but take room.
  explicit KvIndex(const PipelineFacts& facts);

  bool keeps_any() const { return n_max_ > 0; }
  // That all stages have.
  uint32_t n_kept() const { return n_kept_; }

  // The longest beginning of `tokens` whose state all stages have; nullopt: there is none.
  std::optional<KvName> FindState(absl::string_view scope, absl::Span<const int32_t> tokens) const;

  // How many of `names`, which are a sequence's, all stages have, from the first one on. Those
  // count as used now.
  size_t Use(absl::Span<const KvName> names);
  // The same, without using them.
  size_t Find(absl::Span<const KvName> names) const;

  // The stages are about to keep `names`, which are a sequence's.
  struct Added {
    size_t first = 0;  // of `names`: the first one that is not kept yet; those before it are
    size_t end = 0;    // behind the last one that there is room for
    std::vector<KvName> dropped;  // to make room
  };
  Added Add(absl::Span<const KvName> names);
  // All stages have tried to keep them.
  void Confirm(absl::Span<const KvName> names);
  // They are gone, or may be. Returns those that were known, for the stages to forget.
  std::vector<KvName> Forget(absl::Span<const KvName> names);
  std::vector<KvName> ForgetUnconfirmed();
  std::vector<KvName> ForgetAll();

 private:
  struct Block {
    bool is_kept = false;  // by all stages
    uint64_t used = 0;
  };

  bool Has(const KvName& name) const;  // all stages have it
  void Touch(const KvName& name);      // makes it, where it is not known
  void Erase(const KvName& name);

  size_t n_max_ = 0;
  uint32_t n_kept_ = 0;
  std::map<KvName, Block> blocks_;      // at most n_max_
  std::map<uint64_t, KvName> by_use_;   // of all of them
  std::map<uint32_t, size_t> lengths_;  // KvStateLength(), how many have it
  uint64_t last_used_ = 0;
};

}  // namespace strata
