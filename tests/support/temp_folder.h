// A folder of this test process alone: CTest runs the tests of one file in several processes at
// once.
#pragma once

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
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path;
  };
  static const Folder folder;
  return folder.path;
}

}  // namespace strata::testing
