#include "shard/kv_store/kv_cuts.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "shard/kv_store/kv_folder.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

bool Overlap(const wire::LayerRange& a, const wire::LayerRange& b) {
  return a.begin() < b.end() && b.begin() < a.end();
}

}  // namespace

KvCuts::KvCuts(const std::string& root, const Secret& key, const wire::KvIdentity& identity)
    : layers_(identity.about().layers()) {
  for (const KvFolder& folder : ListKvFolders(root)) {
    const wire::KvCacheAbout& about = folder.cache.about();
    if (about.model_id() != identity.about().model_id() || !Overlap(about.layers(), layers_)) {
      continue;
    }
    wire::KvIdentity other = identity;
    *other.mutable_about()->mutable_layers() = about.layers();
    auto cipher = KvCipherOf(key, other);
    // The store itself has the same layers; one of another device or setting has another name.
    const bool is_cut =
        cipher.ok() && fs::path(folder.path).filename() == cipher->folder() &&
        (about.layers().begin() != layers_.begin() || about.layers().end() != layers_.end());
    if (!is_cut) continue;
    std::error_code error;
    for (const auto& file : fs::directory_iterator(folder.path, error)) {
      const std::optional<KvName> name = cipher->NameOf(file.path().filename().string());
      const auto used = file.last_write_time(error);
      if (!name || error) continue;
      Block& block = blocks_[*name];
      block.cuts.push_back(cuts_.size());
      block.used = std::max<int64_t>(block.used, used.time_since_epoch().count());
    }
    cuts_.push_back(
        {.folder = folder.path, .layers = about.layers(), .cipher = *std::move(cipher)});
  }
  std::erase_if(blocks_, [this](const auto& each) { return CoverOf(each.second).empty(); });
}

std::vector<size_t> KvCuts::CoverOf(const Block& block) const {
  std::vector<size_t> cover;
  for (uint32_t layer = layers_.begin(); layer < layers_.end();) {
    // The one that has the most layers from there on.
    const auto has = [&](size_t cut) {
      const wire::LayerRange& layers = cuts_[cut].layers;
      return layers.begin() <= layer && layer < layers.end() ? layers.end() : 0;
    };
    const auto most = std::ranges::max_element(block.cuts, {}, has);
    if (most == block.cuts.end() || has(*most) == 0) return {};
    cover.push_back(*most);
    layer = has(*most);
  }
  return cover;
}

std::vector<KvName> KvCuts::Names() const {
  std::vector<std::pair<int64_t, KvName>> by_use;
  by_use.reserve(blocks_.size());
  for (const auto& [name, block] : blocks_) by_use.emplace_back(block.used, name);
  std::ranges::sort(by_use);
  std::vector<KvName> names;
  names.reserve(by_use.size());
  for (const auto& [used, name] : by_use) names.push_back(name);
  return names;
}

absl::StatusOr<std::vector<KvCuts::Part>> KvCuts::Read(const KvCipher::BlockId& id) const {
  const auto found = blocks_.find(id.name);
  if (found == blocks_.end()) return absl::NotFoundError("a KV block is not there");
  std::vector<Part> parts;
  uint32_t layer = layers_.begin();
  for (const size_t i : CoverOf(found->second)) {
    const Cut& cut = cuts_[i];
    const auto sealed = ReadKvFile(cut.folder + "/" + cut.cipher.FileOf(id.name));
    auto bytes = sealed.ok() ? cut.cipher.Open(id, *sealed) : sealed;
    if (!bytes.ok()) return bytes.status();
    const wire::LayerRange& has = cut.layers;
    Part& part = parts.emplace_back();
    part.bytes = *std::move(bytes);
    part.n_layers = has.end() - has.begin();
    part.layers.set_begin(layer - has.begin());
    layer = std::min(has.end(), layers_.end());
    part.layers.set_end(layer - has.begin());
  }
  return parts;
}

void KvCuts::Forget(const KvName& name) {
  const auto found = blocks_.find(name);
  if (found == blocks_.end()) return;
  for (const size_t i : found->second.cuts) {
    unlink((cuts_[i].folder + "/" + cuts_[i].cipher.FileOf(name)).c_str());
  }
  blocks_.erase(found);
}

}  // namespace strata
