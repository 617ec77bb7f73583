// A disk that becomes full while weights are fetched onto it: a small file system in memory, which
// only this process sees. Skipped where the machine does not let it make one.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/weight_blocks.h"
#include "tests/node/weights_fixture.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::BytesOfSlice;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::Receiver;
using ::strata::testing::Source;
using ::strata::testing::SourceBytes;
using ::strata::testing::WriteLarge;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The disk's size bounds the cache, not its own.
constexpr uint64_t kCacheBytesMax = 1u << 30;

// A file system of `bytes` at a folder, as long as this lives. The thread that makes it, and those
// that it starts later, see it.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes) : path_(MakeTestFolder()) {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      problem_ = strerror(errno);
      return;
    }
    // Nobody else shall see it.
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", path_.c_str(), "tmpfs", 0, absl::StrCat("size=", bytes).c_str()) != 0) {
      problem_ = strerror(errno);
    }
  }
  ~SmallDisk() {
    if (problem_.empty()) umount2(path_.c_str(), MNT_DETACH);
  }
  const std::string& path() const { return path_; }
  const std::string& problem() const { return problem_; }  // why it is not there; empty: it is

  // Somebody else writes a file until nothing is left.
  void Fill() {
    const int fd = open(filler().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    const std::string bytes(1 << 20, 'x');
    size_t size = bytes.size();
    while (size > 0) {
      if (write(fd, bytes.data(), size) < 0) size /= 2;
    }
    close(fd);
  }
  void MakeRoom() { std::filesystem::remove(filler()); }

 private:
  std::string filler() const { return path_ + "/of_somebody_else"; }

  const std::string path_;
  std::string problem_;
};

TEST(WeightsOnAFullDisk, FailWithOneErrorAndGoOnWhenThereIsRoom) {
  const std::string path = WriteLarge();
  const uint64_t bytes = SourceBytes(path, {0, 2});
  // With what the cache leaves to others.
  SmallDisk disk(bytes + (80u << 20));
  if (!disk.problem().empty()) GTEST_SKIP() << "no file system of its own: " << disk.problem();
  Source source;
  const auto id = source.Share(path);
  ASSERT_TRUE(id.ok()) << id.status();
  const std::string folder = disk.path() + "/weights";
  {
    Receiver receiver(folder, kCacheBytesMax);
    bool full = false;
    const auto fetched =
        receiver.Fetch(*id, source.address(), {0, 2}, [&](uint64_t done, uint64_t) {
          if (done < 2 * kWeightBlockBytes || full) return;
          full = true;
          disk.Fill();
        });
    EXPECT_THAT(fetched, StatusIs(absl::StatusCode::kResourceExhausted,
                                  AllOf(HasSubstr("MiB of weights that are still to come"),
                                        HasSubstr(folder), HasSubstr("--cache-dir"))));
    // Nor does it begin while there is no room.
    EXPECT_THAT(receiver.Fetch(*id, source.address(), {0, 2}),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr(folder), HasSubstr("--cache-dir"))));
    disk.MakeRoom();
    const auto rest = receiver.Fetch(*id, source.address(), {0, 2});
    ASSERT_TRUE(rest.ok()) << rest.status();
    // What had come before is not asked for again.
    EXPECT_LE(rest->bytes_fetched, bytes - kWeightBlockBytes);
    EXPECT_TRUE(BytesOfSlice(rest->path, {0, 2}) == BytesOfSlice(path, {0, 2}));
  }
  // A node that starts later finds the same.
  Receiver again(folder, kCacheBytesMax);
  const auto all = again.Fetch(*id, source.address(), {0, 2});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->bytes_fetched, 0u);
}

TEST(WeightsOnAFullDisk, AreConsistentAfterARestart) {
  const std::string path = WriteLarge();
  SmallDisk disk(SourceBytes(path, {0, 2}) + (80u << 20));
  if (!disk.problem().empty()) GTEST_SKIP() << "no file system of its own: " << disk.problem();
  Source source;
  const auto id = source.Share(path);
  ASSERT_TRUE(id.ok()) << id.status();
  const std::string folder = disk.path() + "/weights";
  {
    Receiver receiver(folder, kCacheBytesMax);
    bool full = false;
    EXPECT_THAT(receiver.Fetch(*id, source.address(), {0, 2},
                               [&](uint64_t done, uint64_t) {
                                 if (done < 3 * kWeightBlockBytes || full) return;
                                 full = true;
                                 disk.Fill();
                               }),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  disk.MakeRoom();
  Receiver receiver(folder, kCacheBytesMax);
  const auto fetched = receiver.Fetch(*id, source.address(), {0, 2});
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_TRUE(BytesOfSlice(fetched->path, {0, 2}) == BytesOfSlice(path, {0, 2}));
}

TEST(WeightsOnAFullDisk, ADescriptionThatDoesNotFitLeavesNothing) {
  const std::string path = WriteLarge();
  SmallDisk disk(1 << 20);
  if (!disk.problem().empty()) GTEST_SKIP() << "no file system of its own: " << disk.problem();
  Source source;
  const auto id = source.Share(path);
  ASSERT_TRUE(id.ok()) << id.status();
  const std::string folder = disk.path() + "/weights";
  Receiver receiver(folder, kCacheBytesMax);
  disk.Fill();
  EXPECT_THAT(receiver.Fetch(*id, source.address(), {0, 2}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(folder)));
  EXPECT_EQ(receiver.cache()->bytes_used(), 0u);
}

}  // namespace
}  // namespace strata
