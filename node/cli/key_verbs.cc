#include "node/cli/key_verbs.h"

#include <termios.h>
#include <unistd.h>

#include <iostream>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "node/base/data_dir.h"
#include "node/base/standard_output.h"
#include "node/keys/key_file.h"
#include "transport/security/cluster_key.h"
#include "transport/security/private_file.h"
#include "transport/security/secret.h"

namespace strata {
namespace {

absl::StatusOr<std::string> FileOf(const KeyVerbOptions& options) {
  const absl::StatusOr<std::string> folder = DataDir::PathOf(options.data_dir);
  if (!folder.ok()) return folder.status();
  // The node may not have run yet.
  if (absl::Status status = MakePrivateFolder(*folder); !status.ok()) {
    return absl::UnavailableError(status.message());
  }
  return KeyFilePath(*folder);
}

Secret ReadLine() {
  termios shown = {};
  const bool terminal = tcgetattr(STDIN_FILENO, &shown) == 0;
  const absl::Cleanup show = [&] {
    if (terminal) tcsetattr(STDIN_FILENO, TCSANOW, &shown);
  };
  if (terminal) {
    termios hidden = shown;
    hidden.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &hidden);
    std::cerr << "The key, as 'strata key show' writes it (it is not shown): " << std::flush;
  }
  std::string line;
  std::getline(std::cin, line);
  if (terminal) std::cerr << "\n";
  return Secret(std::move(line));
}

absl::Status StoreKey(const std::string& path, const ClusterKey& key, bool replace) {
  absl::Status status = replace ? ReplaceKeyFile(path, key) : CreateKeyFile(path, key);
  if (absl::IsAlreadyExists(status)) {
    return absl::AlreadyExistsError(
        absl::StrCat(status.message(), "; 'strata key set --replace' replaces it"));
  }
  if (!status.ok()) return status;
  std::cerr << "The key of cluster " << key.id() << " is in " << path
            << "; nodes that are started from now on use it\n";
  return absl::OkStatus();
}

}  // namespace

absl::Status RunKeyShow(const KeyVerbOptions& options) {
  const absl::StatusOr<std::string> path = FileOf(options);
  if (!path.ok()) return path.status();
  const absl::StatusOr<ClusterKey> key = ReadKeyFile(*path);
  if (absl::IsNotFound(key.status())) {
    return absl::NotFoundError(absl::StrCat("there is no key in ", *path,
                                            ": 'strata node' gets one, or founds a cluster"));
  }
  if (!key.ok()) return key.status();
  std::cerr
      << "The key of cluster " << key->id()
      << ". Anybody who has it is a member: give it to your own machines only ('strata key set' "
         "there).\n";
  const Secret text = key->ToText();
  const Secret line(text.Reveal() + "\n");
  return WriteToStdout(line.Reveal());
}

absl::Status RunKeyNew(const KeyVerbOptions& options) {
  const absl::StatusOr<std::string> path = FileOf(options);
  if (!path.ok()) return path.status();
  const absl::StatusOr<ClusterKey> key = ClusterKey::New();
  if (!key.ok()) return key.status();
  return StoreKey(*path, *key, /*replace=*/false);
}

absl::Status RunKeySet(const KeyVerbOptions& options) {
  const absl::StatusOr<std::string> path = FileOf(options);
  if (!path.ok()) return path.status();
  const Secret line = ReadLine();
  const absl::StatusOr<ClusterKey> key = ClusterKey::FromText(line.Reveal());
  if (!key.ok()) return key.status();
  return StoreKey(*path, *key, options.replace);
}

}  // namespace strata
