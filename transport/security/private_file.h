// Small files with secrets: readable by their owner only, written whole or not at all, also when
// the power fails. Thread-safe for different files; blocks on the disk.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/security/secret.h"

namespace strata {

inline constexpr size_t kPrivateFileBytesMax = 1 << 20;

// kNotFound: there is none. kPermissionDenied, with what to do: others may read or write it, or it
// belongs to somebody else. kFailedPrecondition: it is no plain file, or a link to one, or longer
// than kPrivateFileBytesMax. Else the system's own reason. Errors name the file, never what is in
// it.
absl::StatusOr<Secret> ReadPrivateFile(const std::string& path);

enum class PrivateFileMode {
  kNew,      // kAlreadyExists when there is something of that name, which stays as it is
  kReplace,  // in place of what was there, if anything; readers see the one or the other
};

// Writes beside `path` with mode 0600, whatever the umask, and moves it there when it is on the
// disk. Errors name the file and the system's reason; what was there before has then not changed,
// except when the folder alone could not be brought to the disk.
absl::Status WritePrivateFile(const std::string& path, absl::string_view bytes,
                              PrivateFileMode mode);

// Makes the folder and those above it that are missing, for their owner alone, whatever the umask.
// One that is there stays as it is. The system's own reason, with the folder's name.
absl::Status MakePrivateFolder(const std::string& path);

// For what nobody else may read and is needed for a while: whoever made it removes it. In memory,
// where the system has such folders.
absl::StatusOr<std::string> NewPrivateFolder();

}  // namespace strata
