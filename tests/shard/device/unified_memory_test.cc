#include "shard/device/unified_memory.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr uint64_t kGib = 1ull << 30;

TEST(UnifiedMemory, AMacOffersWhatMetalMayHaveAndLeavesTheSystemItsPart) {
  UnifiedMemory mac = {
      .machine_bytes = 64 * kGib, .available_bytes = 58 * kGib, .working_set_bytes = 48 * kGib};
  EXPECT_EQ(UnifiedFreeBytes(mac, true), 48 * kGib) << "three quarters, as macOS sets it";
  mac.used_bytes = 30 * kGib;
  mac.available_bytes = 28 * kGib;
  EXPECT_EQ(UnifiedFreeBytes(mac, true), 18 * kGib) << "a stage has the rest";
  mac.available_bytes = 10 * kGib;
  EXPECT_EQ(UnifiedFreeBytes(mac, true), 6 * kGib) << "other programs have much of it";
  mac.available_bytes = 3 * kGib;
  EXPECT_EQ(UnifiedFreeBytes(mac, true), 0u);
}

// sysctl iogpu.wired_limit_mb, up to all of the memory: a Mac without any left panics.
TEST(UnifiedMemory, ARaisedWiredLimitDoesNotTakeAll) {
  EXPECT_EQ(UnifiedFreeBytes({.machine_bytes = 128 * kGib,
                              .available_bytes = 126 * kGib,
                              .working_set_bytes = 128 * kGib},
                             true),
            118 * kGib);
  EXPECT_EQ(
      UnifiedFreeBytes(
          {.machine_bytes = 8 * kGib, .available_bytes = 7 * kGib, .working_set_bytes = 8 * kGib},
          true),
      6 * kGib)
      << "a GiB at least";
}

TEST(UnifiedMemory, OtherSystemsSayThemselvesWhatIsAvailable) {
  EXPECT_EQ(
      UnifiedFreeBytes(
          {.machine_bytes = 16 * kGib, .available_bytes = 9 * kGib, .working_set_bytes = 16 * kGib},
          false),
      9 * kGib);
  EXPECT_EQ(UnifiedFreeBytes({.machine_bytes = 16 * kGib,
                              .available_bytes = 9 * kGib,
                              .working_set_bytes = 8 * kGib,
                              .used_bytes = 2 * kGib},
                             false),
            6 * kGib)
      << "an integrated GPU's driver has a limit";
  EXPECT_EQ(UnifiedFreeBytes({.available_bytes = 9 * kGib}, false), 0u) << "nothing is known";
}

TEST(UnifiedMemory, PagesOfFilesAreAvailableAndInactiveOnesOfProgramsAreNot) {
  EXPECT_EQ(MacAvailablePages({.free = 100, .speculative = 30, .external = 200, .purgeable = 7}),
            277u);
  EXPECT_EQ(MacAvailablePages({.free = 10, .speculative = 30, .external = 30}), 30u);
}

}  // namespace
}  // namespace strata
