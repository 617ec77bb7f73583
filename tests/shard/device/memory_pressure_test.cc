#include "shard/device/memory_pressure.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

MemoryPressure Of(const std::string& some, const std::string& full) {
  return ParsePressure("some avg10=" + some + " avg60=90.00 avg300=90.00 total=7\nfull avg10=" +
                       full + " avg60=90.00 avg300=90.00 total=7\n");
}

TEST(MemoryPressure, TheLastTenSecondsCount) {
  EXPECT_EQ(Of("0.00", "0.00"), MemoryPressure::kNone);
  EXPECT_EQ(Of("19.99", "11.00"), MemoryPressure::kNone);
  EXPECT_EQ(Of("20.00", "19.99"), MemoryPressure::kShort);
  EXPECT_EQ(Of("80.12", "45.30"), MemoryPressure::kCritical);
}

TEST(MemoryPressure, WhatIsNoSuchFileIsNone) {
  EXPECT_EQ(ParsePressure(""), MemoryPressure::kNone);
  EXPECT_EQ(ParsePressure("some\nfull avg10=\nsome avg10=x\navg10=99.0\n"), MemoryPressure::kNone);
  EXPECT_EQ(ReadMemoryPressure("/nothing/is/here"), MemoryPressure::kNone);
}

TEST(MemoryPressure, ItIsReadFromTheSystem) {
  const std::string root = strata::testing::MakeTestFolder();
  std::filesystem::create_directories(root + "/proc/pressure");
  std::ofstream(root + "/proc/pressure/memory") << "some avg10=50.00 avg60=1.00\nfull avg10=0.10\n";
  EXPECT_EQ(ReadMemoryPressure(root), MemoryPressure::kShort);
}

TEST(MemoryPressure, AMachineThatIsShortOffersLessAndSaysSo) {
  EXPECT_EQ(OfferedBytes(100, MemoryPressure::kNone), 100u);
  EXPECT_EQ(OfferedBytes(100, MemoryPressure::kShort), 50u);
  EXPECT_EQ(OfferedBytes(100, MemoryPressure::kCritical), 0u);
  EXPECT_EQ(PressureText(MemoryPressure::kNone), "");
  EXPECT_THAT(PressureText(MemoryPressure::kShort), ::testing::HasSubstr("offers half"));
  EXPECT_THAT(PressureText(MemoryPressure::kCritical), ::testing::HasSubstr("no more layers"));
}

}  // namespace
}  // namespace strata
