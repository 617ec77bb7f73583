#include "node/measure/device_benchmark.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Stands for `strata probe`: two devices, of which one aborts when it is measured.
constexpr char kScript[] = R"(#!/bin/sh
echo "$*" >>"$0.calls"
case "$3" in
  "") echo '{"name":"CPU","description":"a chip","memoryTotal":"1000","memoryFree":"900","sharesMachineMemory":true}'
      echo '{"name":"GPU0","kind":"GPU","description":"a card","memoryTotal":"5000","memoryFree":"4000"}' ;;
  CPU) echo 'noise'
       echo '{"name":"CPU","memoryTotal":"1000","speed":{"memoryBytesPerS":5e9,"opS":1e-7,"types":[{"type":"q8_0","bytesPerS":[1,2,3,4]}]}}' ;;
  GPU0) echo 'driver: no' >&2; kill -ABRT $$ ;;
esac
)";

class DeviceBenchmarkTest : public ::testing::Test {
 protected:
  DeviceBenchmarkTest()
      : folder_(absl::StrCat(testing::ProcessTempFolder(), "/",
                             ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        program_(folder_ + "/probe") {
    std::filesystem::create_directories(folder_);
    std::ofstream(program_) << kScript;
    chmod(program_.c_str(), 0755);
  }

  DeviceBenchmark::Options Options() const {
    return {.program = program_, .cache_path = folder_ + "/devices", .n_threads = 2};
  }
  // Runs a benchmark until it has nothing more to measure.
  std::vector<wire::DeviceInfo> RunToTheEnd(DeviceBenchmark::Options options) {
    const std::unique_ptr<EventLoop> loop = EventLoop::Create();
    auto benchmark = std::make_unique<DeviceBenchmark>(loop.get(), std::move(options));
    benchmark->Start([&] {
      if (!benchmark->measuring()) loop->Stop();
    });
    loop->Run();
    std::vector<wire::DeviceInfo> devices = benchmark->Devices();
    benchmark.reset();
    return devices;
  }
  std::string Calls() const {
    std::ifstream file(program_ + ".calls");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string folder_;
  const std::string program_;
};

TEST_F(DeviceBenchmarkTest, ListsAndMeasuresEachDeviceInAProcessOfItsOwn) {
  const auto devices = RunToTheEnd(Options());
  ASSERT_THAT(devices, SizeIs(2));
  EXPECT_EQ(devices[0].name(), "CPU");
  EXPECT_EQ(devices[0].speed().types(0).bytes_per_s(3), 4);
  EXPECT_EQ(Calls(), "probe\nprobe --device CPU --threads 2\nprobe --device GPU0 --threads 2\n");
}

TEST_F(DeviceBenchmarkTest, MeasuresNoDeviceWhoseSpeedIsPresumed) {
  DeviceBenchmark::Options options = Options();
  options.presumed.emplace().set_op_s(0.5);
  const auto devices = RunToTheEnd(std::move(options));
  ASSERT_THAT(devices, SizeIs(2));
  for (const wire::DeviceInfo& device : devices) EXPECT_EQ(device.speed().op_s(), 0.5);
  EXPECT_EQ(Calls(), "probe\n");
}

// As after an upgrade that is half done.
TEST_F(DeviceBenchmarkTest, AProcessThatCannotBeStartedIsTriedAgain) {
  DeviceBenchmark::Options options = Options();
  options.retry_ms = {10};
  std::filesystem::rename(program_, program_ + ".away");
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  DeviceBenchmark benchmark(loop.get(), std::move(options));
  benchmark.Start([&] {
    if (!benchmark.measuring()) loop->Stop();
  });
  std::filesystem::rename(program_ + ".away", program_);
  loop->Run();
  EXPECT_THAT(benchmark.Devices(), SizeIs(2));
}

TEST_F(DeviceBenchmarkTest, ACardThatTwoBackEndsShowIsOneDeviceUnlessBothAreNamed) {
  std::ofstream(program_) << R"(#!/bin/sh
test -z "$3" || exit 0
echo '{"name":"CUDA0","kind":"GPU","busId":"0000:01:00.0"}'
echo '{"name":"CUDA1","kind":"GPU","busId":"0000:02:00.0"}'
echo '{"name":"Vulkan0","kind":"GPU","busId":"0000:01:00.0"}'
echo '{"name":"Vulkan1","kind":"GPU"}'
echo '{"name":"CPU"}'
)";
  std::vector<std::string> names;
  for (const auto& device : RunToTheEnd(Options())) names.push_back(device.name());
  EXPECT_THAT(names, ElementsAre("CUDA0", "CUDA1", "Vulkan1", "CPU"));
  auto options = Options();
  options.only = {"Vulkan0", "CUDA0"};
  names.clear();
  for (const auto& device : RunToTheEnd(options)) names.push_back(device.name());
  EXPECT_THAT(names, ElementsAre("CUDA0", "Vulkan0"));
}

TEST_F(DeviceBenchmarkTest, ADeviceWhoseDriverAbortsHasAProblemAndNoSpeed) {
  const auto devices = RunToTheEnd(Options());
  ASSERT_THAT(devices, SizeIs(2));
  EXPECT_FALSE(devices[1].has_speed());
  EXPECT_THAT(devices[1].problem(), HasSubstr("driver: no"));
  EXPECT_EQ(devices[1].memory_free(), 4000u);
}

TEST_F(DeviceBenchmarkTest, MeasuresOnceForTheSameHardware) {
  RunToTheEnd(Options());
  const auto devices = RunToTheEnd(Options());
  ASSERT_THAT(devices, SizeIs(2));
  EXPECT_EQ(devices[0].speed().memory_bytes_per_s(), 5e9);
  EXPECT_EQ(Calls(),
            "probe\nprobe --device CPU --threads 2\nprobe --device GPU0 --threads 2\n"
            "probe\nprobe --device GPU0 --threads 2\n");
}

TEST_F(DeviceBenchmarkTest, StoresResultsForTheOwnerAlone) {
  const mode_t before = umask(0);
  RunToTheEnd(Options());
  umask(before);
  struct stat about = {};
  ASSERT_EQ(stat((folder_ + "/devices").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

TEST_F(DeviceBenchmarkTest, MeasuresAgainForAnotherNumberOfThreads) {
  RunToTheEnd(Options());
  DeviceBenchmark::Options options = Options();
  options.n_threads = 1;
  RunToTheEnd(options);
  EXPECT_THAT(Calls(), HasSubstr("probe --device CPU --threads 1"));
}

TEST_F(DeviceBenchmarkTest, ADamagedFileIsReplaced) {
  std::ofstream(folder_ + "/devices") << "no tab\n\t{\nCPU\t[]\n";
  const auto devices = RunToTheEnd(Options());
  ASSERT_THAT(devices, SizeIs(2));
  EXPECT_TRUE(devices[0].has_speed());
}

TEST_F(DeviceBenchmarkTest, AProbeThatHangsIsKilled) {
  std::ofstream(program_, std::ios::trunc) << R"(#!/bin/sh
if [ -n "$3" ]; then exec sleep 1000; fi
echo '{"name":"CPU","memoryTotal":"1000"}'
)";
  DeviceBenchmark::Options options = Options();
  options.device_limit_ms = 3'000;  // enough for the list of devices
  const auto devices = RunToTheEnd(options);
  ASSERT_THAT(devices, SizeIs(1));
  EXPECT_THAT(devices[0].problem(), HasSubstr("too long"));
}

TEST_F(DeviceBenchmarkTest, AFailureIsRetried) {
  std::ofstream(program_, std::ios::trunc) << R"sh(#!/bin/sh
echo "$*" >>"$0.calls"
case $(($(wc -l <"$0.calls"))) in 1|3) exit 3 ;; esac
if [ -n "$3" ]; then speed=',"speed":{"memoryBytesPerS":5e9}'; fi
echo '{"name":"CPU","memoryTotal":"1000"'"$speed"'}'
)sh";
  DeviceBenchmark::Options options = Options();
  options.retry_ms = {1, 1};
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  DeviceBenchmark benchmark(loop.get(), options);
  bool had_problem = false;
  benchmark.Start([&] {
    for (const wire::DeviceInfo& device : benchmark.Devices()) {
      had_problem |= !device.problem().empty();
      if (device.has_speed()) loop->Stop();
    }
  });
  loop->Run();
  EXPECT_TRUE(had_problem);
  ASSERT_THAT(benchmark.Devices(), SizeIs(1));
  EXPECT_THAT(benchmark.Devices()[0].problem(), IsEmpty());
  EXPECT_EQ(Calls(),
            "probe\nprobe\nprobe --device CPU --threads 2\nprobe --device CPU --threads 2\n");
}

// A card that was full at first is measured although its memory is refreshed all the time.
TEST_F(DeviceBenchmarkTest, RefreshingMemoryDoesNotPutOffRetries) {
  std::ofstream(program_, std::ios::trunc) << R"sh(#!/bin/sh
echo "$*" >>"$0.calls"
if [ -z "$3" ]; then
  echo '{"name":"GPU0","kind":"GPU","memoryTotal":"5000","memoryFree":"4000"}'
elif [ $(grep -c device "$0.calls") -gt 1 ]; then
  echo '{"name":"GPU0","speed":{"memoryBytesPerS":5e9}}'
fi
)sh";
  DeviceBenchmark::Options options = Options();
  options.refresh_ms = 20;
  options.retry_ms = {400};
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  DeviceBenchmark benchmark(loop.get(), std::move(options));
  const auto limit = loop->StartTimer({.delay_ms = 30'000}, [&] { loop->Stop(); });
  benchmark.Start([&] {
    if (benchmark.Devices().at(0).has_speed()) loop->Stop();
  });
  loop->Run();
  EXPECT_TRUE(benchmark.Devices()[0].has_speed()) << Calls();
}

TEST_F(DeviceBenchmarkTest, MeasuringAgainDuringARefreshIsMeasuring) {
  std::ofstream(program_, std::ios::trunc) << R"sh(#!/bin/sh
echo "$*" >>"$0.calls"
if [ -n "$3" ]; then
  echo '{"name":"GPU0","speed":{"memoryBytesPerS":5e9}}'
  exit
fi
echo '{"name":"GPU0","kind":"GPU","memoryTotal":"5000","memoryFree":"4000"}'
[ $(grep -c . "$0.calls") -lt 3 ] || { : >"$0.looks"; sleep 0.3; }
)sh";
  DeviceBenchmark::Options options = Options();
  options.refresh_ms = 20;
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  DeviceBenchmark benchmark(loop.get(), std::move(options));
  bool requested = false;
  const auto look = loop->StartTimer({.delay_ms = 1, .repeat_ms = 1}, [&] {
    if (requested || !std::filesystem::exists(program_ + ".looks")) return;
    requested = true;
    benchmark.MeasureAgain();
    EXPECT_TRUE(benchmark.measuring());
  });
  benchmark.Start([&] {
    if (requested && !benchmark.measuring()) loop->Stop();
  });
  loop->Run();
  EXPECT_TRUE(benchmark.Devices()[0].has_speed());
}

TEST_F(DeviceBenchmarkTest, MemoryOfLoadedStagesIsNotFree) {
  uint64_t loaded = 100;
  DeviceBenchmark::Options options = Options();
  options.bytes_on = [&](const std::string& device) { return device == "GPU0" ? loaded : 0; };
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  DeviceBenchmark benchmark(loop.get(), std::move(options));
  benchmark.Start([&] {
    if (!benchmark.measuring()) loop->Stop();
  });
  loop->Run();
  ASSERT_THAT(benchmark.Devices(), SizeIs(2));
  EXPECT_EQ(benchmark.Devices()[1].memory_free(), 4000u);
  loaded = 1100;
  EXPECT_EQ(benchmark.Devices()[1].memory_free(), 3000u);
  loaded = 9000;
  EXPECT_EQ(benchmark.Devices()[1].memory_free(), 0u);
  loaded = 0;
  EXPECT_EQ(benchmark.Devices()[1].memory_free(), 4100u);
}

TEST_F(DeviceBenchmarkTest, MemoryOfOtherProgramsIsNotFree) {
  std::ofstream(program_, std::ios::trunc) << R"sh(#!/bin/sh
echo "$*" >>"$0.calls"
if [ -n "$3" ]; then
  echo '{"name":"GPU0","speed":{"memoryBytesPerS":5e9}}'
elif [ $(wc -l <"$0.calls") -lt 4 ]; then
  echo '{"name":"GPU0","kind":"GPU","memoryTotal":"5000","memoryFree":"4000"}'
else
  echo '{"name":"GPU0","kind":"GPU","memoryTotal":"5000","memoryFree":"1500"}'
  echo '{"name":"GPU1","kind":"GPU","memoryTotal":"5000","memoryFree":"1500"}'
fi
)sh";
  DeviceBenchmark::Options options = Options();
  options.refresh_ms = 20;
  const std::unique_ptr<EventLoop> loop = EventLoop::Create();
  DeviceBenchmark benchmark(loop.get(), std::move(options));
  benchmark.Start([&] {
    if (benchmark.Devices().at(0).memory_free() == 1500) loop->Stop();
  });
  loop->Run();
  EXPECT_THAT(benchmark.Devices(), SizeIs(1));
  EXPECT_FALSE(benchmark.measuring());
  EXPECT_TRUE(benchmark.Devices()[0].has_speed());
}

TEST_F(DeviceBenchmarkTest, NoProbeNoDevices) {
  std::ofstream(program_, std::ios::trunc) << "#!/bin/sh\nexit 3\n";
  EXPECT_THAT(RunToTheEnd(Options()), SizeIs(0));
}

}  // namespace
}  // namespace strata
