#include "shard/kv_store/kv_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "shard/kv_store/kv_block.h"
#include "transport/base/descriptor.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// A block's file is named by so many hexadecimal digits.
constexpr size_t kBlockFileChars = 2 * kKvNameBytes;

// A folder that is about to go, by another name: a stage makes it anew meanwhile.
constexpr char kGone[] = ".gone";

constexpr char kKeyFile[] = "/key";
constexpr size_t kKeyBytes = 32;

absl::Status ErrnoOf(absl::string_view path) { return absl::ErrnoToStatus(errno, path); }

bool IsAt(const Descriptor& file, const std::string& path) {
  struct stat open_one = {}, named = {};
  return fstat(file.fd(), &open_one) == 0 && stat(path.c_str(), &named) == 0 &&
         open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

KvFolder Look(const std::string& path) {
  KvFolder folder = {.path = path};
  wire::KvCache& cache = folder.cache;
  if (const auto about = ReadPrivateFile(path + kKvAboutFile); about.ok()) {
    cache.mutable_about()->ParseFromString(about->Reveal());
  }
  std::error_code error;
  cache.set_loaded(fs::exists(path + kKvLockFile, error) && !LockKvFolder(path, LOCK_SH).valid());
  for (const auto& file : fs::directory_iterator(path, error)) {
    if (file.path().filename().string().size() != kBlockFileChars) continue;
    struct stat block = {};
    if (stat(file.path().c_str(), &block) != 0) continue;  // it has gone meanwhile
    cache.set_bytes(cache.bytes() + static_cast<uint64_t>(block.st_size));
    cache.set_blocks(cache.blocks() + 1);
    cache.set_used_unix_s(std::max(cache.used_unix_s(), int64_t{block.st_mtime}));
  }
  return folder;
}

}  // namespace

absl::StatusOr<Secret> KvKeyOf(const std::string& folder) {
  if (auto s = MakePrivateFolder(folder); !s.ok()) return s;
  const std::string path = folder + kKeyFile;
  auto key = ReadPrivateFile(path);
  if (absl::IsNotFound(key.status())) {
    std::string bytes(kKeyBytes, '\0');
    if (getentropy(bytes.data(), bytes.size()) != 0) return ErrnoOf("random bytes");
    absl::Status made = WritePrivateFile(path, bytes, PrivateFileMode::kNew);
    Wipe(&bytes);
    if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
    key = ReadPrivateFile(path);
  }
  if (key.ok() && key->Reveal().size() != kKeyBytes) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is damaged; remove it"));
  }
  return key;
}

absl::StatusOr<KvCipher> KvCipherOf(const Secret& key, const wire::KvIdentity& identity) {
  const wire::KvCacheAbout& about = identity.about();
  return KvCipher::Make(key, absl::StrCat(absl::BytesToHexString(about.model_id()), "\n",
                                          about.layers().begin(), "\n", about.layers().end(), "\n",
                                          identity.device(), "\n", identity.setting()));
}

absl::StatusOr<std::string> ReadKvFile(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return absl::NotFoundError(ErrnoOf(path).message());
  struct stat about = {};
  if (fstat(file.fd(), &about) != 0) return ErrnoOf(path);
  std::string bytes(static_cast<size_t>(about.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = read(file.fd(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoOf(path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

std::vector<KvFolder> ListKvFolders(const std::string& root) {
  std::vector<KvFolder> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (entry.is_directory(error)) folders.push_back(Look(entry.path().string()));
  }
  std::ranges::sort(folders, std::ranges::greater(),
                    [](const KvFolder& folder) { return folder.cache.used_unix_s(); });
  return folders;
}

Descriptor LockKvFolder(const std::string& path, int how) {
  const std::string file = path + kKvLockFile;
  Descriptor lock(open(file.c_str(), O_RDWR | O_CLOEXEC));
  // The folder may have been removed meanwhile, with that file, and made anew.
  const bool is_locked = lock.valid() && flock(lock.fd(), how | LOCK_NB) == 0 && IsAt(lock, file);
  return is_locked ? std::move(lock) : Descriptor();
}

bool RemoveKvFolder(const std::string& path) {
  std::error_code error;
  const Descriptor lock = LockKvFolder(path, LOCK_EX);
  if (!lock.valid() && fs::exists(path + kKvLockFile, error)) return false;
  const std::string gone = absl::StrCat(absl::StripSuffix(path, kGone), kGone);
  fs::rename(path, gone, error);
  if (!error) fs::remove_all(gone, error);
  return !error;
}

uint64_t ClearKvFolders(const std::string& root, absl::string_view model_id) {
  uint64_t bytes = 0;
  for (const KvFolder& folder : ListKvFolders(root)) {
    const bool is_meant = model_id.empty() || folder.cache.about().model_id() == model_id;
    if (is_meant && RemoveKvFolder(folder.path)) bytes += folder.cache.bytes();
  }
  return bytes;
}

}  // namespace strata
