#include "shard/weights/weight_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "shard/model/file_stamp.h"
#include "transport/rpc/status_details.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPartsMax = 10'000;
// Headers with large vocabularies take some 20 MB; the bytes come from a peer.
constexpr uint64_t kIdentityBytesMax = 1u << 30;
constexpr uint64_t kCheckBytes = 1u << 20;
// Free space that a full cache leaves on the disk.
constexpr uint64_t kDiskReserveBytes = 64u << 20;

std::string PartName(size_t part, size_t n_parts) {
  if (n_parts == 1) return "model.gguf";
  return absl::StrFormat("model-%05d-of-%05d.gguf", part + 1, n_parts);
}

absl::Status NoRoom(const DiskShortage& shortage, absl::string_view message) {
  return WithDiskShortage(absl::ResourceExhaustedError(message), shortage);
}

absl::Status SystemError(int error, absl::string_view path) {
  if (error == ENOSPC || error == EDQUOT) {
    return NoRoom({}, absl::StrCat("the disk of ", path, " is full"));
  }
  return absl::ErrnoToStatus(error, path);
}

constexpr char kMakeRoom[] = "make room there, or name another folder with --cache-dir";

absl::Status WriteAt(int fd, uint64_t offset, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return SystemError(n < 0 ? errno : ENOSPC, path);
    offset += static_cast<uint64_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// The disk space of the files in `folder`, which is less than their sizes.
uint64_t DiskBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) {
    struct stat info;
    if (lstat(file.path().c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

uint64_t FreeBytes(const std::string& folder) {
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

// Gives bytes back to the disk; they read as zeros afterwards. Where the system cannot, they stay.
void Punch(int fd, uint64_t offset, uint64_t bytes) {
#ifdef __linux__
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
#else
  (void)fd, (void)offset, (void)bytes;
#endif
}

// Starts writing to the disk, so that a later sync takes less time.
void StartSync(int fd, uint64_t offset, uint64_t bytes) {
#ifdef __linux__
  sync_file_range(fd, static_cast<off64_t>(offset), static_cast<off64_t>(bytes),
                  SYNC_FILE_RANGE_WRITE);
#else
  (void)fd, (void)offset, (void)bytes;
#endif
}

absl::Status SyncData(int fd, const std::string& path) {
#ifdef __APPLE__
  const int rc = fcntl(fd, F_FULLFSYNC);
#else
  const int rc = fdatasync(fd);
#endif
  return rc == 0 ? absl::OkStatus() : SystemError(errno, path);
}

}  // namespace

std::string Mebibytes(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

struct WeightCache::OpenFiles {
  explicit OpenFiles(std::shared_ptr<const ModelFile> file)
      : model(std::move(file)), blocks(*model) {}
  ~OpenFiles() {
    for (const int fd : fds) close(fd);
  }

  // Whether the paths still name these files, with their original lengths.
  bool IsInPlace() const {
    for (size_t i = 0; i < fds.size(); ++i) {
      struct stat mine;
      const absl::StatusOr<FileStamp> now = StampAt(model->paths()[i]);
      if (fstat(fds[i], &mine) != 0 || !now.ok()) return false;
      const FileStamp own = StampOf(mine);
      if (now->device != own.device || now->inode != own.inode ||
          now->bytes != model->part_bytes(i)) {
        return false;
      }
    }
    return true;
  }

  const std::shared_ptr<const ModelFile> model;  // shared with slices
  const WeightBlocks blocks;
  std::vector<int> fds;  // to write, one for each part
};

absl::StatusOr<std::shared_ptr<WeightCache>> WeightCache::Open(Options options) {
  if (absl::Status status = MakePrivateFolder(options.folder); !status.ok()) return status;
  std::shared_ptr<WeightCache> cache(new WeightCache());
  cache->folder_ = options.folder;
  const std::string lock = options.folder + "/lock";
  cache->lock_fd_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (cache->lock_fd_ < 0) return absl::ErrnoToStatus(errno, lock);
  if (flock(cache->lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "another node keeps its weights in ", options.folder, "; give this one its own folder"));
  }
  cache->Scan();
  cache->sync_ = options.sync == nullptr ? SyncData : std::move(options.sync);
  cache->bytes_max_ = options.bytes_max;
  if (cache->bytes_max_ == 0) {
    cache->bytes_max_ = (FreeBytes(options.folder) + cache->bytes_used()) / 2;
  }
  return cache;
}

WeightCache::~WeightCache() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

void WeightCache::Scan() {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (const fs::directory_entry& folder : fs::directory_iterator(folder_, error)) {
    const std::string name = folder.path().filename().string();
    std::string id;
    if (name.size() != 2 * kWeightHashBytes || !absl::HexStringToBytes(name, &id)) continue;
    found.emplace_back(fs::last_write_time(folder.path() / "blocks", error), id);
  }
  std::sort(found.begin(), found.end());
  absl::MutexLock lock(mu_);
  for (const auto& [used, id] : found) {
    Entry& entry = entries_[id];
    entry.id = id;
    entry.folder = absl::StrCat(folder_, "/", absl::BytesToHexString(id));
    entry.number = entry.last_use = ++uses_;
    entry.hashes = ReadStoredHashes(entry.folder + "/blocks", id, UINT32_MAX, &entry.missing);
    entry.bytes = DiskBytes(entry.folder);
  }
}

void WeightCache::MarkSuspect(Entry* entry) {
  LOG(WARNING) << "the cached weights in " << entry->folder
               << " have changed on disk; they are checked, and damaged blocks are fetched again";
  for (const auto& [block, hash] : entry->hashes) entry->suspect.insert(block);
  entry->opened.reset();
  entry->number = ++uses_;
}

uint64_t WeightCache::UsedLocked() const {
  uint64_t bytes = 0;
  for (const auto& [id, entry] : entries_) bytes += entry.bytes;
  return bytes;
}

uint64_t WeightCache::bytes_used() const {
  absl::MutexLock lock(mu_);
  return UsedLocked();
}

absl::StatusOr<std::shared_ptr<WeightCache::OpenFiles>> WeightCache::OpenEntry(Entry* entry) {
  if (std::shared_ptr<OpenFiles> opened = entry->opened.lock()) {
    if (opened->IsInPlace()) return opened;
    MarkSuspect(entry);
  }
  std::string first = entry->folder + "/model.gguf";
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(entry->folder, error)) {
    const std::string name = file.path().filename().string();
    if (name.rfind("model-00001-of-", 0) == 0) first = file.path().string();
  }
  absl::StatusOr<std::shared_ptr<const ModelFile>> model = ModelFile::Open(first);
  if (!model.ok() || (*model)->id() != entry->id) {
    MarkSuspect(entry);
    return absl::NotFoundError(absl::StrCat(first, " is damaged"));
  }
  auto opened = std::make_shared<OpenFiles>(*std::move(model));
  for (const std::string& path : opened->model->paths()) {
    opened->fds.push_back(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (opened->fds.back() < 0) return absl::ErrnoToStatus(errno, path);
  }
  for (WeightHashes* const hashes : {&entry->hashes, &entry->missing}) {
    std::erase_if(*hashes, [&](const auto& hash) { return hash.first >= opened->blocks.size(); });
  }
  entry->opened = opened;
  return opened;
}

absl::StatusOr<std::unique_ptr<WeightLease>> WeightCache::Lease(const std::string& model_id,
                                                                LayerRange layers,
                                                                SliceOptions options) {
  absl::MutexLock lock(mu_);
  const auto found = entries_.find(model_id);
  if (found == entries_.end()) return absl::NotFoundError("the model is not in the cache");
  Entry* entry = &found->second;
  auto opened = OpenEntry(entry);
  if (!opened.ok()) return opened.status();
  auto slice = Slice::Make((*opened)->model, layers, options);
  if (!slice.ok()) return slice.status();
  std::unique_ptr<WeightLease> lease(new WeightLease());
  lease->cache_ = shared_from_this();
  lease->opened_ = *std::move(opened);
  lease->entry_ = entry;
  lease->blocks_ = lease->opened_->blocks.OfTensors(slice->source_tensors());
  entry->last_use = ++uses_;
  entry->leases.push_back(lease.get());
  utimensat(AT_FDCWD, (entry->folder + "/blocks").c_str(), nullptr, 0);
  return lease;
}

absl::StatusOr<std::shared_ptr<const ModelFile>> WeightCache::Headers(const std::string& model_id) {
  absl::MutexLock lock(mu_);
  const auto found = entries_.find(model_id);
  if (found == entries_.end()) return absl::NotFoundError("the model is not in the cache");
  auto opened = OpenEntry(&found->second);
  if (!opened.ok()) return opened.status();
  return (*opened)->model;
}

absl::StatusOr<WeightCache::Snapshot> WeightCache::TakeSnapshot(const std::string& model_id) const {
  absl::MutexLock lock(mu_);
  const auto found = entries_.find(model_id);
  if (found == entries_.end()) return absl::NotFoundError("the model is not in the cache");
  const Entry& entry = found->second;
  return Snapshot{.entry = entry.number, .hashes = entry.hashes, .losses = entry.losses};
}

absl::Status WeightCache::Confirm(const std::string& model_id, const Snapshot& snapshot,
                                  uint32_t block, const std::string& hash) {
  const auto expected = snapshot.hashes.find(block);
  absl::MutexLock lock(mu_);
  const auto found = entries_.find(model_id);
  if (found == entries_.end() || found->second.number != snapshot.entry ||
      expected == snapshot.hashes.end()) {
    return absl::NotFoundError("the block is no longer in the cache");
  }
  Entry& entry = found->second;
  const auto now = entry.hashes.find(block);
  if (now == entry.hashes.end() || now->second != expected->second) {
    return absl::NotFoundError("the block is no longer in the cache");
  }
  if (hash == expected->second) {
    entry.suspect.erase(block);
    return absl::OkStatus();
  }
  // It may have been lost and fetched again while it was read.
  const auto lost = entry.lost.find(block);
  if (lost != entry.lost.end() && lost->second > snapshot.losses) {
    return absl::NotFoundError("the block was fetched again while it was read");
  }
  LOG(WARNING) << "block " << block << " of " << entry.folder << " is damaged";
  MarkMissing(&entry, block);
  return absl::DataLossError(absl::StrCat("block ", block, " is damaged there"));
}

absl::Status WeightCache::Add(const std::string& model_id, absl::Span<const uint64_t> part_bytes,
                              absl::FunctionRef<absl::StatusOr<Piece>()> next) {
  if (model_id.size() != kWeightHashBytes || part_bytes.empty() || part_bytes.size() > kPartsMax) {
    return absl::InvalidArgumentError("not a model's description");
  }
  const std::string folder = absl::StrCat(folder_, "/", absl::BytesToHexString(model_id));
  std::error_code error;
  fs::create_directories(folder_, error);  // it may have been removed
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return SystemError(errno, folder);
  std::vector<int> fds;
  std::vector<uint64_t> bytes_before;  // of each part's file; the rest is holes from now on
  absl::Status status;
  for (size_t i = 0; i < part_bytes.size() && status.ok(); ++i) {
    const std::string path = absl::StrCat(folder, "/", PartName(i, part_bytes.size()));
    fds.push_back(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    struct stat before = {};
    if (fds.back() >= 0) fstat(fds.back(), &before);
    bytes_before.push_back(static_cast<uint64_t>(before.st_size));
    if (fds.back() < 0 || ftruncate(fds.back(), static_cast<off_t>(part_bytes[i])) != 0) {
      status = SystemError(errno, path);
    }
  }
  uint64_t total = 0;
  while (status.ok()) {
    absl::StatusOr<Piece> piece = next();
    if (!piece.ok()) status = piece.status();
    if (!status.ok() || piece->bytes.empty()) break;
    const uint64_t size = piece->bytes.size();
    total += size;
    if (piece->part >= fds.size() || size > part_bytes[piece->part] ||
        piece->offset > part_bytes[piece->part] - size || total > kIdentityBytesMax) {
      status = absl::InvalidArgumentError("a model's description with bytes outside its files");
      break;
    }
    status = WriteAt(fds[piece->part], piece->offset, piece->bytes, folder);
  }
  for (const int fd : fds) {
    if (fd < 0) continue;
    if (status.ok()) status = sync_(fd, folder);
    close(fd);
  }

  absl::MutexLock lock(mu_);
  const bool is_new = entries_.count(model_id) == 0;
  Entry& entry = entries_[model_id];
  entry.id = model_id;
  entry.folder = folder;
  if (is_new) entry.number = entry.last_use = ++uses_;
  entry.bytes = DiskBytes(folder);
  bool of_other_model = false;
  if (status.ok()) {
    if (auto opened = OpenEntry(&entry); !opened.ok()) {
      of_other_model = true;
      status = absl::InvalidArgumentError("the description is not that of the model's id");
    } else {
      const WeightBlocks& blocks = (*opened)->blocks;
      for (uint32_t block = 0; block < blocks.size(); ++block) {
        const WeightBlock& at = blocks[block];
        if (at.offset + at.bytes > bytes_before[at.part]) MarkMissing(&entry, block);
      }
    }
  }
  if (status.ok() && is_new) status = WriteStoredHashes(folder + "/blocks", model_id, {});
  if (absl::IsResourceExhausted(status)) status = WithDiskShortage(std::move(status), {});
  if (!status.ok() && entry.leases.empty() && (is_new || of_other_model)) Remove(model_id);
  return status;
}

void WeightCache::Remove(const std::string& model_id) {
  const auto found = entries_.find(model_id);
  // The hashes are removed first, so that a crash leaves no record of removed blocks.
  unlink((found->second.folder + "/blocks").c_str());
  std::error_code error;
  // Another node's read may still have the files open: truncation frees their disk space anyway.
  for (const fs::directory_entry& file : fs::directory_iterator(found->second.folder, error)) {
    fs::resize_file(file.path(), 0, error);
  }
  fs::remove_all(found->second.folder, error);
  if (error) LOG(WARNING) << "cannot remove " << found->second.folder << ": " << error.message();
  entries_.erase(found);
}

void WeightCache::MarkMissing(Entry* entry, uint32_t block) {
  const auto found = entry->hashes.find(block);
  if (found == entry->hashes.end()) return;
  entry->lost[block] = ++entry->losses;
  entry->missing[block] = std::move(found->second);
  entry->hashes.erase(found);
  entry->suspect.erase(block);
}

bool WeightCache::IsLeased(const Entry& entry, uint32_t block, const WeightLease* but) const {
  for (const WeightLease* lease : entry.leases) {
    if (lease != but && std::binary_search(lease->blocks_.begin(), lease->blocks_.end(), block)) {
      return true;
    }
  }
  return false;
}

// Samples of the data are part of the model's identity and stay: a worker may be opening the file.
void WeightCache::PunchAround(const OpenFiles& opened, size_t part, uint64_t begin, uint64_t end) {
  std::vector<ModelFile::Range> kept;
  for (const ModelFile::Range& range : opened.model->identity()) {
    if (range.part == part && range.offset < end && range.offset + range.bytes > begin) {
      kept.push_back(range);
    }
  }
  std::sort(kept.begin(), kept.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  for (const ModelFile::Range& range : kept) {
    if (range.offset > begin) Punch(opened.fds[part], begin, range.offset - begin);
    begin = std::max(begin, range.offset + range.bytes);
  }
  if (end > begin) Punch(opened.fds[part], begin, end - begin);
}

void WeightCache::Shrink(Entry* entry, OpenFiles* opened, ShrinkScope scope,
                         const WeightLease* mine) {
  std::vector<uint32_t> free;
  for (uint32_t block = 0; block < opened->blocks.size(); ++block) {
    const bool is_missing = !entry->hashes.contains(block);
    // A missing block may still be in use: it was good when its stage was loaded.
    if (scope == ShrinkScope::kMissing && !is_missing) continue;
    if (!IsLeased(*entry, block, mine)) free.push_back(block);
  }
  for (const uint32_t block : free) MarkMissing(entry, block);
  // Missing blocks are not among the stored hashes, or not with the hash of their data.
  if (scope == ShrinkScope::kNotLeased &&
      !WriteStoredHashes(entry->folder + "/blocks", entry->id, entry->hashes, entry->missing)
           .ok()) {
    return;
  }
  // Neighbours are freed together, with the padding between them: only whole pages can be freed.
  for (size_t i = 0; i < free.size();) {
    const WeightBlock& first = opened->blocks[free[i]];
    uint64_t end = first.offset + first.bytes;
    for (++i; i < free.size() && free[i] == free[i - 1] + 1; ++i) {
      const WeightBlock& next = opened->blocks[free[i]];
      if (next.part != first.part) break;
      end = next.offset + next.bytes;
    }
    PunchAround(*opened, first.part, first.offset, end);
  }
  entry->bytes = DiskBytes(entry->folder);
}

absl::Status WeightCache::MakeRoom(uint64_t bytes, const WeightLease* mine) {
  absl::MutexLock lock(mu_);
  const auto fits = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return UsedLocked() + bytes <= bytes_max_ && FreeBytes(folder_) >= bytes + kDiskReserveBytes;
  };
  for (auto& [id, entry] : entries_) entry.bytes = DiskBytes(entry.folder);
  if (!fits()) Shrink(mine->entry_, mine->opened_.get(), ShrinkScope::kMissing, mine);
  while (!fits()) {
    const Entry* oldest = nullptr;
    for (const auto& [id, entry] : entries_) {
      if (entry.leases.empty() && (oldest == nullptr || entry.last_use < oldest->last_use)) {
        oldest = &entry;
      }
    }
    if (oldest == nullptr) break;
    Remove(std::string(oldest->id));
  }
  for (auto& [id, entry] : entries_) {
    if (fits()) break;
    if (const std::shared_ptr<OpenFiles> opened = entry.opened.lock()) {
      Shrink(&entry, opened.get(), ShrinkScope::kNotLeased, nullptr);
    }
  }
  if (fits()) return absl::OkStatus();
  const uint64_t used = UsedLocked(), on_disk = FreeBytes(folder_);
  const uint64_t in_cache = bytes_max_ - std::min(bytes_max_, used);
  const uint64_t of_disk = on_disk - std::min(on_disk, kDiskReserveBytes);
  const DiskShortage shortage = {.needed_bytes = bytes, .free_bytes = std::min(in_cache, of_disk)};
  if (bytes > in_cache) {
    return NoRoom(shortage,
                  absl::StrCat("no room for ", Mebibytes(bytes), " of weights: the cache in ",
                               folder_, " may have ", Mebibytes(bytes_max_),
                               " (--cache-size), and loaded models take ", Mebibytes(used)));
  }
  return NoRoom(
      shortage,
      absl::StrCat("no room for ", Mebibytes(bytes), " of weights: the disk of ", folder_, " has ",
                   Mebibytes(on_disk), " free, of which ", Mebibytes(kDiskReserveBytes),
                   " are kept free for other programs; ", kMakeRoom));
}

WeightLease::~WeightLease() {
  {
    absl::MutexLock lock(cache_->mu_);
    std::erase(entry_->leases, this);
    entry_->bytes = DiskBytes(entry_->folder);
  }
  opened_.reset();
}

const std::string& WeightLease::path() const { return opened_->model->paths().front(); }

const std::shared_ptr<const ModelFile>& WeightLease::model() const { return opened_->model; }

const WeightBlocks& WeightLease::all_blocks() const { return opened_->blocks; }

std::string WeightLease::HashOf(uint32_t block) const {
  absl::MutexLock lock(cache_->mu_);
  const auto found = entry_->hashes.find(block);
  return found == entry_->hashes.end() ? "" : found->second;
}

WeightHashes WeightLease::KnownMissingHashes() const {
  absl::MutexLock lock(cache_->mu_);
  return entry_->missing;
}

void WeightLease::Learn(const WeightHashes& hashes) {
  absl::MutexLock lock(cache_->mu_);
  for (const auto& [block, hash] : hashes) {
    if (!entry_->hashes.contains(block)) entry_->missing[block] = hash;
  }
}

std::vector<uint32_t> WeightLease::Missing() const {
  absl::MutexLock lock(cache_->mu_);
  std::vector<uint32_t> missing;
  for (const uint32_t block : blocks_) {
    if (entry_->hashes.count(block) == 0) missing.push_back(block);
  }
  return missing;
}

std::vector<uint32_t> WeightLease::Suspect() const {
  absl::MutexLock lock(cache_->mu_);
  std::vector<uint32_t> suspect;
  for (const uint32_t block : blocks_) {
    if (entry_->suspect.contains(block)) suspect.push_back(block);
  }
  return suspect;
}

void WeightLease::MarkSuspect() {
  absl::MutexLock lock(cache_->mu_);
  for (const uint32_t block : blocks_) {
    if (entry_->hashes.contains(block)) entry_->suspect.insert(block);
  }
}

std::string WeightLease::BlockHashes() const {
  absl::MutexLock lock(cache_->mu_);
  std::string hashes;
  for (const uint32_t block : blocks_) {
    const auto found = entry_->hashes.find(block);
    // A block that was lost meanwhile has no hash; zeros match no block.
    hashes += found == entry_->hashes.end() ? std::string(kWeightHashBytes, '\0') : found->second;
  }
  return hashes;
}

bool WeightLease::Check(uint32_t block) {
  const WeightBlock& at = opened_->blocks[block];
  WeightHasher hasher;
  std::string bytes;
  for (uint64_t done = 0; done < at.bytes; done += bytes.size()) {
    bytes.resize(std::min(kCheckBytes, at.bytes - done));
    absl::Status status = opened_->model->Read(at.part, at.offset + done, absl::MakeSpan(bytes));
    if (!status.ok()) {
      // The block is fetched and written again; a failing disk is reported by that write.
      LOG(WARNING) << "a block of weights cannot be read and is fetched again: " << status;
      absl::MutexLock lock(cache_->mu_);
      WeightCache::MarkMissing(entry_, block);
      return false;
    }
    hasher.Add(bytes);
  }
  const std::string hash = hasher.Finish();
  absl::MutexLock lock(cache_->mu_);
  const auto kept = entry_->hashes.find(block);
  if (kept != entry_->hashes.end() && kept->second == hash) {
    entry_->suspect.erase(block);
    return true;
  }
  WeightCache::MarkMissing(entry_, block);
  return false;
}

absl::Status WeightLease::Forget(absl::Span<const uint32_t> blocks) {
  WeightHashes left;
  {
    absl::MutexLock lock(cache_->mu_);
    for (const uint32_t block : blocks) {
      if (cache_->IsLeased(*entry_, block, this)) {
        return absl::FailedPreconditionError(
            "other data of the same model is loaded here; unload it first");
      }
    }
    for (const uint32_t block : blocks) WeightCache::MarkMissing(entry_, block);
    entry_->missing.clear();  // these hashes may be of another file, too
    left = entry_->hashes;
  }
  return WriteStoredHashes(entry_->folder + "/blocks", entry_->id, left);
}

absl::Status WeightLease::MakeRoom() {
  return cache_->MakeRoom(opened_->blocks.BytesOf(Missing()), this);
}

absl::Status WeightLease::Write(uint32_t block, uint64_t offset, absl::string_view bytes) {
  const WeightBlock& at = opened_->blocks[block];
  absl::Status status = WriteAt(opened_->fds[at.part], at.offset + offset, bytes, cache_->folder_);
  if (!absl::IsResourceExhausted(status)) return status;
  const uint64_t needed = opened_->blocks.BytesOf(Missing());
  return NoRoom({.needed_bytes = needed}, absl::StrCat("no room for the ", Mebibytes(needed),
                                                       " of weights that are still to come: ",
                                                       status.message(), "; ", kMakeRoom));
}

void WeightLease::StartSaving(uint32_t block) {
  const WeightBlock& at = opened_->blocks[block];
  StartSync(opened_->fds[at.part], at.offset, at.bytes);
}

void WeightLease::Finish(uint32_t block, std::string hash) {
  absl::MutexLock lock(cache_->mu_);
  if (disk_failed_) return;  // its bytes may be among those that were lost
  entry_->hashes[block] = std::move(hash);
  entry_->missing.erase(block);
  entry_->suspect.erase(block);
  entry_->unsynced.insert(block);
}

absl::Status WeightLease::Save() {
  WeightHashes hashes, missing;
  std::set<uint32_t> unsynced;
  {
    absl::MutexLock lock(cache_->mu_);
    hashes = entry_->hashes;
    missing = entry_->missing;
    unsynced.swap(entry_->unsynced);
  }
  absl::Status synced;
  for (const int fd : opened_->fds) synced.Update(cache_->sync_(fd, entry_->folder));
  if (!synced.ok()) {
    // Some file systems allocate space only now, and do not say whose data was lost.
    absl::MutexLock lock(cache_->mu_);
    disk_failed_ = true;
    unsynced.merge(std::exchange(entry_->unsynced, {}));  // finished meanwhile
    for (const uint32_t block : unsynced) WeightCache::MarkMissing(entry_, block);
    return synced;
  }
  const absl::Status stored =
      WriteStoredHashes(entry_->folder + "/blocks", entry_->id, hashes, missing);
  if (!stored.ok()) {
    LOG(WARNING) << "weights will be fetched again after a restart: " << stored.message();
  }
  absl::MutexLock lock(cache_->mu_);
  entry_->bytes = DiskBytes(entry_->folder);
  return absl::OkStatus();
}

}  // namespace strata
