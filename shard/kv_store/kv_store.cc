#include "shard/kv_store/kv_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "shard/kv_store/kv_folder.h"
#include "transport/base/descriptor.h"
#include "transport/base/thread_name.h"
#include "transport/base/wall_clock.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr char kUnfinished[] = "/unfinished";
// A stage that is leaving may still write what it has.
constexpr int kLockTries = 40;
constexpr absl::Duration kLockWait = absl::Milliseconds(50);

absl::Status SystemError(absl::string_view path) {
  return absl::ErrnoToStatus(errno, path);  // "PATH: No space left on device"
}

// The lock of a store's folder, which is made. kFailedPrecondition: another one has it.
absl::StatusOr<Descriptor> Lock(const std::string& folder, bool waits) {
  for (int i = 0;; ++i) {
    if (auto s = MakePrivateFolder(folder); !s.ok()) return s;
    const std::string path = folder + kKvLockFile;
    if (!Descriptor(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)).valid()) {
      return SystemError(path);
    }
    if (Descriptor lock = LockKvFolder(folder, LOCK_EX); lock.valid()) return lock;
    if (!waits || i == kLockTries) {
      return absl::FailedPreconditionError(absl::StrCat(folder, " is used by another stage"));
    }
    absl::SleepFor(kLockWait);
  }
}

int64_t FileTime(fs::file_time_type time) { return time.time_since_epoch().count(); }

// Removes stores that nobody has open, the least recently used first, until no more is left of them
// than `options` say.
void RemoveOthers(const std::string& root, const std::string& own,
                  const KvStore::Options& options) {
  const std::vector<KvFolder> folders = ListKvFolders(root);
  const auto is_open = [&](const KvFolder& folder) {
    return folder.path == own || folder.cache.loaded();
  };
  uint64_t open_bytes = 0, bytes = 0;
  for (const KvFolder& folder : folders) open_bytes += is_open(folder) ? folder.cache.bytes() : 0;
  const uint64_t bytes_max =
      std::min(options.others_bytes_max,
               options.all_bytes_max - std::min(options.all_bytes_max, open_bytes));
  for (const KvFolder& folder : folders) {
    if (is_open(folder)) continue;
    bytes += folder.cache.bytes();
    if (bytes > bytes_max) RemoveKvFolder(folder.path);
  }
}

// Names() has the file last when the store is opened again. The kernel's own stamps are too coarse
// to tell blocks of one sequence apart.
void Touch(const std::string& path) {
  const timespec now = absl::ToTimespec(WallNow());
  const timespec times[2] = {now, now};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Open(Options options) {
  const std::string& root = options.folder;
  const auto key = KvKeyOf(root);
  if (!key.ok()) return key.status();
  auto caller = KvCipherOf(*key, options.identity);
  if (!caller.ok()) return caller.status();
  auto writer = KvCipherOf(*key, options.identity);
  if (!writer.ok()) return writer.status();
  const std::string folder = absl::StrCat(root, "/", caller->folder());
  auto lock = Lock(folder, options.waits);
  if (!lock.ok()) return lock.status();
  RemoveOthers(root, folder, options);
  const std::string about = options.identity.about().SerializeAsString();
  if (auto s = WritePrivateFile(folder + kKvAboutFile, about, PrivateFileMode::kReplace); !s.ok()) {
    LOG(WARNING) << "strata cache show cannot tell what it is of: " << s.message();
  }
  Ciphers ciphers = {.caller = *std::move(caller), .writer = *std::move(writer)};
  std::unique_ptr<KvStore> store(
      new KvStore(std::move(options), folder, std::move(ciphers), lock->Release()));
  store->Scan();
  store->writer_ = std::thread([store = store.get()] { store->RunWriter(); });
  return store;
}

KvStore::KvStore(Options options, std::string folder, Ciphers ciphers, int lock_fd)
    : root_(std::move(options.folder)),
      identity_(std::move(options.identity)),
      folder_(std::move(folder)),
      ciphers_(std::move(ciphers)),
      lock_fd_(lock_fd),
      bytes_max_(options.bytes_max) {}

KvStore::~KvStore() {
  ReplaceFollowers("", [] { return Followers(); });
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
  }
  writer_.join();
  close(lock_fd_);
}

void KvStore::Scan() {
  absl::MutexLock lock(mu_);
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder_, error)) {
    const std::optional<KvName> name = ciphers_.caller.NameOf(file.path().filename().string());
    const uint64_t bytes = file.file_size(error);
    if (!name || error) continue;
    blocks_[*name] = {.bytes = bytes, .used = FileTime(file.last_write_time(error))};
    bytes_used_ += bytes;
  }
  if (bytes_used_ <= bytes_max_) return;  // else it had more room before
  for (const KvName& name : NamesByUse()) {
    if (bytes_used_ > bytes_max_) Erase(name);
  }
}

void KvStore::UseCuts(Join join) {
  const auto key = KvKeyOf(root_);
  if (!key.ok()) return;  // Open() has read it: it has gone since
  join_ = std::move(join);
  cuts_.emplace(root_, *key, identity_);
}

uint64_t KvStore::bytes_used() const {
  absl::MutexLock lock(mu_);
  return bytes_used_;
}

uint64_t KvStore::waiting_bytes() const {
  absl::MutexLock lock(mu_);
  return waiting_bytes_;
}

std::vector<KvName> KvStore::Names() const {
  std::vector<KvName> names;
  if (cuts_) names = cuts_->Names();
  absl::MutexLock lock(mu_);
  std::erase_if(names, [this](const KvName& name)
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return blocks_.contains(name); });
  const std::vector<KvName> own = NamesByUse();
  names.insert(names.end(), own.begin(), own.end());
  return names;
}

std::vector<KvName> KvStore::NamesByUse() const {
  std::vector<std::pair<int64_t, KvName>> by_use;
  for (const auto& [name, block] : blocks_) by_use.emplace_back(block.used, name);
  std::ranges::sort(by_use);
  std::vector<KvName> names;
  names.reserve(by_use.size());
  for (const auto& [used, name] : by_use) names.push_back(name);
  return names;
}

void KvStore::Put(const KvCipher::BlockId& id, std::string bytes) {
  const KvName& name = id.name;
  absl::MutexLock lock(mu_);
  Erase(name);
  const uint64_t size = bytes.size() + kKvSealBytes;
  if (size > bytes_max_ || waiting_bytes_ + size > kKvWaitingBytesMax) {
    lost_.push_back(name);
    return;
  }
  while (bytes_used_ + size > bytes_max_) {
    const auto used = [](const auto& each) { return each.second.used; };
    const KvName oldest = std::ranges::min_element(blocks_, {}, used)->first;
    Lose(oldest);
  }
  blocks_[name] = {.bytes = size,
                   .used = FileTime(fs::file_time_type::clock::now()),
                   .scope = std::string(id.scope),
                   .waiting = std::make_shared<const Unwritten>(
                       Unwritten{.scope = std::string(id.scope), .bytes = std::move(bytes)})};
  bytes_used_ += size;
  waiting_bytes_ += size;
  to_write_.push_back(name);
  ++changes_;
}

absl::StatusOr<std::string> KvStore::Get(const KvCipher::BlockId& id) {
  const KvName& name = id.name;
  bool is_there = false;
  {
    absl::MutexLock lock(mu_);
    const auto found = blocks_.find(name);
    is_there = found != blocks_.end();
    if (is_there) found->second.used = FileTime(fs::file_time_type::clock::now());
    if (const auto waiting = is_there ? found->second.waiting : nullptr; waiting != nullptr) {
      if (waiting->scope == id.scope) return waiting->bytes;
      Lose(name);
      return absl::DataLossError("a KV block is of another scope");
    }
  }
  if (!is_there) return GetFromCuts(id);
  const std::string path = PathOf(ciphers_.caller, name);
  auto sealed = ReadKvFile(path);
  if (sealed.ok()) Touch(path);
  auto bytes = sealed.ok() ? ciphers_.caller.Open(id, *sealed) : sealed;
  absl::MutexLock lock(mu_);
  const auto found = blocks_.find(name);
  if (!bytes.ok()) {
    LOG(WARNING) << path << ": " << bytes.status().message() << "; its tokens are fed again";
    Lose(name);
  } else if (found != blocks_.end() && !found->second.scope) {
    found->second.scope = std::string(id.scope);
    ++changes_;
  }
  return bytes;
}

absl::StatusOr<std::string> KvStore::GetFromCuts(const KvCipher::BlockId& id) {
  absl::StatusOr<std::string> bytes = absl::NotFoundError("a KV block is not there");
  if (cuts_) {
    const auto parts = cuts_->Read(id);
    bytes = parts.ok() ? join_(*parts) : parts.status();
  }
  if (bytes.ok()) {
    Put(id, *bytes);
    return bytes;
  }
  if (!absl::IsNotFound(bytes.status())) {
    LOG(WARNING) << folder_ << ": a block of other layers: " << bytes.status().message()
                 << "; its tokens are fed again";
  }
  // With more memory they are of use.
  if (cuts_ && !absl::IsResourceExhausted(bytes.status())) cuts_->Forget(id.name);
  absl::MutexLock lock(mu_);
  lost_.push_back(id.name);
  return bytes;
}

KvStore::Followers KvStore::ReplaceFollowers(const std::string& targets,
                                             absl::FunctionRef<Followers()> make) {
  absl::MutexLock lock(followers_mu_);
  if (!followers_.empty() && targets == targets_) return {};
  targets_ = targets;
  return std::exchange(followers_, make());
}

std::vector<wire::ReplicaStatus> KvStore::FollowerStatus() const {
  absl::MutexLock lock(followers_mu_);
  std::vector<wire::ReplicaStatus> all;
  all.reserve(followers_.size());
  for (const auto& follower : followers_) all.push_back(follower->status());
  return all;
}

std::vector<KvStore::Kept> KvStore::KeptBlocks() const {
  std::vector<std::pair<int64_t, Kept>> by_use;
  {
    absl::MutexLock lock(mu_);
    by_use.reserve(blocks_.size());
    for (const auto& [name, block] : blocks_) {
      by_use.emplace_back(block.used,
                          Kept{.name = name, .scope = block.scope, .bytes = block.bytes});
    }
  }
  std::ranges::stable_sort(by_use, std::ranges::greater(),
                           [](const auto& each) { return each.first; });
  std::vector<Kept> kept;
  kept.reserve(by_use.size());
  for (auto& [used, block] : by_use) kept.push_back(std::move(block));
  return kept;
}

uint64_t KvStore::AwaitChange(uint64_t seen, absl::Duration limit) const {
  absl::MutexLock lock(mu_);
  const auto is_other = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return changes_ != seen; };
  mu_.AwaitWithTimeout(absl::Condition(&is_other), limit);
  return changes_;
}

void KvStore::Wake() {
  absl::MutexLock lock(mu_);
  ++changes_;
}

absl::StatusOr<KvStore::Reader> KvStore::NewReader() const {
  const auto key = KvKeyOf(root_);
  if (!key.ok()) return key.status();
  auto cipher = KvCipherOf(*key, identity_);
  if (!cipher.ok()) return cipher.status();
  return Reader(this, *std::move(cipher));
}

absl::StatusOr<std::string> KvStore::Reader::Read(const KvCipher::BlockId& id) const {
  std::shared_ptr<const Unwritten> waiting;
  {
    absl::MutexLock lock(store_->mu_);
    const auto found = store_->blocks_.find(id.name);
    if (found == store_->blocks_.end()) return absl::NotFoundError("a KV block is not there");
    waiting = found->second.waiting;
  }
  if (waiting != nullptr) return waiting->bytes;
  const auto sealed = ReadKvFile(store_->PathOf(cipher_, id.name));
  return sealed.ok() ? cipher_.Open(id, *sealed) : sealed;
}

void KvStore::Use(absl::Span<const KvName> names) {
  absl::MutexLock lock(mu_);
  int64_t used = FileTime(fs::file_time_type::clock::now());
  for (size_t i = names.size(); i > 0; --i) {
    const auto found = blocks_.find(names[i - 1]);
    if (found != blocks_.end()) found->second.used = used++;
  }
}

void KvStore::Forget(const KvName& name) {
  if (cuts_) cuts_->Forget(name);
  absl::MutexLock lock(mu_);
  Erase(name);
}

std::vector<KvName> KvStore::TakeLost() {
  absl::MutexLock lock(mu_);
  return std::exchange(lost_, {});
}

void KvStore::Lose(const KvName& name) {
  Erase(name);
  lost_.push_back(name);
}

void KvStore::Erase(const KvName& name) {
  const auto found = blocks_.find(name);
  if (found == blocks_.end()) return;
  bytes_used_ -= found->second.bytes;
  if (found->second.waiting != nullptr) {
    waiting_bytes_ -= found->second.bytes;
  } else {
    unlink(PathOf(ciphers_.caller, name).c_str());
  }
  ++changes_;
  blocks_.erase(found);
}

absl::Status KvStore::Write(const KvName& name, const Unwritten& block) const {
  const auto sealed = ciphers_.writer.Seal({name, block.scope}, block.bytes);
  if (!sealed.ok()) return sealed.status();
  const std::string unfinished = folder_ + kUnfinished;
  const auto create = [&] {
    return open(unfinished.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  };
  int fd = create();
  // Somebody has removed the folder to be rid of what was there.
  if (fd < 0 && errno == ENOENT && MakePrivateFolder(folder_).ok()) fd = create();
  if (fd < 0) return SystemError(folder_);
  size_t done = 0;
  absl::Status status;
  while (done < sealed->size() && status.ok()) {
    const ssize_t n = write(fd, sealed->data() + done, sealed->size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      status = SystemError(folder_);
    }
  }
  if (close(fd) != 0 && status.ok()) status = SystemError(folder_);
  Touch(unfinished);
  const std::string path = PathOf(ciphers_.writer, name);
  if (status.ok() && rename(unfinished.c_str(), path.c_str()) != 0) status = SystemError(folder_);
  if (!status.ok()) unlink(unfinished.c_str());
  return status;
}

void KvStore::RunWriter() {
  NameThread("kv_store");
  while (true) {
    KvName name;
    std::shared_ptr<const Unwritten> block;
    {
      absl::MutexLock lock(mu_);
      const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return !to_write_.empty() || stopping_;
      };
      mu_.Await(absl::Condition(&has_work));
      if (to_write_.empty()) return;
      name = to_write_.front();
      to_write_.pop_front();
      const auto found = blocks_.find(name);
      if (found != blocks_.end()) block = found->second.waiting;
    }
    if (block == nullptr) continue;  // it was forgotten, or is written already
    OnWritten(name, block, Write(name, *block));
  }
}

void KvStore::OnWritten(const KvName& name, const std::shared_ptr<const Unwritten>& block,
                        const absl::Status& status) {
  absl::MutexLock lock(mu_);
  const auto found = blocks_.find(name);
  const bool is_wanted = found != blocks_.end() && found->second.waiting == block;
  if (status.ok() && is_wanted) {
    waiting_bytes_ -= found->second.bytes;
    found->second.waiting = nullptr;
  } else if (status.ok()) {
    unlink(PathOf(ciphers_.writer, name).c_str());  // it was forgotten meanwhile
  } else if (is_wanted) {
    Lose(name);
  }
  if (!status.ok() && !has_failed_) {
    LOG(WARNING) << "cannot keep processed prompts: " << status.message()
                 << "; they are processed again. See strata node --kv-cache-disk";
  }
  has_failed_ = !status.ok();
}

}  // namespace strata
