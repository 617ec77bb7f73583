#include "coordinator/models/desired_state_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsNull;
using ::testing::NotNull;

DesiredStatePtr List(uint64_t change) {
  return std::make_shared<const DesiredState>(
      DesiredState{.version = {.epoch = {3, {1, 2}}, .change = change}, .models = {"a model"}});
}

TEST(DesiredStateFile, OutlivesItsProcessForItsOwnerAlone) {
  const std::string path = testing::MakeTestFolder() + "/desired_state";
  {
    DesiredStateFile file(path, "me");
    EXPECT_THAT(file.opened(), IsNull());
    file.Keep(List(1), "me");
    file.Keep(List(2), "me");
  }
  struct stat about;
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  const DesiredStateFile again(path, "me");
  ASSERT_THAT(again.opened(), NotNull());
  EXPECT_EQ(*again.opened(), *List(2));
  EXPECT_THAT(again.Problems(), IsEmpty());
}

TEST(DesiredStateFile, SaysWhenTheDiskHasIt) {
  const std::string path = testing::MakeTestFolder() + "/desired_state";
  DesiredStateFile file(path, "me");
  absl::Notification settled;
  file.OnSettled([&](const DesiredVersion& version) {
    EXPECT_EQ(version, List(1)->version);
    EXPECT_TRUE(std::filesystem::exists(path));
    settled.Notify();
  });
  file.Keep(List(1), "me");
  settled.WaitForNotification();
}

TEST(DesiredStateFile, WhatCannotBeUsedIsSetAside) {
  const std::string path = testing::MakeTestFolder() + "/desired_state";
  const auto set_aside = [&](const std::string& words) {
    const DesiredStateFile file(path, "me");
    EXPECT_THAT(file.opened(), IsNull());
    EXPECT_THAT(file.Problems(), ElementsAre(HasSubstr(words)));
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_TRUE(std::filesystem::exists(path + ".unusable"));
    EXPECT_THAT(DesiredStateFile(path, "me").Problems(), IsEmpty());  // said once
  };
  {
    DesiredStateFile(path, "another").Keep(List(1), "another");
  }
  set_aside("another node");
  std::ofstream(path) << "rubbish";
  set_aside("open to others");
  ASSERT_TRUE(WritePrivateFile(path, "rubbish", PrivateFileMode::kReplace).ok());
  set_aside("damaged");
  ASSERT_TRUE(
      WritePrivateFile(path, std::string(kPrivateFileBytesMax + 1, 'x'), PrivateFileMode::kReplace)
          .ok());
  set_aside("too long");
}

TEST(DesiredStateFile, ADiskThatTakesNothingIsSaid) {
  const std::string path = testing::MakeTestFolder() + "/none/desired_state";
  DesiredStateFile file(path, "me");
  absl::Notification settled;
  file.OnSettled([&](const DesiredVersion&) { settled.Notify(); });
  file.Keep(List(1), "me");
  settled.WaitForNotification();  // and nobody waits for this disk
  EXPECT_THAT(file.Problems(), ElementsAre(HasSubstr("not kept")));
}

}  // namespace
}  // namespace strata
