#include "shard/model/weight_blocks.h"

#include <blake3.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "proto/weights.pb.h"

namespace strata {
namespace {

constexpr uint32_t kKeptVersion = 1;
constexpr uint64_t kHoleBytesMin = 1u << 20;

}  // namespace

WeightBlocks::WeightBlocks(const ModelFile& model) {
  const std::vector<GgufTensor>& tensors = model.header().tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    first_.push_back(static_cast<uint32_t>(blocks_.size()));
    const ModelFile::Location& at = model.TensorAt(i);
    for (uint64_t done = 0; done < tensors[i].bytes; done += kWeightBlockBytes) {
      blocks_.push_back(
          {at.part, at.offset + done, std::min(kWeightBlockBytes, tensors[i].bytes - done)});
    }
  }
  first_.push_back(static_cast<uint32_t>(blocks_.size()));
}

std::vector<uint32_t> WeightBlocks::OfTensors(absl::Span<const size_t> tensors) const {
  std::vector<uint32_t> blocks;
  for (const size_t tensor : tensors) {
    for (uint32_t block = first_[tensor]; block < first_[tensor + 1]; ++block) {
      blocks.push_back(block);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

uint64_t WeightBlocks::BytesOf(absl::Span<const uint32_t> blocks) const {
  uint64_t bytes = 0;
  for (const uint32_t block : blocks) bytes += blocks_[block].bytes;
  return bytes;
}

absl::Status CheckNoHoles(const ModelFile& model) {
  const WeightBlocks blocks(model);
  uint64_t bytes = 0;
  size_t part = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const WeightBlock& at = blocks[i];
    if (at.bytes < kHoleBytesMin || !model.IsHole(at.part, at.offset, at.bytes)) continue;
    if (bytes == 0) part = at.part;
    bytes += at.bytes;
  }
  if (bytes == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(model.paths()[part], ": ", bytes >> 20,
                   " MiB of its weights were never written (a download that has not ended?); get "
                   "the file again"));
}

struct WeightHasher::State {
  blake3_hasher hasher;
};

WeightHasher::WeightHasher() : state_(std::make_unique<State>()) {
  blake3_hasher_init(&state_->hasher);
}

WeightHasher::~WeightHasher() = default;

void WeightHasher::Add(absl::string_view bytes) {
  blake3_hasher_update(&state_->hasher, bytes.data(), bytes.size());
}

std::string WeightHasher::Finish() {
  static_assert(kWeightHashBytes == BLAKE3_OUT_LEN);
  std::string hash(kWeightHashBytes, '\0');
  blake3_hasher_finalize(&state_->hasher, reinterpret_cast<uint8_t*>(hash.data()), hash.size());
  blake3_hasher_init(&state_->hasher);
  return hash;
}

std::string HashOfBytes(absl::string_view bytes) {
  WeightHasher hasher;
  hasher.Add(bytes);
  return hasher.Finish();
}

absl::StatusOr<std::vector<bool>> ReadBlockList(const wire::BlockList& list, size_t n_blocks) {
  std::vector<bool> there(n_blocks);
  uint32_t done = 0;  // ranges of one node may overlap no more than their order allows
  for (const wire::BlockRange& range : list.blocks()) {
    if (range.begin() < done || range.end() <= range.begin() || range.end() > n_blocks) {
      return absl::InvalidArgumentError("it lists blocks that the model does not have");
    }
    for (done = range.begin(); done < range.end(); ++done) there[done] = true;
  }
  return there;
}

WeightHashes ReadStoredHashes(const std::string& path, absl::string_view key, size_t n_blocks,
                              WeightHashes* missing) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  wire::KeptHashes kept;
  WeightHashes hashes;
  if (!kept.ParseFromString(bytes) || kept.version() != kKeptVersion || kept.key() != key) {
    return hashes;
  }
  const auto take = [n_blocks](const auto& from, WeightHashes* to) {
    for (const wire::BlockHash& block : from) {
      if (block.block() < n_blocks && block.hash().size() == kWeightHashBytes) {
        (*to)[block.block()] = block.hash();
      }
    }
  };
  take(kept.blocks(), &hashes);
  if (missing != nullptr) take(kept.missing(), missing);
  return hashes;
}

absl::Status WriteStoredHashes(const std::string& path, absl::string_view key,
                               const WeightHashes& hashes, const WeightHashes& missing) {
  wire::KeptHashes kept;
  kept.set_version(kKeptVersion);
  kept.set_key(std::string(key));
  for (const auto& [block, hash] : hashes) {
    wire::BlockHash* entry = kept.add_blocks();
    entry->set_block(block);
    entry->set_hash(hash);
  }
  for (const auto& [block, hash] : missing) {
    wire::BlockHash* entry = kept.add_missing();
    entry->set_block(block);
    entry->set_hash(hash);
  }
  const std::string bytes = kept.SerializeAsString();
  const std::string part = path + ".part";
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, part);
  int error = 0;
  for (size_t done = 0; done < bytes.size() && error == 0;) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && fsync(fd) != 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(part.c_str());
  return absl::ErrnoToStatus(error, path);
}

}  // namespace strata
