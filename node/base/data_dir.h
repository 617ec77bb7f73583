// The folder where a node stores what outlives it: its id, and the address at which programs of
// this machine reach it. One node at a time uses it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// The folder in which a node with that data dir keeps processed prompts
// (shard/kv_store/kv_store.h).
inline std::string KvFolderPath(const std::string& data_dir) { return data_dir + "/kv"; }

class DataDir {
 public:
  // ${XDG_STATE_HOME:-~/.local/state}/strata. kInvalidArgument when neither variable is set.
  static absl::StatusOr<std::string> Default();
  // `option`, the value of --data-dir; if empty, Default().
  static absl::StatusOr<std::string> PathOf(const std::string& option);

  // Creates the folder and the id if they are missing. Errors name the file and the system's
  // reason; kFailedPrecondition: another node uses the folder, or its id is damaged. Blocks.
  static absl::StatusOr<DataDir> Open(const std::string& path);

  DataDir(DataDir&& other) noexcept;
  DataDir& operator=(DataDir&&) = delete;
  ~DataDir();

  const std::string& node_id() const { return node_id_; }
  // The port of the address that was written before this node started; 0: none. Others may still
  // look for the node there.
  uint16_t last_port() const { return last_port_; }

  // Stores the host:port at which programs of this machine reach this node while it runs.
  absl::Status WriteAddress(const std::string& address);
  // The address of the node that uses `path`, or last used it and may be gone. kNotFound: none.
  static absl::StatusOr<std::string> ReadAddress(const std::string& path);
  // Stores the URL of this node's page, for `strata page`; empty: it has none.
  absl::Status WritePageUrl(const std::string& url);
  // Of the node that uses `path`, or last used it. kNotFound: none, or it has no page.
  static absl::StatusOr<std::string> ReadPageUrl(const std::string& path);
  // The id of that node. kNotFound: none; kFailedPrecondition: it is damaged.
  static absl::StatusOr<std::string> ReadNodeId(const std::string& path);

 private:
  DataDir() = default;

  std::string path_;
  int lock_fd_ = -1;
  std::string node_id_;
  uint16_t last_port_ = 0;
};

}  // namespace strata
