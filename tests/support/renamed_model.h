// The demo model under another name: another model, with an id of its own.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace strata::testing {

inline constexpr absl::string_view kDemoModelName = "Strata demo";

// Reads the demo model's file `from`. `name` is as long as kDemoModelName. A failure where it has
// no such name.
inline void WriteRenamedModel(const std::string& from, absl::string_view name,
                              const std::string& path) {
  std::ifstream file(from, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const size_t at = bytes.find(kDemoModelName);
  ASSERT_NE(at, bytes.npos);
  ASSERT_EQ(kDemoModelName.size(), name.size());
  std::ofstream(path, std::ios::binary) << bytes.replace(at, name.size(), name);
}

}  // namespace strata::testing
