#include "transport/security/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace strata {
namespace {

absl::Status CheckPrivate(int fd, const std::string& path) {
  struct stat about;
  if (fstat(fd, &about) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(about.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a plain file"));
  }
  if (about.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " belongs to another user (", about.st_uid,
                     "), who can read it: make it this user's own (chown ", geteuid(), " ", path,
                     "), or replace it"));
  }
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s is open to others (mode %04o): if nobody has read it, 'chmod 600 %s'; else replace it",
        path, about.st_mode & 07777, path));
  }
  if (about.st_size > static_cast<off_t>(kPrivateFileBytesMax)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is too long: at most ", kPrivateFileBytesMax, " bytes"));
  }
  return absl::OkStatus();
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// 0, or the value of errno.
int WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return fsync(fd) == 0 ? 0 : errno;
}

int SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  // Some file systems cannot sync folders, which is EINVAL.
  const int error = fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

absl::StatusOr<Secret> ReadPrivateFile(const std::string& path) {
  // O_NONBLOCK, so that opening a pipe of that name does not block.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ELOOP) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a link, not a plain file"));
  }
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  if (absl::Status status = CheckPrivate(fd, path); !status.ok()) return status;

  // One buffer that never grows, so that no copy is left behind.
  std::string bytes(kPrivateFileBytesMax, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t n = read(fd, bytes.data() + size, bytes.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      Wipe(&bytes);
      return absl::ErrnoToStatus(error, path);
    }
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  bytes.resize(size);
  return Secret(std::move(bytes));
}

absl::Status WritePrivateFile(const std::string& path, absl::string_view bytes,
                              PrivateFileMode mode) {
  std::string part = absl::StrCat(path, ".XXXXXX");
  const int fd = mkostemp(part.data(), O_CLOEXEC);  // O_EXCL, mode 0600
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
  int error = fchmod(fd, S_IRUSR | S_IWUSR) == 0 ? WriteAll(fd, bytes) : errno;
  if (close(fd) != 0 && error == 0) error = errno;
  // link() does not replace, rename() does.
  const bool replace = mode == PrivateFileMode::kReplace;
  if (error == 0) {
    const int moved =
        replace ? rename(part.c_str(), path.c_str()) : link(part.c_str(), path.c_str());
    if (moved != 0) error = errno;
  }
  if (error != 0 || !replace) unlink(part.c_str());
  if (error == 0) error = SyncFolder(FolderOf(path));
  return error == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, path);
}

absl::Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return absl::OkStatus();
  const std::filesystem::path above = std::filesystem::path(path).parent_path();
  if (!above.empty() && above != path) {
    if (absl::Status status = MakePrivateFolder(above.string()); !status.ok()) return status;
  }
  if (mkdir(path.c_str(), S_IRWXU) == 0) return absl::OkStatus();
  const int why = errno;
  if (why == EEXIST && std::filesystem::is_directory(path, error)) return absl::OkStatus();
  return absl::ErrnoToStatus(why, absl::StrCat("cannot make ", path));
}

absl::StatusOr<std::string> NewPrivateFolder() {
  std::error_code error;
  const std::string temporary = std::filesystem::temp_directory_path(error).string();
  // First in memory, where nothing is left on a disk.
  for (const std::string& parent : {std::string("/dev/shm"), temporary, std::string("/tmp")}) {
    std::string made = parent + "/strata-XXXXXX";
    if (!parent.empty() && mkdtemp(made.data()) != nullptr) return made;
  }
  return absl::ErrnoToStatus(errno, "cannot make a temporary folder, not even in /tmp");
}

}  // namespace strata
