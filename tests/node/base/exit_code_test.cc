#include "node/base/exit_code.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(ExitCode, DependsOnTheKindOfError) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(absl::InternalError("?")), 1);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("--nodes is 1 to 64")), 2);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("m.gguf: not a GGUF file")), 3);
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError("m.gguf")), 3);
  EXPECT_EQ(ExitCodeFor(absl::UnimplementedError("architecture x")), 3);
  EXPECT_EQ(ExitCodeFor(absl::FailedPreconditionError("may not be cut there")), 3);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("5 GiB missing")), 4);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("link broke")), 5);
  EXPECT_EQ(ExitCodeFor(absl::AbortedError("the worker aborted")), 5);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("silent")), 5);
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("interrupted")), 130);
}

}  // namespace
}  // namespace strata
