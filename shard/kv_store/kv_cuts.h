// KV blocks of one stage that are there in stores of other layers of the same model: where a new
// plan cuts the layers otherwise, as a machine comes or goes, and where copies of another node's
// stage are to serve together with the node's own. A block is there where such stores have all of
// the stage's layers together. Their files are read without a lock, since each is written at once,
// and may go meanwhile. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/node.pb.h"
#include "shard/kv_store/kv_block.h"
#include "shard/kv_store/kv_cipher.h"
#include "transport/security/secret.h"

namespace strata {

class KvCuts {
 public:
  // Looks for stores below `root`, whose key it is, that differ from `identity` only in the layers.
  KvCuts(const std::string& root, const Secret& key, const wire::KvIdentity& identity);

  // Of the blocks that were there then, and were not forgotten; the least recently used first.
  std::vector<KvName> Names() const;

  // What one store has of a block.
  struct Part {
    std::string bytes;
    uint32_t n_layers = 0;    // of them
    wire::LayerRange layers;  // that are wanted, counted from the first of them
  };
  // The parts of all layers, in their order. kNotFound: some are missing; kDataLoss: a part is
  // damaged, or of another scope. Reads files.
  absl::StatusOr<std::vector<Part>> Read(const KvCipher::BlockId& id) const;
  // Removes the files.
  void Forget(const KvName& name);

 private:
  struct Cut {
    std::string folder;
    wire::LayerRange layers;
    KvCipher cipher;
  };
  struct Block {
    std::vector<size_t> cuts;  // of cuts_, that have it
    int64_t used = 0;
  };
  // Those of the block's cuts that have all layers together, in their order; empty: some are
  // missing.
  std::vector<size_t> CoverOf(const Block& block) const;

  const wire::LayerRange layers_;
  std::vector<Cut> cuts_;
  std::map<KvName, Block> blocks_;
};

}  // namespace strata
