// The speeds of this machine's devices, measured once for all tests of a build: a node whose data
// folder has them starts without the seconds that measuring takes.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace strata::testing {

// They are kept beside `program`, a node's own file of them, and hold until it is built again.
inline std::string MeasuredSpeedsOf(const std::string& program) {
  return absl::StrCat(program, ".devices");
}

// Before a node with this data folder starts.
inline void UseMeasuredSpeeds(const std::string& program, const std::string& data_folder) {
  std::error_code ignored;
  const std::string kept = MeasuredSpeedsOf(program);
  if (std::filesystem::last_write_time(kept, ignored) >
      std::filesystem::last_write_time(program, ignored)) {
    std::filesystem::copy_file(kept, data_folder + "/devices", ignored);  // unless it has its own
  }
}

// After a node with this data folder has measured, or not.
inline void KeepMeasuredSpeeds(const std::string& program, const std::string& data_folder) {
  std::error_code error;
  const std::string partial = absl::StrCat(MeasuredSpeedsOf(program), ".", getpid());
  std::filesystem::copy_file(data_folder + "/devices", partial,
                             std::filesystem::copy_options::overwrite_existing, error);
  if (!error) std::filesystem::rename(partial, MeasuredSpeedsOf(program), error);
}

}  // namespace strata::testing
