#include "node/base/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/base/node_id.h"
#include "transport/base/peer_addresses.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

std::string IdPath(const std::string& path) { return path + "/node_id"; }

// Writes all of it or nothing, also when the power fails: writes another file and renames it.
absl::Status WriteFile(const std::string& path, const std::string& line) {
  const std::string text = line + "\n";
  const std::string part = path + ".part";
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, part);
  const ssize_t n = write(fd, text.data(), text.size());
  int error = n < 0 ? errno : n != static_cast<ssize_t>(text.size()) ? ENOSPC : 0;
  if (error == 0 && fsync(fd) != 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(part.c_str());
  return absl::ErrnoToStatus(error, path);
}

}  // namespace

absl::StatusOr<std::string> DataDir::Default() {
  const char* state = getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return absl::StrCat(state, "/strata");
  const char* home = getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.local/state/strata");
  return absl::InvalidArgumentError("--data-dir is needed: HOME is not set");
}

absl::StatusOr<std::string> DataDir::PathOf(const std::string& option) {
  if (!option.empty()) return option;
  return Default();
}

absl::StatusOr<DataDir> DataDir::Open(const std::string& path) {
  if (absl::Status status = MakePrivateFolder(path); !status.ok()) return status;
  DataDir dir;
  dir.path_ = path;
  const std::string lock_path = path + "/lock";
  dir.lock_fd_ = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (dir.lock_fd_ < 0) return absl::ErrnoToStatus(errno, lock_path);
  if (flock(dir.lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, lock_path);
    return absl::FailedPreconditionError(
        absl::StrCat("another node uses ", path, "; give this one its own with --data-dir"));
  }

  absl::StatusOr<std::string> id = ReadNodeId(path);
  if (absl::IsNotFound(id.status())) {
    id = NewNodeId();
    if (absl::Status status = WriteFile(IdPath(path), *id); !status.ok()) return status;
  }
  if (!id.ok()) return id.status();
  dir.node_id_ = *std::move(id);
  if (absl::StatusOr<std::string> address = ReadAddress(path); address.ok()) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(*address);
    if (parsed.ok()) dir.last_port_ = parsed->port;
  }
  return dir;
}

absl::Status DataDir::WriteAddress(const std::string& address) {
  return WriteFile(path_ + "/address", address);
}

absl::StatusOr<std::string> DataDir::ReadAddress(const std::string& path) {
  std::ifstream file(path + "/address");
  std::string line;
  if (!std::getline(file, line) || line.empty()) {
    return absl::NotFoundError(absl::StrCat("no node has used the data folder ", path));
  }
  return line;
}

absl::Status DataDir::WritePageUrl(const std::string& url) {
  return WriteFile(path_ + "/page_url", url);
}

absl::StatusOr<std::string> DataDir::ReadPageUrl(const std::string& path) {
  std::ifstream file(path + "/page_url");
  std::string line;
  if (!std::getline(file, line) || line.empty()) {
    return absl::NotFoundError(absl::StrCat("no node with a page has used the data folder ", path,
                                            "; strata node serves one, but with --no-page"));
  }
  return line;
}

absl::StatusOr<std::string> DataDir::ReadNodeId(const std::string& path) {
  const std::string id_path = IdPath(path);
  const int fd = open(id_path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, id_path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  char bytes[kNodeIdDigits + 2];
  const ssize_t n = read(fd, bytes, sizeof bytes);
  if (n < 0) return absl::ErrnoToStatus(errno, id_path);
  const absl::string_view id =
      absl::StripTrailingAsciiWhitespace(absl::string_view(bytes, static_cast<size_t>(n)));
  if (!IsNodeId(id)) {
    return absl::FailedPreconditionError(
        absl::StrCat(id_path, " does not hold a node id; remove it to get a new one"));
  }
  return std::string(id);
}

DataDir::DataDir(DataDir&& other) noexcept
    : path_(std::move(other.path_)),
      lock_fd_(std::exchange(other.lock_fd_, -1)),
      node_id_(std::move(other.node_id_)),
      last_port_(other.last_port_) {}

DataDir::~DataDir() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

}  // namespace strata
