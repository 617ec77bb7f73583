// A disk that becomes full while weights are fetched onto it: a small file system in memory, which
// only this process sees. Skipped where the machine does not allow one.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/model/weight_blocks.h"
#include "tests/node/hub/fake_hub.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::BytesOfSlice;
using ::strata::testing::FakeHub;
using ::strata::testing::FakeRequest;
using ::strata::testing::Opened;
using ::strata::testing::Receiver;
using ::strata::testing::ServeFile;
using ::strata::testing::SmallDisk;
using ::strata::testing::Source;
using ::strata::testing::SourceBytes;
using ::strata::testing::WriteLarge;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The disk's size bounds the cache, not its own.
constexpr uint64_t kCacheBytesMax = 1u << 30;

TEST(WeightsOnAFullDisk, FailWithOneErrorAndContinueWhenThereIsRoom) {
  const std::string path = WriteLarge();
  const uint64_t bytes = SourceBytes(path, {0, 2});
  // Including the cache's disk reserve.
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
    // A new fetch fails at once while there is no room.
    EXPECT_THAT(receiver.Fetch(*id, source.address(), {0, 2}),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr(folder), HasSubstr("--cache-dir"))));
    disk.MakeRoom();
    const auto rest = receiver.Fetch(*id, source.address(), {0, 2});
    ASSERT_TRUE(rest.ok()) << rest.status();
    // Blocks that were fetched before are not requested again.
    EXPECT_LE(rest->bytes_fetched, bytes - kWeightBlockBytes);
    EXPECT_TRUE(BytesOfSlice(rest->path, {0, 2}) == BytesOfSlice(path, {0, 2}));
  }
  // A node that starts later finds the same.
  Receiver again(folder, kCacheBytesMax);
  const auto all = again.Fetch(*id, source.address(), {0, 2});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->bytes_fetched, 0u);
}

TEST(WeightsOnAFullDisk, OfAServerToo) {
  const std::string path = WriteLarge(), id = Opened(path)->id();
  const uint64_t bytes = SourceBytes(path, {0, 2});
  SmallDisk disk(bytes + (80u << 20));
  if (!disk.problem().empty()) GTEST_SKIP() << "no file system of its own: " << disk.problem();
  std::ifstream in(path, std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(in), {});
  const FakeHub hub([&](const FakeRequest& request) { return ServeFile(request, content); });
  WeightFetcher::Request request = {.model_id = id, .layers = {0, 2}};
  wire::RemoteFile* const file = request.remote.add_parts();
  file->set_url(hub.url() + "/model.gguf");
  file->set_bytes(content.size());
  Receiver receiver(disk.path() + "/weights", kCacheBytesMax);
  bool full = false;
  EXPECT_THAT(receiver.Fetch(request,
                             [&](uint64_t done, uint64_t) {
                               // So many come at a time: one of them is whole.
                               if (done < (kServerLanes + 1) * kWeightBlockBytes || full) return;
                               full = true;
                               disk.Fill();
                             }),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("MiB of weights that are still to come"),
                             HasSubstr("--cache-dir"))));
  disk.MakeRoom();
  const uint64_t before = hub.body_bytes();
  const auto rest = receiver.Fetch(request);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_LE(hub.body_bytes() - before, bytes - kWeightBlockBytes);
  EXPECT_TRUE(BytesOfSlice(rest->path, {0, 2}) == BytesOfSlice(path, {0, 2}));
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
  // Planning works without the disk.
  const auto planned =
      receiver.Fetch({.model_id = *id, .address = source.address(), .headers_only = true});
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->headers->id(), *id);
  EXPECT_EQ(planned->headers->header().tensors.size(), Opened(path)->header().tensors.size());
  EXPECT_FALSE(std::filesystem::exists(planned->path));
  EXPECT_EQ(receiver.cache()->bytes_used(), 0u);
}

}  // namespace
}  // namespace strata
