#include "shard/engine/lost_pages.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

// Reads a page of the mapped file after the file was truncated.
char ReadLostPage(const std::string& path) {
  const size_t bytes = 1 << 20;
  testing::WriteFile(path, std::string(bytes, 'x'));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED || truncate(path.c_str(), 10) != 0) _exit(1);
  return static_cast<volatile const char*>(mapped)[bytes - 1];
}

TEST(LostPagesDeathTest, EndTheProcessWithAMessageThatNamesTheFile) {
  const std::string path = testing::MakeTestFolder() + "/model.gguf";
  EXPECT_EXIT(
      {
        ReportLostPages("/some/other.gguf");
        ReportLostPages(path);
        _exit(ReadLostPage(path));
      },
      ::testing::KilledBySignal(SIGBUS), "model.gguf became shorter.*load the model again");
}

}  // namespace
}  // namespace strata
