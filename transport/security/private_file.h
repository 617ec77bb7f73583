// Small files with secrets: readable by their owner only, written atomically, also when the power
// fails. Thread-safe for different files; blocks on the disk.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/security/secret.h"

namespace strata {

inline constexpr size_t kPrivateFileBytesMax = 1280 << 10;

// kNotFound: no such file. kPermissionDenied, with the remedy: others may read or write it, or it
// belongs to another user. kFailedPrecondition: it is no plain file, or a link to one, or longer
// than kPrivateFileBytesMax. Else the system's own reason. Errors name the file, never its content.
absl::StatusOr<Secret> ReadPrivateFile(const std::string& path);

enum class PrivateFileMode {
  kNew,      // kAlreadyExists when the name exists; it stays as it is
  kReplace,  // replaces an existing file; readers see the old or the new one
};

// Writes a file beside `path` with mode 0600, whatever the umask, and renames it once it is synced
// to the disk. Errors name the file and the system's reason; the old file has then not changed,
// except when only the sync of the folder failed.
absl::Status WritePrivateFile(const std::string& path, absl::string_view bytes,
                              PrivateFileMode mode);

// Makes the folder and missing folders above it, for their owner alone, whatever the umask.
// Existing ones stay as they are. Errors are the system's own reason, with the folder's name.
absl::Status MakePrivateFolder(const std::string& path);

// A new temporary folder that only its owner may read; the caller removes it. In memory, where the
// system has such folders.
absl::StatusOr<std::string> NewPrivateFolder();

}  // namespace strata
