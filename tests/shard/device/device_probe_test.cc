#include "shard/device/device_probe.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using testing::Contains;
using testing::Each;
using testing::Field;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(ListDevices, NamesTheCpuAndItsMemory) {
  const std::vector<DeviceFacts> devices = ListDevices();
  ASSERT_THAT(devices, Contains(Field(&DeviceFacts::kind, DeviceFacts::Kind::kCpu)));
  for (const DeviceFacts& device : devices) {
    EXPECT_THAT(device.name, Not(IsEmpty()));
    EXPECT_GT(device.memory_total_bytes, 0u) << device.name;
    EXPECT_LE(device.memory_free_bytes, device.memory_total_bytes) << device.name;
    if (device.kind == DeviceFacts::Kind::kCpu) {
      EXPECT_TRUE(device.shares_machine_memory);
    }
  }
}

TEST(ProbeDevice, MeasuresTheUsualTypesOfWeights) {
  // The budget suffices on a machine that runs everything else, too.
  const auto speed =
      ProbeDevice({.n_threads = 1, .budget = absl::Seconds(60), .working_set_bytes = 64ull << 20});
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->memory_bytes_per_s, 0);
  EXPECT_GE(speed->op_s, 0);
  EXPECT_GT(speed->op_float_s, 0);
  for (const char* type : {"q4_K", "q8_0", "q6_K", "q4_0", "f16"}) {
    EXPECT_THAT(speed->types, Contains(Field(&TypeSpeed::type, type)));
  }
  for (const TypeSpeed& type : speed->types) EXPECT_THAT(type.bytes_per_s, Each(Gt(0.0)));
}

TEST(ProbeDevice, ReportsWhenTimeDoesNotSuffice) {
  const auto speed = ProbeDevice({.budget = absl::ZeroDuration()});
  EXPECT_EQ(speed.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(speed.status().message(), HasSubstr("longer"));
}

TEST(ProbeDevice, NamesTheExistingDevices) {
  const auto speed = ProbeDevice({.device = "CUDA77"});
  EXPECT_EQ(speed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(speed.status().message(), HasSubstr("CPU"));
}

}  // namespace
}  // namespace strata
