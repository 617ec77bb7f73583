#include "node/workers/device_limits.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DeviceLimits, WithoutOptionsAllDevicesAreUsed) {
  const auto limits = ParseDeviceLimits({}, {});
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_TRUE(limits->Has("CUDA3"));
  EXPECT_EQ(limits->MemoryOf("CUDA3"), 0u);
}

TEST(DeviceLimits, TakesNamesInAListOneByOneOrTwice) {
  const auto limits = ParseDeviceLimits({"CUDA0, CPU", "CUDA0"}, {});
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_THAT(limits->devices, ElementsAre("CUDA0", "CPU"));
  EXPECT_FALSE(limits->Has("CUDA1"));
}

TEST(DeviceLimits, MemoryIsOfOneDeviceOrOfEach) {
  const auto limits = ParseDeviceLimits({}, {"2GiB,CUDA0=1.5GiB", "CPU=512M"});
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->MemoryOf("CUDA0"), 3ull << 29);
  EXPECT_EQ(limits->MemoryOf("CPU"), 512ull << 20);
  EXPECT_EQ(limits->MemoryOf("CUDA1"), 2ull << 30);
}

TEST(DeviceLimits, AnErrorShowsTheValue) {
  for (const char* memory : {"", "lots", "CPU=", "=1G", "0", "CPU=0", "-1G"}) {
    const auto limits = ParseDeviceLimits({}, {memory});
    EXPECT_EQ(limits.status().code(), absl::StatusCode::kInvalidArgument) << memory;
    EXPECT_THAT(limits.status().message(), HasSubstr("--memory")) << memory;
  }
  EXPECT_EQ(ParseDeviceLimits({"CPU,"}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ParseDeviceLimits({"CPU"}, {"CUDA0=1G"}).status().message(), HasSubstr("CUDA0"));
}

// A program that stands for `strata` and its verb probe.
std::string Probe(const std::string& script) {
  const std::string path =
      absl::StrCat(testing::ProcessTempFolder(), "/",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::ofstream(path) << "#!/bin/sh\n" << script;
  chmod(path.c_str(), 0755);
  return path;
}

TEST(DeviceLimits, RefusesAMissingDeviceAndListsTheOthers) {
  const std::string program =
      Probe("echo chatter\necho '{\"name\":\"CPU\"}'\necho '{\"name\":\"GPU0\"}'\n");
  EXPECT_TRUE(CheckDeviceLimits({.devices = {"GPU0", "CPU"}}, program).ok());
  const absl::Status device = CheckDeviceLimits({.devices = {"GPU1"}}, program);
  EXPECT_EQ(device, absl::InvalidArgumentError(
                        "--device: this machine has no device \"GPU1\"; it has CPU, GPU0"));
  const absl::Status memory = CheckDeviceLimits({.memory_of = {{"GPU7", 1}}}, program);
  EXPECT_EQ(memory.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(memory.message(), HasSubstr("--memory"));
}

TEST(DeviceLimits, RefusesNamesThatCannotBeChecked) {
  const absl::Status status =
      CheckDeviceLimits({.devices = {"CPU"}}, Probe("echo 'no driver' >&2; exit 3\n"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("no driver"));
}

}  // namespace
}  // namespace strata
