#include "node/hub/part_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kLockPoll = absl::Milliseconds(200);
constexpr size_t kReadBytes = 1 << 20;
constexpr uint64_t kStatBlockBytes = 512;  // of stat::st_blocks

std::string PartOf(const std::string& path) { return path + ".part"; }
std::string StateOf(const std::string& path) { return path + ".part.json"; }
std::string NewStateOf(const std::string& path) { return path + ".part.json.new"; }

// As FILE.part.json says.
struct PartState {
  std::string validator;
  uint64_t bytes = 0;
  std::vector<MissingRange> missing;  // ascending, within `bytes`
};

// nullopt: there is none, or it is damaged.
std::optional<PartState> ReadPartState(const std::string& path) {
  std::ifstream in(StateOf(path), std::ios::binary);
  const Json json =
      Json::parse(std::string(std::istreambuf_iterator<char>(in), {}), nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const Json validator = json.value("validator", Json()), bytes = json.value("bytes", Json()),
             missing = json.value("missing", Json());
  if (!validator.is_string() || !bytes.is_number_unsigned() || !missing.is_array()) {
    return std::nullopt;
  }
  PartState state = {.validator = validator, .bytes = bytes};
  uint64_t last = 0;
  for (const Json& range : missing) {
    if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() ||
        !range[1].is_number_unsigned() || range[0] < last || range[1] <= range[0] ||
        range[1] > state.bytes) {
      return std::nullopt;
    }
    state.missing.push_back({.begin = range[0], .end = last = range[1]});
  }
  return state;
}

uint64_t BytesOf(const std::vector<MissingRange>& missing) {
  uint64_t bytes = 0;
  for (const MissingRange& range : missing) bytes += range.end - range.begin;
  return bytes;
}

// ENOSPC is kResourceExhausted by it, and a file that is too large for its file system, too.
absl::Status Failed(const std::string& path) {
  absl::Status status = absl::ErrnoToStatus(errno, path);
  return errno == EFBIG ? absl::ResourceExhaustedError(status.message()) : status;
}

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

// Of a file that is there; what is behind `text` becomes spaces.
absl::Status Overwrite(const std::string& path, std::string text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return Failed(path);
  struct stat there = {};
  if (fstat(fd, &there) == 0) {
    text.resize(std::max(text.size(), static_cast<size_t>(there.st_size)), ' ');
  }
  absl::Status status = WriteAll(fd, text, 0, path);
  if (status.ok() && fsync(fd) != 0) status = Failed(path);
  close(fd);
  return status;
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

std::vector<std::string> PartFilesOf(const std::string& path) {
  return {PartOf(path), StateOf(path), NewStateOf(path)};
}

PartProgress ProgressOfPart(const std::string& path) {
  PartProgress progress;
  const int fd = open(PartOf(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return progress;
  struct stat there = {};
  if (fstat(fd, &there) == 0) {
    // Of a server without ranges there is no state.
    progress.bytes_here = std::min(static_cast<uint64_t>(there.st_size),
                                   static_cast<uint64_t>(there.st_blocks) * kStatBlockBytes);
  }
  if (const auto state = ReadPartState(path); state.has_value()) {
    progress.bytes = state->bytes;
    progress.bytes_here = state->bytes - BytesOf(state->missing);
  }
  progress.is_running = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return progress;
}

absl::StatusOr<PartFile> PartFile::OpenLeftover(const std::string& path) {
  const std::string part = PartOf(path);
  PartFile file;
  file.path_ = path;
  file.fd_ = open(part.c_str(), O_RDWR | O_CLOEXEC);
  if (file.fd_ < 0) return Failed(part);
  if (flock(file.fd_, LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return Failed(part);
  return absl::FailedPreconditionError(
      absl::StrCat("another process is fetching ", PrintableText::OfPath(path).str(),
                   ": wait until it has ended, or interrupt it (Ctrl-C), and try again"));
}

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
  struct stat there = {};
  const bool was_there = fstat(fd_, &there) == 0 && there.st_size > 0;
  auto state = ReadPartState(path_);
  const bool is_same = was_there && state.has_value() && !validator.empty() && bytes > 0 &&
                       state->validator == validator && state->bytes == bytes &&
                       static_cast<uint64_t>(there.st_size) == bytes;
  if (is_same) missing_ = std::move(state->missing);
  if (is_same) return false;
  std::error_code ignored;
  std::filesystem::remove(StateOf(path_), ignored);
  if (ftruncate(fd_, 0) != 0) return Failed(PartOf(path_));
  if (bytes > 0) missing_.push_back({.begin = 0, .end = bytes});
  return was_there && state.has_value();
}

absl::Status PartFile::Resize() {
  return ftruncate(fd_, static_cast<off_t>(bytes_)) == 0 ? absl::OkStatus() : Failed(PartOf(path_));
}

uint64_t PartFile::bytes_missing() const { return BytesOf(missing_); }

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
  const std::string state = StateOf(path_), written = NewStateOf(path_);
  const int fd = open(written.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  absl::Status status = fd < 0 ? Failed(written) : WriteAll(fd, text, 0, written);
  if (status.ok() && fsync(fd) != 0) status = Failed(written);
  if (fd >= 0) close(fd);
  if (status.ok() && rename(written.c_str(), state.c_str()) != 0) status = Failed(state);
  if (status.ok()) return status;
  unlink(written.c_str());
  // A full disk has room for it where the old one is.
  return absl::IsResourceExhausted(status) ? Overwrite(state, text) : status;
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
  unlink(NewStateOf(path_).c_str());  // of a process that was killed
  return SyncFolderOf(path_);
}

void PartFile::Discard() {
  // The bytes last: without them the rest has no meaning.
  const std::vector<std::string> files = PartFilesOf(path_);
  for (auto file = files.rbegin(); file != files.rend(); ++file) unlink(file->c_str());
}

}  // namespace strata
