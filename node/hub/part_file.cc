#include "node/hub/part_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kLockPoll = absl::Milliseconds(200);
constexpr size_t kReadBytes = 1 << 20;

std::string PartOf(const std::string& path) { return path + ".part"; }
std::string StateOf(const std::string& path) { return path + ".part.json"; }

// ENOSPC is kResourceExhausted by it.
absl::Status Failed(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

absl::Status WriteAll(int fd, absl::string_view bytes, off_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(path);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return absl::OkStatus();
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed(folder);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  // Some file systems of networks cannot.
  return error == 0 || error == EINVAL ? absl::OkStatus() : absl::ErrnoToStatus(error, folder);
}

}  // namespace

absl::StatusOr<PartFile> PartFile::Open(const std::string& path,
                                        const std::function<bool()>& cancelled,
                                        const std::function<void()>& waiting) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return absl::ErrnoToStatus(error.value(), path);
  const std::string part = PartOf(path);
  for (bool said = false;;) {
    const int fd = open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return Failed(part);
    PartFile file;
    file.path_ = path;
    file.fd_ = fd;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      // The one who had it may have finished, and the name is another file's by now.
      struct stat open_file = {}, named = {};
      const bool is_named = fstat(fd, &open_file) == 0 && stat(part.c_str(), &named) == 0 &&
                            open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
      if (!is_named) continue;
      if (std::filesystem::exists(path, error)) {
        file.Discard();
        return absl::AlreadyExistsError(path);
      }
      return file;
    }
    if (errno != EWOULDBLOCK) return Failed(part);
    if (!std::exchange(said, true)) waiting();
    if (cancelled()) return absl::CancelledError("interrupted");
    absl::SleepFor(kLockPoll);
  }
}

PartFile::PartFile(PartFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      validator_(std::move(other.validator_)),
      bytes_(other.bytes_),
      missing_(std::move(other.missing_)) {}

PartFile::~PartFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<bool> PartFile::Begin(const std::string& validator, uint64_t bytes) {
  validator_ = validator;
  bytes_ = bytes;
  missing_.clear();
  std::ifstream in(StateOf(path_), std::ios::binary);
  const Json json =
      Json::parse(std::string(std::istreambuf_iterator<char>(in), {}), nullptr, false);
  bool is_same = false, was_there = false;
  struct stat there = {};
  if (json.is_object() && fstat(fd_, &there) == 0 && there.st_size > 0) {
    was_there = true;
    is_same = !validator.empty() && bytes > 0 && json.value("validator", Json()) == validator &&
              json.value("bytes", Json()) == bytes && static_cast<uint64_t>(there.st_size) == bytes;
    const Json missing = json.value("missing", Json());
    is_same = is_same && missing.is_array();
    uint64_t last = 0;
    for (const Json& range : missing) {
      if (!is_same) break;
      is_same = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
                range[1].is_number_unsigned() && range[0] >= last && range[1] > range[0] &&
                range[1] <= bytes;
      if (is_same) missing_.push_back({.begin = range[0], .end = last = range[1]});
    }
  }
  if (is_same) return false;
  missing_.clear();
  std::error_code ignored;
  std::filesystem::remove(StateOf(path_), ignored);
  if (ftruncate(fd_, 0) != 0) return Failed(PartOf(path_));
  if (bytes > 0) missing_.push_back({.begin = 0, .end = bytes});
  return was_there;
}

absl::Status PartFile::Resize() {
  return ftruncate(fd_, static_cast<off_t>(bytes_)) == 0 ? absl::OkStatus() : Failed(PartOf(path_));
}

uint64_t PartFile::bytes_missing() const {
  uint64_t bytes = 0;
  for (const MissingRange& range : missing_) bytes += range.end - range.begin;
  return bytes;
}

bool PartFile::HasBytes() const {
  struct stat there = {};
  // Before Begin() nobody knows what is missing.
  return fstat(fd_, &there) == 0 && there.st_size > 0 && (bytes_ == 0 || bytes_missing() < bytes_);
}

absl::Status PartFile::Write(uint64_t offset, absl::string_view bytes) const {
  return WriteAll(fd_, bytes, static_cast<off_t>(offset), PartOf(path_));
}

absl::Status PartFile::Save(std::vector<MissingRange> missing) {
  // First the bytes, then the claim that they are there.
  if (fsync(fd_) != 0) return Failed(PartOf(path_));
  missing_ = std::move(missing);
  Json ranges = Json::array();
  for (const MissingRange& range : missing_) ranges.push_back({range.begin, range.end});
  const std::string text =
      Json{{"validator", validator_}, {"bytes", bytes_}, {"missing", std::move(ranges)}}.dump(
          -1, ' ', false, Json::error_handler_t::replace);
  const std::string state = StateOf(path_), written = state + ".new";
  const int fd = open(written.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return Failed(written);
  absl::Status status = WriteAll(fd, text, 0, written);
  if (status.ok() && fsync(fd) != 0) status = Failed(written);
  close(fd);
  if (status.ok() && rename(written.c_str(), state.c_str()) != 0) status = Failed(state);
  if (!status.ok()) unlink(written.c_str());
  return status;
}

absl::StatusOr<std::string> PartFile::Sha256(const std::function<bool()>& cancelled) const {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     EVP_MD_CTX_free);
  if (hash == nullptr || EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("OpenSSL has no SHA-256");
  }
  std::string bytes(kReadBytes, '\0');
  for (off_t offset = 0;;) {
    if (cancelled()) return absl::CancelledError("interrupted");
    const ssize_t n = pread(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(PartOf(path_));
    if (n == 0) break;
    EVP_DigestUpdate(hash.get(), bytes.data(), static_cast<size_t>(n));
    offset += n;
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(hash.get(), digest, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

absl::Status PartFile::Finish() {
  if (fsync(fd_) != 0 || rename(PartOf(path_).c_str(), path_.c_str()) != 0) {
    return Failed(path_);
  }
  unlink(StateOf(path_).c_str());
  return SyncFolderOf(path_);
}

void PartFile::Discard() {
  unlink(StateOf(path_).c_str());
  unlink(PartOf(path_).c_str());
}

}  // namespace strata
