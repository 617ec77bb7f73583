#include "shard/device/control_group.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// A fake system's files.
class ControlGroupTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void SetSpace(const std::string& name) const {
    std::filesystem::create_directories(root_ + "/proc/self/ns");
    std::filesystem::remove(root_ + "/proc/self/ns/cgroup");
    std::filesystem::create_symlink(name, root_ + "/proc/self/ns/cgroup");
  }
  const std::string root_ = testing::MakeTestFolder();
};

TEST_F(ControlGroupTest, WithoutFilesThereIsNoLimit) {
  const ControlGroup limits = ReadControlGroup(root_);
  EXPECT_EQ(limits.memory_bytes, kNoLimit);
  EXPECT_GT(limits.cpu_cores, 1e9);
  EXPECT_THAT(limits.memory_group, IsEmpty());
  EXPECT_THAT(limits.cpu_group, IsEmpty());
  EXPECT_THAT(limits.cpus, IsEmpty());
}

TEST_F(ControlGroupTest, Version1HasAFolderForEachController) {
  Write("/proc/self/cgroup", "4:memory:/box/a\n3:cpuset:/box\n1:cpu,cpuacct:/box\n0::/");
  const std::string cgroup = "/sys/fs/cgroup";
  Write(cgroup + "/memory/box/a/memory.limit_in_bytes", "9223372036854771712");
  Write(cgroup + "/memory/box/memory.limit_in_bytes", "268435456");
  Write(cgroup + "/memory/memory.limit_in_bytes", "9223372036854771712");
  Write(cgroup + "/cpu/box/cpu.cfs_quota_us", "25000");
  Write(cgroup + "/cpu/box/cpu.cfs_period_us", "100000");
  Write(cgroup + "/cpu/cpu.cfs_quota_us", "-1");
  Write(cgroup + "/cpu/cpu.cfs_period_us", "100000");
  Write(cgroup + "/cpuset/box/cpuset.cpus", "1");
  Write(cgroup + "/cpuset/cpuset.cpus", "0-7");
  const ControlGroup limits = ReadControlGroup(root_);
  EXPECT_EQ(limits.memory_bytes, 256u << 20);
  EXPECT_EQ(limits.memory_group, "/box");
  EXPECT_DOUBLE_EQ(limits.cpu_cores, 0.25);
  EXPECT_EQ(limits.cpu_period, absl::Milliseconds(100));
  EXPECT_EQ(limits.cpu_group, "/box");
  EXPECT_EQ(limits.cpus, "1");
}

TEST_F(ControlGroupTest, Version2HasOneFolder) {
  Write("/proc/self/cgroup", "0::/home.slice/node.service");
  const std::string slice = "/sys/fs/cgroup/home.slice";
  Write(slice + "/node.service/memory.max", "max");
  Write(slice + "/node.service/cpu.max", "150000 100000");
  Write(slice + "/memory.max", "1073741824");
  Write(slice + "/cpu.max", "max 100000");
  Write(slice + "/node.service/cpuset.cpus.effective", "0-7");
  Write("/sys/fs/cgroup/cpuset.cpus.effective", "0-7");
  const ControlGroup limits = ReadControlGroup(root_);
  EXPECT_EQ(limits.memory_bytes, 1u << 30);
  EXPECT_EQ(limits.memory_group, "/home.slice");
  EXPECT_DOUBLE_EQ(limits.cpu_cores, 1.5);
  EXPECT_EQ(limits.cpu_group, "/home.slice/node.service");
  EXPECT_THAT(limits.cpus, IsEmpty());  // all of them
}

TEST_F(ControlGroupTest, AContainerSeesItsGroupAsTheMount) {
  Write("/proc/self/cgroup", "0::/docker/0123456789");
  Write("/sys/fs/cgroup/memory.max", "2147483648");
  Write("/sys/fs/cgroup/cpu.max", "50000 100000");
  const ControlGroup limits = ReadControlGroup(root_);
  EXPECT_EQ(limits.memory_bytes, 2u << 30);
  EXPECT_DOUBLE_EQ(limits.cpu_cores, 0.5);
}

TEST_F(ControlGroupTest, TwoContainersOfOnePathAreTwoGroups) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/memory.max", "2147483648");
  SetSpace("cgroup:[1]");
  const std::string one = ReadControlGroup(root_).memory_group;
  SetSpace("cgroup:[2]");
  EXPECT_THAT(one, HasSubstr("[1]"));
  EXPECT_THAT(ReadControlGroup(root_).memory_group, Not(one));
}

TEST_F(ControlGroupTest, UnreadableValuesAreNoLimit) {
  Write("/proc/self/cgroup", "garbage\n4:memory\n0::/a");
  Write("/sys/fs/cgroup/a/memory.max", "-5");
  Write("/sys/fs/cgroup/a/cpu.max", "many few");
  const ControlGroup limits = ReadControlGroup(root_);
  EXPECT_EQ(limits.memory_bytes, kNoLimit);
  EXPECT_THAT(limits.cpu_group, IsEmpty());
}

}  // namespace
}  // namespace strata
