#include "node/keys/key_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
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

constexpr char kKnown[] =
    "strata-key-1-000g-40r4-0m30-e209-185g-r38e-1w81-24gk-2gah-c5rr-34d1-p70x-3rfh-2j9b";

ClusterKey Known() { return *ClusterKey::FromText(kKnown); }

std::string Fresh() { return KeyFilePath(testing::MakeTestFolder()); }

// A key file written by hand.
std::string FileWith(const std::string& text, mode_t mode = 0600) {
  const std::string path = Fresh();
  std::ofstream(path) << text;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(KeyFile, IsReadAsItWasWritten) {
  const std::string path = Fresh();
  ASSERT_THAT(CreateKeyFile(path, Known()), IsOk());
  const absl::StatusOr<ClusterKey> key = ReadKeyFile(path);
  ASSERT_THAT(key, IsOk());
  EXPECT_EQ(key->id(), Known().id());
  EXPECT_EQ(Contents(path), absl::StrCat(kKnown, "\n"));
}

TEST(KeyFile, IsTakenFromWhatOthersMayReadAndFromALink) {
  const std::string file = FileWith(absl::StrCat(kKnown, "\n"), 0444);
  const std::string path = Fresh();
  std::filesystem::create_symlink(file, path);
  const absl::StatusOr<ClusterKey> key = TakeKeyFile(path);
  ASSERT_THAT(key, IsOk());
  EXPECT_EQ(key->id(), Known().id());
}

TEST(KeyFile, IsNotTakenFromWhatHoldsNone) {
  EXPECT_THAT(TakeKeyFile(FileWith("")), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(TakeKeyFile(FileWith("no key\n")), StatusIs(absl::StatusCode::kFailedPrecondition));
  const std::string missing = Fresh();
  EXPECT_THAT(TakeKeyFile(missing), StatusIs(absl::StatusCode::kNotFound, HasSubstr(missing)));
}

TEST(KeyFile, IsReadableForItsOwnerAlone) {
  const std::string path = Fresh();
  ASSERT_THAT(CreateKeyFile(path, Known()), IsOk());
  struct stat about{};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
}

TEST(KeyFile, AMissingFileIsNotFound) {
  EXPECT_THAT(ReadKeyFile(Fresh()), StatusIs(absl::StatusCode::kNotFound));
}

TEST(KeyFile, CreateNeverReplacesAKey) {
  const std::string path = Fresh();
  ASSERT_THAT(CreateKeyFile(path, Known()), IsOk());
  EXPECT_THAT(CreateKeyFile(path, *ClusterKey::New()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path)));
  EXPECT_EQ(ReadKeyFile(path)->id(), Known().id());
}

TEST(KeyFile, IsReplacedWhenAsked) {
  const std::string path = Fresh();
  ASSERT_THAT(CreateKeyFile(path, *ClusterKey::New()), IsOk());
  ASSERT_THAT(ReplaceKeyFile(path, Known()), IsOk());
  EXPECT_EQ(ReadKeyFile(path)->id(), Known().id());
}

TEST(KeyFile, WrittenByHandIsRead) {
  for (const std::string& text :
       {std::string(kKnown), absl::StrCat("  ", kKnown, "\r\n"), absl::StrCat(kKnown, "\n\n")}) {
    EXPECT_THAT(ReadKeyFile(FileWith(text)), IsOk()) << text;
  }
}

TEST(KeyFile, AFileThatOthersMayReadIsRefusedWithAdvice) {
  for (const mode_t mode : {0644, 0640, 0604, 0666}) {
    const std::string path = FileWith(kKnown, mode);
    EXPECT_THAT(ReadKeyFile(path),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("chmod 600 " + path), Not(HasSubstr("000g-40r4")))));
  }
}

TEST(KeyFile, AnErrorDoesNotShowTheContents) {
  std::string typo = kKnown;
  typo.back() = 'c';
  for (const std::string& text : {std::string(), std::string("correct horse battery staple"), typo,
                                  typo.substr(0, 50), std::string(5000, 'a')}) {
    const std::string path = FileWith(text);
    EXPECT_THAT(ReadKeyFile(path),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(path), Not(HasSubstr("horse")),
                               Not(HasSubstr("000g-40r4")), Not(HasSubstr("aaaaa")))));
    EXPECT_EQ(Contents(path), text);
  }
}

TEST(KeyFile, ALinkIsRefused) {
  const std::string path = Fresh();
  ASSERT_EQ(symlink(FileWith(kKnown).c_str(), path.c_str()), 0);
  EXPECT_THAT(ReadKeyFile(path), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace strata
