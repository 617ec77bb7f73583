#include "shard/device/host_identity.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace strata {

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

std::string HostIdentity() {
  std::string identity = BootId();
  if (identity.empty()) return "";
  for (const char* name : {"/proc/self/ns/net", "/proc/self/ns/ipc"}) {
    char text[64];
    const ssize_t size = readlink(name, text, sizeof text);
    if (size <= 0) return "";
    absl::StrAppend(&identity, " ", absl::string_view(text, static_cast<size_t>(size)));
  }
  return identity;
}

}  // namespace strata
