#include "node/base/data_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "transport/base/node_id.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// A path that does not exist yet.
std::string Fresh() { return testing::MakeTestFolder() + "/a/b"; }

TEST(DataDir, KeepsTheId) {
  const std::string path = Fresh();
  std::string id;
  {
    auto dir = DataDir::Open(path);
    ASSERT_TRUE(dir.ok()) << dir.status();
    id = dir->node_id();
    EXPECT_EQ(DataDir::ReadNodeId(path).value(), id);
    EXPECT_THAT(id, MatchesRegex("[0-9a-f]+"));
    EXPECT_EQ(id.size(), 32u);
  }
  auto again = DataDir::Open(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->node_id(), id);
}

TEST(DataDir, IdsDiffer) { EXPECT_NE(NewNodeId(), NewNodeId()); }

TEST(DataDir, OneNodeAtATimeUsesIt) {
  const std::string path = Fresh();
  auto first = DataDir::Open(path);
  ASSERT_TRUE(first.ok());
  auto second = DataDir::Open(path);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--data-dir"));
}

TEST(DataDir, ADamagedIdIsNotUsedAndNotReplaced) {
  for (const char* text :
       {"", "short", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdef0"}) {
    const std::string path = Fresh();
    std::filesystem::create_directories(path);
    std::ofstream(path + "/node_id") << text;
    auto dir = DataDir::Open(path);
    EXPECT_EQ(dir.status().code(), absl::StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(std::string(dir.status().message()), HasSubstr(path + "/node_id"));
    EXPECT_TRUE(std::filesystem::exists(path + "/node_id"));
  }
}

TEST(DataDir, AFileInPlaceOfTheFolderIsAnErrorWithItsName) {
  const std::string path = Fresh();
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path);
  auto dir = DataDir::Open(path);
  EXPECT_FALSE(dir.ok());
  EXPECT_THAT(std::string(dir.status().message()), HasSubstr(path));
}

TEST(DataDir, AFullDiskIsAnErrorAndLeavesNoPartialId) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string path = Fresh();
  std::filesystem::create_directories(path);
  std::filesystem::create_symlink("/dev/full", path + "/node_id.part");
  auto dir = DataDir::Open(path);
  EXPECT_EQ(dir.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(std::filesystem::exists(path + "/node_id"));
}

TEST(DataDir, DefaultFollowsTheEnvironment) {
  const std::string home = getenv("HOME") == nullptr ? "" : getenv("HOME");
  setenv("XDG_STATE_HOME", "/state", 1);
  EXPECT_EQ(*DataDir::Default(), "/state/strata");
  setenv("XDG_STATE_HOME", "relative", 1);  // must be ignored, says the specification
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(*DataDir::Default(), "/home/me/.local/state/strata");
  unsetenv("XDG_STATE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(DataDir::Default().status().code(), absl::StatusCode::kInvalidArgument);
  setenv("HOME", home.c_str(), 1);
}

TEST(DataDir, KnowsTheLastPort) {
  const std::string path = Fresh();
  {
    auto dir = DataDir::Open(path);
    ASSERT_TRUE(dir.ok()) << dir.status();
    EXPECT_EQ(dir->last_port(), 0);
    ASSERT_TRUE(dir->WriteAddress("127.0.0.1:7400").ok());
    EXPECT_EQ(dir->last_port(), 0);
  }
  for (const auto& [address, port] : {std::pair<std::string, int>{"127.0.0.1:7400", 7400},
                                      {"[::1]:7401", 7401},
                                      {"damaged", 0}}) {
    std::ofstream(path + "/address") << address << "\n";
    auto dir = DataDir::Open(path);
    ASSERT_TRUE(dir.ok()) << dir.status();
    EXPECT_EQ(dir->last_port(), port) << address;
  }
}

}  // namespace
}  // namespace strata
