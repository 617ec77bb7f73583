// The folder where a node keeps what outlives it: its id, and where it listens for programs of this
// machine. One node at a time uses it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

class DataDir {
 public:
  // ${XDG_STATE_HOME:-~/.local/state}/strata. kInvalidArgument when neither variable is set.
  static absl::StatusOr<std::string> Default();
  // As --data-dir says; where that is empty, Default().
  static absl::StatusOr<std::string> PathOf(const std::string& option);

  // Makes the folder and the id if they are not there. Errors name the file and the system's
  // reason; kFailedPrecondition: another node uses the folder, or its id is damaged. Blocks.
  static absl::StatusOr<DataDir> Open(const std::string& path);

  DataDir(DataDir&& other) noexcept;
  DataDir& operator=(DataDir&&) = delete;
  ~DataDir();

  const std::string& node_id() const { return node_id_; }
  // Of the address that was written before this node started; 0: none. Where others may still look
  // for the node.
  uint16_t last_port() const { return last_port_; }

  // Where the node that uses the folder is reached from this machine, host:port, until it goes.
  absl::Status WriteAddress(const std::string& address);
  // What the node that uses `path`, or the last one that did, wrote; it may be gone. kNotFound.
  static absl::StatusOr<std::string> ReadAddress(const std::string& path);

 private:
  DataDir() = default;

  std::string path_;
  int lock_fd_ = -1;
  std::string node_id_;
  uint16_t last_port_ = 0;
};

}  // namespace strata
