#include "node/base/machine.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(Machine, FreeMemoryIsPartOfAllMemory) {
  const MachineMemory memory = ReadMachineMemory();
  EXPECT_GT(memory.total_bytes, 64u << 20);
  EXPECT_GT(memory.free_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

TEST(Machine, HasACoreAndANameWithoutADomain) {
  EXPECT_GE(MachineCores(), 1u);
  EXPECT_FALSE(MachineName().empty());
  EXPECT_EQ(MachineName().find('.'), std::string::npos);
}

TEST(Machine, IdsStayTheSame) {
  const MachineIds once = ReadMachineIds(), again = ReadMachineIds();
  EXPECT_EQ(once.memory, again.memory);
  EXPECT_EQ(once.cores, again.cores);
  EXPECT_EQ(MachineId(), once.memory);
#ifdef __linux__
  EXPECT_FALSE(once.memory.empty());
  EXPECT_FALSE(once.cores.empty());
#endif
}

}  // namespace
}  // namespace strata
