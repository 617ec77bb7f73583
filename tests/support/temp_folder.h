// A folder of this test process alone: CTest runs the tests of one file in several processes at
// once.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "gtest/gtest.h"

namespace strata::testing {

// Made on the first call, removed with all that is in it when the process ends.
inline const std::string& ProcessTempFolder() {
  struct Folder {
    Folder() : path(::testing::TempDir() + "/strata-test-XXXXXX") {
      if (mkdtemp(path.data()) == nullptr) std::abort();
    }
    ~Folder() {
      if (getpid() != owner) return;  // a child that a death test forked
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    const pid_t owner = getpid();
    std::string path;
  };
  static const Folder folder;
  return folder.path;
}

// An empty folder in it, a new one at each call.
inline std::string MakeTestFolder() {
  std::string path = ProcessTempFolder() + "/XXXXXX";
  if (mkdtemp(path.data()) == nullptr) std::abort();
  return path;
}

}  // namespace strata::testing
