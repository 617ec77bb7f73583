#include "transport/security/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using enum PrivateFileMode;

std::string Path() { return testing::MakeTestFolder() + "/secret"; }

mode_t ModeOf(const std::string& path) {
  struct stat about{};
  EXPECT_EQ(stat(path.c_str(), &about), 0);
  return about.st_mode & 07777;
}

// How many files a folder has.
size_t Count(const std::string& path) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
    ++n;
  }
  return n;
}

TEST(PrivateFile, IsReadAsItWasWritten) {
  const std::string path = Path();
  const std::string bytes("one\0two\n", 8);
  ASSERT_THAT(WritePrivateFile(path, bytes, kNew), IsOk());
  const absl::StatusOr<Secret> read = ReadPrivateFile(path);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->Reveal(), bytes);
  EXPECT_EQ(Count(path), 1u);
}

TEST(PrivateFile, IsItsOwnersAloneWhateverTheUmask) {
  for (const mode_t mask : {0, 0777}) {
    const std::string path = Path();
    const mode_t before = umask(mask);
    const absl::Status status = WritePrivateFile(path, "x", kNew);
    umask(before);
    ASSERT_THAT(status, IsOk());
    EXPECT_EQ(ModeOf(path), 0600u);
  }
}

TEST(PrivateFile, AnExistingOneIsNotReplaced) {
  const std::string path = Path();
  ASSERT_THAT(WritePrivateFile(path, "old", kNew), IsOk());
  EXPECT_THAT(WritePrivateFile(path, "new", kNew), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(ReadPrivateFile(path)->Reveal(), "old");
  EXPECT_EQ(Count(path), 1u);
}

TEST(PrivateFile, IsReplacedWhole) {
  const std::string path = Path();
  ASSERT_THAT(WritePrivateFile(path, "a long one", kReplace), IsOk());
  ASSERT_THAT(WritePrivateFile(path, "new", kReplace), IsOk());
  EXPECT_EQ(ReadPrivateFile(path)->Reveal(), "new");
  EXPECT_EQ(ModeOf(path), 0600u);
  EXPECT_EQ(Count(path), 1u);
}

TEST(PrivateFile, ReplacingOneThatWasOpenClosesIt) {
  const std::string path = Path();
  std::ofstream(path) << "old";
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  ASSERT_THAT(WritePrivateFile(path, "new", kReplace), IsOk());
  EXPECT_EQ(ModeOf(path), 0600u);
}

TEST(PrivateFile, OthersMayNotReadOrWriteIt) {
  for (const mode_t mode : {0640, 0604, 0660, 0602, 0610, 0601, 0777}) {
    const std::string path = Path();
    ASSERT_THAT(WritePrivateFile(path, "hush", kNew), IsOk());
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_THAT(ReadPrivateFile(path),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("chmod 600 " + path), Not(HasSubstr("hush")))));
  }
}

TEST(PrivateFile, AnotherUsersIsRefused) {
  const std::string path = Path();
  ASSERT_THAT(WritePrivateFile(path, "hush", kNew), IsOk());
  if (chown(path.c_str(), 12345, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "only root gives files away";
  }
  EXPECT_THAT(ReadPrivateFile(path),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chown")));
}

TEST(PrivateFile, OnlyPlainFilesAreRead) {
  const std::string path = Path();
  ASSERT_THAT(WritePrivateFile(path, "hush", kNew), IsOk());
  const std::string link = path + "-link";
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  EXPECT_THAT(ReadPrivateFile(link), StatusIs(absl::StatusCode::kFailedPrecondition));
  const std::string pipe = path + "-pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ReadPrivateFile(pipe), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(ReadPrivateFile(std::filesystem::path(path).parent_path()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(ReadPrivateFile(path + "-none"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(PrivateFile, ALinkIsReplacedAndNotFollowed) {
  const std::string path = Path();
  const std::string other = path + "-other";
  std::ofstream(other) << "mine";
  ASSERT_EQ(symlink(other.c_str(), path.c_str()), 0);
  EXPECT_THAT(WritePrivateFile(path, "new", kNew), StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_THAT(WritePrivateFile(path, "new", kReplace), IsOk());
  EXPECT_EQ(ReadPrivateFile(path)->Reveal(), "new");
  EXPECT_EQ(std::filesystem::file_size(other), 4u);
}

TEST(PrivateFile, OneThatIsTooLongIsRefused) {
  const std::string path = Path();
  const std::string full(kPrivateFileBytesMax, 'x');
  ASSERT_THAT(WritePrivateFile(path, full, kReplace), IsOk());
  EXPECT_THAT(ReadPrivateFile(path), IsOk());
  ASSERT_THAT(WritePrivateFile(path, full + "x", kReplace), IsOk());
  EXPECT_THAT(ReadPrivateFile(path), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(PrivateFile, NoFolderIsAnErrorThatNamesTheFile) {
  const std::string path = Path() + "/none/secret";
  EXPECT_THAT(
      WritePrivateFile(path, "hush", kNew),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr(path), Not(HasSubstr("hush")))));
}

TEST(PrivateFolder, IsForItsOwnerAloneWhateverTheUmask) {
  const std::string folder = testing::MakeTestFolder(), path = folder + "/above/it";
  const mode_t before = umask(0);
  EXPECT_THAT(MakePrivateFolder(path), IsOk());
  umask(before);
  EXPECT_EQ(ModeOf(path), 0700u);
  EXPECT_EQ(ModeOf(folder + "/above"), 0700u);
  EXPECT_THAT(MakePrivateFolder(path + "/"), IsOk());
  EXPECT_THAT(MakePrivateFolder("/"), IsOk());
}

TEST(PrivateFolder, AnExistingOneStaysAsItIs) {
  const std::string folder = testing::MakeTestFolder();
  std::filesystem::permissions(folder, std::filesystem::perms(0755));
  EXPECT_THAT(MakePrivateFolder(folder), IsOk());
  EXPECT_EQ(ModeOf(folder), 0755u);
}

TEST(PrivateFolder, AFileInItsPlaceIsAnErrorWithItsName) {
  const std::string path = Path();
  std::ofstream(path) << "x";
  const absl::Status status = MakePrivateFolder(path + "/in");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(path));
}

}  // namespace
}  // namespace strata
