#include "node/keys/key_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/security/private_file.h"
#include "transport/security/secret.h"

namespace strata {
namespace {

absl::Status Write(const std::string& path, const ClusterKey& key, PrivateFileMode mode) {
  const Secret text = key.ToText();
  const Secret line(absl::StrCat(text.Reveal(), "\n"));
  return WritePrivateFile(path, line.Reveal(), mode);
}

absl::StatusOr<ClusterKey> KeyOf(const Secret& text, const std::string& path) {
  absl::StatusOr<ClusterKey> key = ClusterKey::FromText(text.Reveal());
  if (absl::IsInvalidArgument(key.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " does not hold a key: ", key.status().message()));
  }
  return key;
}

}  // namespace

std::string KeyFilePath(const std::string& data_dir) { return data_dir + "/cluster_key"; }

absl::StatusOr<ClusterKey> ReadKeyFile(const std::string& path) {
  const absl::StatusOr<Secret> text = ReadPrivateFile(path);
  if (!text.ok()) return text.status();
  return KeyOf(*text, path);
}

absl::StatusOr<ClusterKey> TakeKeyFile(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) && !file.eof()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("the key in ", path, " cannot be read"));
  }
  return KeyOf(Secret(std::move(line)), path);
}

absl::Status CreateKeyFile(const std::string& path, const ClusterKey& key) {
  absl::Status status = Write(path, key, PrivateFileMode::kNew);
  if (!absl::IsAlreadyExists(status)) return status;
  return absl::AlreadyExistsError(absl::StrCat("there is a key already, in ", path));
}

absl::Status CheckKeyFileCanChange(const std::string& path) {
  // A new file replaces the old one.
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  if (access(folder.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("the key in ", path, " cannot be changed"));
}

absl::Status ReplaceKeyFile(const std::string& path, const ClusterKey& key) {
  return Write(path, key, PrivateFileMode::kReplace);
}

}  // namespace strata
