#include "shard/model/file_stamp.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::WriteFile;

class FileStamps : public ::testing::Test {
 protected:
  void SetUp() override { WriteFile(path_, "content"); }
  FileStamp Now() const {
    const auto stamp = StampAt(path_);
    EXPECT_TRUE(stamp.ok()) << stamp.status();
    return stamp.value_or(FileStamp());
  }
  const std::string path_ = MakeTestFolder() + "/file";
};

TEST_F(FileStamps, StayTheSameWithoutWrites) {
  const FileStamp before = Now();
  EXPECT_EQ(before.bytes, 7u);
  EXPECT_THAT(StampAt(path_), IsOkAndHolds(before));
}

TEST_F(FileStamps, DistinguishFilesOfEqualSizeAndTime) {
  const FileStamp before = Now();
  const auto time = std::filesystem::last_write_time(path_);
  WriteFile(path_ + ".new", "CONTENT");
  std::filesystem::rename(path_ + ".new", path_);
  std::filesystem::last_write_time(path_, time);
  const FileStamp now = Now();
  EXPECT_EQ(now.bytes, before.bytes);
  EXPECT_EQ(now.modified_ns, before.modified_ns);
  EXPECT_NE(now, before);
  EXPECT_NE(now.Text(), before.Text());
}

TEST_F(FileStamps, OfNoFileAreNotFound) {
  EXPECT_THAT(StampAt(path_ + ".other"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace strata
